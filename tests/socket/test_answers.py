"""What a client gets over the wire: shapes, usage, streams equal to unary."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.builders import (
    TIMEOUT_S,
    GatedRunner,
    expected_text,
    make_engine,
    make_limits,
    wait_for,
)
from tests.socket.conftest import Served

Serve = Callable[..., Served]
CHAT = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 12}
COMPLETION = {"prompt": "hello", "max_tokens": 12}
ENDPOINTS = [("/v1/completions", COMPLETION), ("/v1/chat/completions", CHAT)]


def text_of(chunk: dict[str, Any]) -> str:
    choice = chunk["choices"][0]
    return str(choice["text"] if "text" in choice else choice["delta"].get("content", ""))


def test_completion_is_openais(serve_in_thread: Serve) -> None:
    """Every key of a unary completion has its value."""
    served = serve_in_thread(wall_clock=lambda: 1700000000.9, new_id=lambda: "x1")

    body = served.http.post("/v1/completions", json=COMPLETION | {"model": "fake"}).json()

    assert body == {
        "id": "cmpl-x1",
        "object": "text_completion",
        "created": 1700000000,
        "model": "fake",
        "choices": [
            {
                "index": 0,
                "text": expected_text("hello", 12),
                "logprobs": None,
                "finish_reason": "length",
            }
        ],
        "usage": {
            "prompt_tokens": 5,
            "completion_tokens": 12,
            "total_tokens": 17,
            "prompt_tokens_details": {"cached_tokens": 0},
        },
    }


def test_chat_answers_the_rendered_template(served: Served) -> None:
    """The prompt is the template's text, with developer as system and parts joined."""
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    messages = [{"role": "developer", "content": "be"}, {"role": "user", "content": parts}]

    body = served.http.post(
        "/v1/chat/completions", json={"messages": messages, "max_completion_tokens": 4}
    ).json()

    prompt = "<system>be\n<user>a\nb\n<assistant>"
    message = body["choices"][0]["message"]
    assert message == {"role": "assistant", "content": expected_text(prompt, 4), "refusal": None}
    assert body["usage"]["prompt_tokens"] == len(prompt)
    assert body["object"] == "chat.completion"


@pytest.mark.parametrize(("path", "body"), ENDPOINTS)
def test_streamed_text_is_the_unary_text(served: Served, path: str, body: dict[str, Any]) -> None:
    """The chunks of a stream add up to the unary answer, and end with the same reason."""
    whole = served.http.post(path, json=body).json()["choices"][0]

    frames = served.stream(path, **body)

    assert frames[-1] == "[DONE]"
    text = whole["text"] if "text" in whole else whole["message"]["content"]
    assert "".join(text_of(chunk) for chunk in frames[:-1]) == text
    assert frames[-2]["choices"][0]["finish_reason"] == whole["finish_reason"] == "length"
    assert len({(chunk["id"], chunk["created"]) for chunk in frames[:-1]}) == 1
    assert all("usage" not in chunk for chunk in frames[:-1])


def test_chat_stream_opens_with_the_role_and_closes_empty(served: Served) -> None:
    """First the role with empty content, then text, last an empty delta with the reason."""
    frames = served.stream("/v1/chat/completions", **CHAT)

    deltas = [chunk["choices"][0]["delta"] for chunk in frames[:-1]]
    assert deltas[0] == {"role": "assistant", "content": ""}
    assert deltas[-1] == {}
    assert all(delta["content"] for delta in deltas[1:-1])


@pytest.mark.parametrize(("path", "body"), ENDPOINTS)
def test_usage_comes_last_when_asked_for(served: Served, path: str, body: dict[str, Any]) -> None:
    """`include_usage` puts null on every chunk, and one last chunk without choices."""
    frames = served.stream(path, **(body | {"stream_options": {"include_usage": True}}))

    assert [chunk["usage"] for chunk in frames[:-2]] == [None] * len(frames[:-2])
    assert frames[-2]["choices"] == []
    assert frames[-2]["usage"]["completion_tokens"] == 12


def test_continuous_usage_counts_along(served: Served) -> None:
    """With `continuous_usage_stats` every chunk has the tokens so far."""
    options = {"include_usage": True, "continuous_usage_stats": True}
    frames = served.stream("/v1/completions", **(COMPLETION | {"stream_options": options}))

    counts = [chunk["usage"]["completion_tokens"] for chunk in frames[:-1]]
    assert counts == sorted(counts)
    assert (counts[0], counts[-1]) == (1, 12)


def test_stop_string_ends_stream_and_unary_alike(served: Served) -> None:
    """For any cut of the text as stop string, both end before it, with reason stop."""
    text = expected_text("hello", 12)
    for start, end in [(0, 2), (3, 4), (3, 9), (10, 12)]:
        body = COMPLETION | {"stop": ["never", text[start:end]]}

        whole = served.http.post("/v1/completions", json=body).json()
        frames = served.stream("/v1/completions", **body)

        expected = text[: text.index(text[start:end])]
        assert whole["choices"][0] | {"logprobs": None} == {
            "index": 0,
            "text": expected,
            "logprobs": None,
            "finish_reason": "stop",
        }
        assert "".join(text_of(chunk) for chunk in frames[:-1]) == expected
        assert whole["usage"]["completion_tokens"] <= end


