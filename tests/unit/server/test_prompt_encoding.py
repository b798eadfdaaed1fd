"""Prompts and conversations to token ids."""

from typing import Any

import pytest

from nanoserve.errors import InvalidRequestError, PromptTooLongError
from nanoserve.sched.sampling_params import SamplingParams
from nanoserve.server.chat_protocol import ChatCompletionRequest
from nanoserve.server.prompt_encoding import (
    EncodedPrompt,
    admit_prompt,
    encode_chat,
    encode_prompts,
    fewest_tokens,
    split_prompts,
)
from nanoserve.server.protocol import CompletionRequest
from nanoserve.text.chat_template import ChatTemplate
from tests.builders import CHAT_TEMPLATE, TOOL_TEMPLATE, make_limits
from tests.fakes import ByteTokenizer

USER = {"role": "user", "content": "x"}
CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
TOOLS = [{"type": "function", "function": {"name": "f", "strict": None}}]


def prompts_of(prompt: Any) -> list[str | list[int]]:
    return split_prompts(CompletionRequest.model_validate({"prompt": prompt}))


def chat(**fields: Any) -> ChatCompletionRequest:
    return ChatCompletionRequest.model_validate({"messages": [USER]} | fields)


def rendered(fields: ChatCompletionRequest, source: str) -> str:
    return encode_chat(fields, ByteTokenizer(), ChatTemplate(source, None, None), 999).text


def test_prompts_are_split_by_shape() -> None:
    """A list of ids is one prompt; a list of lists or of texts is several."""
    assert prompts_of("ab") == ["ab"]
    assert prompts_of([1, 2]) == [[1, 2]]
    assert prompts_of(["a", "b"]) == ["a", "b"]
    assert prompts_of([[1], [2]]) == [[1], [2]]


def test_prompts_keep_their_text() -> None:
    """Ids are decoded; those that will be refused are not."""
    encoded = list(encode_prompts(["a", [104, 105], [999]], ByteTokenizer(), 8))

    assert encoded == [
        EncodedPrompt((97,), "a"),
        EncodedPrompt((104, 105), "hi"),
        EncodedPrompt((999,), ""),
    ]


class _Recorder(ByteTokenizer):
    """Notes whether special tokens were asked for."""

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        self.added_special_tokens = add_special_tokens
        return super().encode(text)


def test_rendered_chat_gets_no_second_bos() -> None:
    """The template's text is tokenised as it is; developer is shown as system."""
    codec = _Recorder()
    template = ChatTemplate("<s>" + CHAT_TEMPLATE, "<s>", None)
    fields = chat(messages=[{"role": "developer", "content": "be"}, USER])

    prompt = encode_chat(fields, codec, template, 99)

    assert prompt.text == bytes(prompt.token_ids).decode() == "<s><system>be\n<user>x\n<assistant>"
    assert codec.added_special_tokens is False


def test_template_variables_reach_the_template() -> None:
    """`enable_thinking` is handed on; what is not set is not defined."""
    source = "{{ enable_thinking is defined }} {{ enable_thinking }}"

    assert rendered(chat(chat_template_kwargs={"enable_thinking": False}), source) == "True False"
    assert rendered(chat(), source) == "False "


def test_tools_reach_the_template_unless_ruled_out() -> None:
    """As the client sent them, without nulls."""
    source = "{{ tools | tojson }}"

    assert rendered(chat(tools=TOOLS), source) == (
        '[{"type": "function", "function": {"name": "f"}}]'
    )
    assert rendered(chat(tools=TOOLS, tool_choice="none"), source) == "null"
    assert rendered(chat(), source) == "null"


def test_earlier_calls_and_their_results_reach_the_template() -> None:
    """Arguments are an object, and a result has the name of the function that gave it."""
    messages = [
        USER,
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "c", "content": [{"type": "text", "text": "4"}]},
    ]

    text = rendered(chat(messages=messages), TOOL_TEMPLATE)

    assert "'tool_calls': [{'id': 'c', 'type': 'function', 'function': {'name': 'f', " in text
    assert "'arguments': {'a': 1}}" in text
    assert "{'role': 'tool', 'content': '4', 'name': 'f', 'tool_call_id': 'c'}" in text


@pytest.mark.parametrize("arguments", ["{", "[]", '{"a": NaN}', "1", '{"a": "\\ud800"}'])
def test_earlier_arguments_are_json_objects(arguments: str) -> None:
    """A template could not write anything else back."""
    call = CALL | {"function": {"name": "f", "arguments": arguments}}
    fields = chat(messages=[{"role": "assistant", "tool_calls": [call]}])

    with pytest.raises(InvalidRequestError, match="no JSON object") as caught:
        rendered(fields, TOOL_TEMPLATE)

    assert caught.value.param == "messages"


def test_hopeless_text_is_refused_untokenised() -> None:
    """A text longer than the context's longest tokens costs no tokenising."""
    codec = _Recorder()
    with pytest.raises(PromptTooLongError, match="has at least 9 prompt tokens") as caught:
        list(encode_prompts(["x", "y" * 33], codec, 8))
    with pytest.raises(PromptTooLongError, match="has at least 9 prompt tokens"):
        encode_chat(chat(), codec, ChatTemplate("y" * 33, None, None), 8)

    assert caught.value.code == "context_length_exceeded"
    assert [prompt.token_ids for prompt in encode_prompts(["y" * 32], codec, 8)] == [(121,) * 32]
    assert [fewest_tokens(num_chars, codec) for num_chars in (0, 1, 4, 5)] == [0, 1, 1, 2]


def test_too_long_prompt_names_its_field() -> None:
    """The error keeps its numbers and gets the endpoint's field."""
    with pytest.raises(PromptTooLongError) as caught:
        admit_prompt(make_limits(), (1,) * 600, SamplingParams(), "messages")

    assert (caught.value.param, caught.value.prompt_tokens) == ("messages", 600)
