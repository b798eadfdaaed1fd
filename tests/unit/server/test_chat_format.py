"""Chat answers in OpenAI's words."""

from typing import Any

from nanoserve.sched.step import FinishReason, TokenLogprobs
from nanoserve.server.answer import Piece
from nanoserve.server.answer_head import AnswerHead
from nanoserve.server.chat_format import ChatFormat
from nanoserve.server.logprob_format import ScoredToken
from nanoserve.server.message_parser import MessageParser
from nanoserve.server.tool_calls import ToolCallRules
from nanoserve.server.tool_style import HERMES
from tests.fakes import ByteTokenizer

RULES = ToolCallRules(HERMES, ("f",), is_forced=False, max_calls=8)


def words(rules: ToolCallRules | None = None, has_logprobs: bool = False) -> ChatFormat:
    head = AnswerHead("id-1", 17, "m")
    return ChatFormat(
        head, ByteTokenizer(), has_logprobs, lambda: MessageParser(rules, None, lambda: "call_1")
    )


def chunks(format_: ChatFormat, *pieces: Piece) -> list[dict[str, Any]]:
    return [
        chunk.model_dump(exclude_unset=True)["choices"][0]
        for piece in pieces
        for chunk in format_.chunks(piece)
    ]


def test_end_is_a_chunk_of_its_own() -> None:
    """The last text comes before an empty delta with the reason."""
    assert chunks(words(), Piece(1, "hi", FinishReason.LENGTH)) == [
        {"index": 1, "delta": {"content": "hi"}, "logprobs": None, "finish_reason": None},
        {"index": 1, "delta": {}, "logprobs": None, "finish_reason": "length"},
    ]
    assert chunks(words(), Piece(0, "", None)) == []


def test_each_choice_is_opened() -> None:
    """Every choice starts with its role."""
    opened = [chunk.choices[0] for chunk in words().opening(3)]

    assert [choice.index for choice in opened] == [0, 1, 2]
    assert {choice.delta.role for choice in opened} == {"assistant"}


def test_calls_are_deltas_of_their_own() -> None:
    """Id and name come first, the arguments after, and the reason is theirs."""
    text = '<tool_call>{"name": "f", "arguments": {}}</tool_call>'

    found = chunks(words(RULES), Piece(0, text, None), Piece(0, "", FinishReason.STOP))

    start = {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": ""}}
    assert [chunk["delta"] for chunk in found] == [
        {"tool_calls": [{"index": 0} | start]},
        {"tool_calls": [{"index": 0, "function": {"arguments": "{}"}}]},
        {},
    ]
    assert found[-1]["finish_reason"] == "tool_calls"


def test_cut_answer_has_its_own_reason() -> None:
    """A call that was made before the length ran out does not hide that it did."""
    text = '<tool_call>{"name": "f", "arguments": {}}</tool_call>'

    assert chunks(words(RULES), Piece(0, text, FinishReason.LENGTH))[-1]["finish_reason"] == (
        "length"
    )


def test_logprobs_wait_for_a_delta() -> None:
    """No chunk is made for them alone; the last one has what is left."""
    tokens = tuple(ScoredToken(byte, TokenLogprobs(byte, -1.0)) for byte in b"abc")
    pieces = (
        Piece(0, "", None, tokens[:1]),
        Piece(0, "ab", None, tokens[1:2]),
        Piece(0, "", FinishReason.STOP, tokens[2:]),
    )

    found = chunks(words(has_logprobs=True), *pieces)

    spelled = [[record["token"] for record in chunk["logprobs"]["content"]] for chunk in found]
    assert spelled == [["a", "b"], ["c"]]
