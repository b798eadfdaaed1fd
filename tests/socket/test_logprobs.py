"""Log-probabilities over the wire: echo, scoring, alternatives, streams equal to unary."""

from typing import Any

import openai
import pytest

from tests.builders import expected_text
from tests.socket.conftest import Served

CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 6}
LISTS = ("tokens", "token_logprobs", "top_logprobs", "text_offset")


@pytest.mark.parametrize("max_tokens", [0, 1])
def test_scoring_call_is_what_harnesses_expect(served: Served, max_tokens: int) -> None:
    """Prompt and answer in one list; the prompt's first token follows nothing."""
    body = served.post(
        "/v1/completions", prompt="hello", echo=True, logprobs=2, max_tokens=max_tokens
    )

    choice = body["choices"][0]
    text = "hello" + expected_text("hello", max_tokens)
    assert (choice["text"], choice["finish_reason"]) == (text, "length")
    lists = choice["logprobs"]
    assert lists["tokens"] == list(text)
    assert lists["token_logprobs"] == [None] + [-1.0] * (len(text) - 1)
    assert lists["text_offset"] == list(range(len(text)))
    assert lists["top_logprobs"][0] is None
    assert lists["top_logprobs"][1] == {"e": -1.0, "f": -2.0}
    assert body["usage"]["completion_tokens"] == max_tokens


def test_echo_needs_no_logprobs(served: Served) -> None:
    """The prompt alone comes back, as text or as the text of ids; each choice has its own."""
    body = served.post("/v1/completions", prompt="hello", echo=True, max_tokens=0, n=2)
    ids = served.post("/v1/completions", prompt=[104, 105], echo=True, max_tokens=2)

    assert [choice["text"] for choice in body["choices"]] == ["hello", "hello"]
    assert body["choices"][0]["logprobs"] is None
    assert ids["choices"][0]["text"] == "hi" + expected_text("hi", 2)


@pytest.mark.parametrize(
    "fields", [{"echo": True}, {"stop": expected_text("hello", 9)[3:6]}, {"n": 2}, {}]
)
def test_streamed_lists_are_the_unary_lists(served: Served, fields: dict[str, Any]) -> None:
    """Joined over the chunks, choice by choice, with what a stop string cut off."""
    call = {"prompt": "hello", "max_tokens": 9, "logprobs": 1} | fields
    whole = served.post("/v1/completions", **call)["choices"]

    chunks = [chunk["choices"][0] for chunk in served.stream("/v1/completions", **call)[:-1]]

    for choice in whole:
        own = [chunk for chunk in chunks if chunk["index"] == choice["index"]]
        assert "".join(chunk["text"] for chunk in own) == choice["text"]
        for name in LISTS:
            joined = [item for chunk in own for item in chunk["logprobs"][name]]
            assert joined == choice["logprobs"][name]
        assert own[-1]["finish_reason"] == choice["finish_reason"]


def test_every_sampled_token_has_an_entry(served: Served) -> None:
    """As many as usage counts, those of a stop string included."""
    text = expected_text("hello", 9)

    body = served.post("/v1/completions", prompt="hello", logprobs=0, stop=text[3:6])

    choice = body["choices"][0]
    assert choice["text"] == text[:3]
    assert choice["logprobs"]["tokens"] == list(text[:6])
    assert body["usage"]["completion_tokens"] == 6


def test_chat_records_stream_as_they_are(served: Served) -> None:
    """Tokens, bytes and alternatives are the same in a stream and at once."""
    call = CHAT | {"logprobs": True, "top_logprobs": 2}
    whole = served.post("/v1/chat/completions", **call)["choices"][0]

    chunks = [c["choices"][0] for c in served.stream("/v1/chat/completions", **call)[:-1]]

    records = whole["logprobs"]["content"]
    assert "".join(record["token"] for record in records) == whole["message"]["content"]
    assert all(bytes(record["bytes"]).decode() == record["token"] for record in records)
    assert {len(record["top_logprobs"]) for record in records} == {2}
    streamed = [chunk["logprobs"]["content"] for chunk in chunks if chunk["logprobs"]]
    assert [record for part in streamed for record in part] == records
    assert chunks[0]["delta"] == {"role": "assistant", "content": ""}
    assert all(chunk["delta"].get("content") for chunk in chunks[1:-1])


def test_openai_client_reads_both_shapes(served: Served) -> None:
    """The official client's types hold what comes."""
    with openai.OpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0) as client:
        completion = client.completions.create(model="fake", prompt="x", logprobs=1, max_tokens=2)
        chat = client.chat.completions.create(model="fake", logprobs=True, top_logprobs=1, **CHAT)

    assert completion.choices[0].logprobs is not None
    assert completion.choices[0].logprobs.token_logprobs == [-1.0, -1.0]
    assert chat.choices[0].logprobs is not None
    records = chat.choices[0].logprobs.content or []
    assert records[0].top_logprobs[0].logprob == -1.0


def test_best_of_shows_the_best(served: Served) -> None:
    """All samples count in the usage, and log-probabilities are shown only if asked for."""
    body = served.post("/v1/completions", prompt=["a", "b"], best_of=3, n=2, max_tokens=4)

    assert [choice["index"] for choice in body["choices"]] == [0, 1, 2, 3]
    assert {choice["logprobs"] for choice in body["choices"]} == {None}
    assert body["choices"][2]["text"] == expected_text("b", 4)
    assert body["usage"]["completion_tokens"] == 2 * 3 * 4