def test_stop_string_may_be_kept(served: Served) -> None:
    """With include_stop_str_in_output it ends the text, streamed or not."""
    text = expected_text("hello", 9)
    body = {"prompt": "hello", "stop": text[3:6], "include_stop_str_in_output": True}

    whole = served.post("/v1/completions", **body)["choices"][0]["text"]
    frames = served.stream("/v1/completions", **body)

    assert "".join(text_of(chunk) for chunk in frames[:-1]) == whole == text[:6]


def test_stop_id_waits_for_min_tokens(served: Served) -> None:
    """A stop id ends the answer, but is not drawn before as many tokens as were asked for."""
    text = expected_text("hello", 9)
    body = {"prompt": "hello", "max_tokens": 9, "stop_token_ids": [ord(text[2])]}

    stopped = served.post("/v1/completions", **body)["choices"][0]
    waited = served.post("/v1/completions", **body, min_tokens=9)["choices"][0]

    assert (stopped["text"], stopped["finish_reason"]) == (text[:2], "stop")
    assert (len(waited["text"]), waited["finish_reason"]) == (9, "length")
    assert text[2] not in waited["text"]


def test_urgent_calls_go_first(serve_in_thread: Serve) -> None:
    """Of the waiting, the one with the lowest priority number is answered next."""
    runner = GatedRunner()
    served = serve_in_thread(make_engine(runner, make_limits(max_num_seqs=1)))

    def ask(prompt: str, priority: int) -> None:
        served.post("/v1/completions", prompt=prompt, max_tokens=2, priority=priority)

    with ThreadPoolExecutor(4) as pool:
        pool.submit(ask, "a", 0)
        assert runner.arrived.wait(TIMEOUT_S)  # with "a", which has the only place
        for prompt, priority in {"b": 5, "c": -5, "d": 1}.items():
            pool.submit(ask, prompt, priority)
        wait_for(served.engine, lambda: served.engine.stats().gauges.num_waiting == 4)
        runner.open()

    parts = [part for step in runner.steps for part in step.scheduled]
    prompts = [chr(part.token_ids[0]) for part in parts if part.num_computed_tokens == 0]
    assert prompts == ["a", "c", "d", "b"]


def test_choices_are_prompt_major(served: Served) -> None:
    """Two prompts with n=2 give four choices, and each prompt's tokens count once."""
    body = served.http.post(
        "/v1/completions", json={"prompt": ["ab", "xyz"], "n": 2, "max_tokens": 6}
    ).json()

    texts = [choice["text"] for choice in body["choices"]]
    assert texts == [expected_text("ab", 6)] * 2 + [expected_text("xyz", 6)] * 2
    assert [choice["index"] for choice in body["choices"]] == [0, 1, 2, 3]
    assert (body["usage"]["prompt_tokens"], body["usage"]["completion_tokens"]) == (5, 24)


@pytest.mark.parametrize("prompt", [[104, 105], [[104, 105]], ["hi"], "hi"])
def test_prompt_has_four_shapes(served: Served, prompt: Any) -> None:
    """Text and token ids, alone and in a list, mean the same prompt."""
    body = served.http.post("/v1/completions", json={"prompt": prompt}).json()

    assert body["choices"][0]["text"] == expected_text("hi", 16)
    assert len(body["choices"]) == 1


def test_chat_without_max_tokens_fills_the_context(serve_in_thread: Serve) -> None:
    """The default is what the prompt leaves of the context."""
    served = serve_in_thread(make_engine(limits=make_limits(max_model_len=64)))

    body = served.http.post("/v1/chat/completions", json={"messages": CHAT["messages"]}).json()

    assert body["usage"]["total_tokens"] == 64
    assert body["choices"][0]["finish_reason"] == "length"


def test_prefix_hit_is_in_the_usage(served: Served) -> None:
    """The second of two equal prompts reports cached tokens, fewer than the prompt's."""
    body = {"prompt": "twelve bytes", "max_tokens": 2}
    served.http.post("/v1/completions", json=body)

    usage = served.http.post("/v1/completions", json=body).json()["usage"]

    assert usage["prompt_tokens_details"]["cached_tokens"] == 8


def test_64_streams_at_once_are_all_right(served: Served) -> None:
    """With eight places in the batch, 64 concurrent streams each get their own text."""

    def one(i: int) -> str:
        frames = served.stream("/v1/completions", prompt=f"p{i}", max_tokens=20)
        return "".join(text_of(chunk) for chunk in frames[:-1])

    with ThreadPoolExecutor(64) as pool:
        texts = list(pool.map(one, range(64)))

    assert texts == [expected_text(f"p{i}", 20) for i in range(64)]
    assert served.engine.num_in_flight == 0
