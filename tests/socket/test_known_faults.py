"""Faults that users met on other servers, each as what happens here instead.

What needs a model's own numbers is tested where the model is; here is the HTTP side.
"""

import json
import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from nanoserve.sched.step import FinishReason, ScheduledRequest
from tests.builders import (
    TIMEOUT_S,
    AsciiRunner,
    FailingRunner,
    GatedRunner,
    expected_text,
    make_engine,
    make_limits,
    scripted_engine,
    wait_for,
)
from tests.fakes import ByteTokenizer, FakeRunner
from tests.socket.conftest import Served

Serve = Callable[..., Served]
CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
USER = {"messages": [{"role": "user", "content": "hi"}]}
CALLS: list[tuple[str, dict[str, Any]]] = [
    (COMPLETIONS, {"prompt": "hi", "max_tokens": 5}),
    (CHAT, USER | {"max_tokens": 5}),
]


class SeededRunner(FakeRunner):
    """Draws any byte, as the request's seed and the position say."""

    def draw(self, request: ScheduledRequest) -> int:
        return random.Random(request.seed * 1000 + request.context_len).randrange(128, 256)


class CountingTokenizer(ByteTokenizer):
    """Counts the texts that it encodes."""

    def __init__(self) -> None:
        self.num_encoded = 0

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        self.num_encoded += 1
        return super().encode(text, add_special_tokens=add_special_tokens)


def client_address(response: httpx.Response) -> Any:
    """Return our end of the connection that an answer came by."""
    return response.extensions["network_stream"].get_extra_info("client_addr")


def text_of(frames: list[Any]) -> str:
    """Return a stream's text."""
    choices = [choice for frame in frames[:-1] for choice in frame["choices"]]
    return "".join(
        choice["text"] if "text" in choice else choice["delta"].get("content", "")
        for choice in choices
    )


def answers_of_a_crowd(
    serve: Serve, calls: list[dict[str, Any]], num_at_once: int
) -> tuple[Served, list[dict[str, Any]]]:
    """Return a server of a pool for one request, and its answers to so many clients.

    All are there before the first step ends, so that no pace of theirs lets them go one by one.
    """
    runner = GatedRunner()
    served = serve(make_engine(runner, make_limits(num_blocks=16, max_model_len=64)))
    with ThreadPoolExecutor(num_at_once) as pool:
        answers = [pool.submit(served.post, COMPLETIONS, **calls[0])]
        assert runner.arrived.wait(TIMEOUT_S)
        answers += [pool.submit(served.post, COMPLETIONS, **call) for call in calls[1:]]
        engine = served.engine
        wait_for(engine, lambda: engine.stats().gauges.num_waiting == num_at_once)
        runner.open()
    return served, [answer.result() for answer in answers]


def test_characters_are_never_cut_in_a_stream(serve_in_thread: Serve) -> None:
    """Bytes at random: stream and unary agree, and no delta is empty (detokenisation)."""
    served = serve_in_thread(make_engine(SeededRunner()))
    for seed in range(30):
        call = USER | {"seed": seed, "max_tokens": 40}
        whole = served.post(CHAT, **call)["choices"][0]["message"]["content"]

        frames = served.stream(CHAT, **call)

        assert text_of(frames) == whole
        deltas = [frame["choices"][0]["delta"] for frame in frames[1:-2]]
        assert all(delta["content"] for delta in deltas)


def test_characters_in_pieces_arrive_whole(serve_in_thread: Serve) -> None:
    """A text of long characters has no replacement character in any delta."""
    text = "🎉日本語čďž🎉"
    served = serve_in_thread(scripted_engine(text))

    frames = served.stream(CHAT, **USER)

    assert text_of(frames) == text
    assert "\ufffd" not in json.dumps(frames, ensure_ascii=False)


def test_stop_strings_are_found_across_tokens(served: Served) -> None:
    """Any cut of the text, alone or among stops that overlap it, ends both answers alike."""
    text = expected_text("hello", 40)
    cuts = random.Random(5)
    for _ in range(10):
        start = cuts.randrange(30)
        stop = text[start : start + cuts.randrange(1, 8)]
        for stops in (stop, [stop, stop + text[0], "never", stop[-1:] + "\x00"]):
            call = {"prompt": "hello", "max_tokens": 40, "stop": stops}

            whole = served.post(COMPLETIONS, **call)
            frames = served.stream(COMPLETIONS, **call)

            expected = text[: text.index(stop)]
            assert whole["choices"][0]["text"] == text_of(frames) == expected
            assert whole["choices"][0]["finish_reason"] == "stop"
            assert whole["usage"]["completion_tokens"] == len(expected) + len(stop)


def test_too_small_a_pool_makes_progress(serve_in_thread: Serve) -> None:
    """Sixteen requests that each fill the pool all end, whole and right (preemption)."""
    calls = [{"prompt": f"p{i:02}", "max_tokens": 61, "ignore_eos": True} for i in range(16)]
    served, bodies = answers_of_a_crowd(serve_in_thread, calls, num_at_once=16)

    for i, body in enumerate(bodies):
        assert body["choices"][0]["text"] == expected_text(f"p{i:02}", 61)
        assert body["usage"]["prompt_tokens_details"]["cached_tokens"] < 3
    assert served.engine.stats().gauges.num_preemptions > 0
    refused = served.http.post(COMPLETIONS, json={"prompt": "x", "max_tokens": 64})
    assert refused.status_code == 400


def test_seed_is_fresh_or_as_sent(serve_in_thread: Serve) -> None:
    """None draws anew, 0 is a seed, and each of n choices has its own."""
    served = serve_in_thread(make_engine(SeededRunner()))

    def texts(**fields: Any) -> tuple[str, ...]:
        body = served.post(COMPLETIONS, prompt="x", **fields)
        return tuple(choice["text"] for choice in body["choices"])

    assert len({texts() for _ in range(5)}) > 1
    assert len({texts(seed=None) for _ in range(5)}) > 1
    assert texts(seed=0) == texts(seed=0)
    assert len(set(texts(seed=7, n=4))) == 4
    assert texts(seed=7, n=4) == texts(seed=7, n=4)
    assert texts(seed=7, n=2)[1] == texts(seed=8)[0]


def test_numbers_are_finite_json(serve_in_thread: Serve) -> None:
    """Log-probabilities of what can never come stand at -9999, in every shape."""
    served = serve_in_thread(make_engine(ImpossibleRunner()))
    calls: list[tuple[str, dict[str, Any]]] = [
        (COMPLETIONS, {"prompt": "hi", "echo": True, "logprobs": 5, "top_k": 1, "max_tokens": 3}),
        (CHAT, USER | {"logprobs": True, "top_logprobs": 3, "max_tokens": 3}),
    ]
    for path, call in calls:
        body = json.dumps(served.post(path, **call))
        frames = json.dumps(served.stream(path, **call))

        for text in (body, frames):
            assert "-9999.0" in text
            assert "Infinity" not in text


class ImpossibleRunner(AsciiRunner):
    """Says of every token that it could not have come."""

    def execute(self, step: Any) -> Any:
        result = super().execute(step)
        for found in result.logprobs.values():
            object.__setattr__(found, "logprob", float("-inf"))
        return result


@pytest.mark.parametrize(("path", "call"), CALLS)
def test_usage_is_sent_when_asked_for(served: Served, path: str, call: dict[str, Any]) -> None:
    """No key without options; null and one last chunk with them; and a unary call has none."""
    plain = served.stream(path, **call)
    off = served.stream(path, **call, stream_options={"include_usage": False})
    asked = served.stream(path, **call, stream_options={"include_usage": True})
    without_stream = served.http.post(path, json=call | {"stream_options": {}})

    for frames in (plain, off):
        assert all("usage" not in frame and frame["choices"] for frame in frames[:-1])
    assert all(frame["usage"] is None for frame in asked[:-2])
    assert asked[-2]["choices"] == []
    assert asked[-2]["usage"]["completion_tokens"] == 5
    assert without_stream.status_code == 400


def test_stop_ids_count_as_tokens(serve_in_thread: Serve) -> None:
    """The token that ends an answer was sampled, so usage has it."""
    served = serve_in_thread(scripted_engine("abc"))

    body = served.post(CHAT, **USER)

    assert body["usage"]["completion_tokens"] == 4
    assert body["choices"][0]["finish_reason"] == "stop"


@pytest.mark.parametrize("max_tokens", [0, -1])
def test_no_tokens_are_no_answer(served: Served, max_tokens: int) -> None:
    """A length under 1 is refused on both endpoints, never clamped."""
    for path, call in CALLS:
        assert served.http.post(path, json=call | {"max_tokens": max_tokens}).status_code == 400
    assert (
        served.post(COMPLETIONS, prompt="x", echo=True, max_tokens=0)["choices"][0]["text"] == "x"
    )


@pytest.mark.parametrize(("path", "call"), CALLS)
@pytest.mark.parametrize("field", ["temperature", "top_p", "min_p", "presence_penalty"])
def test_what_is_no_number_is_refused(
    served: Served, path: str, call: dict[str, Any], field: str
) -> None:
    """NaN, infinities, text and null are 400 with valid JSON, and the server goes on."""
    start = json.dumps(call)[:-1]
    for literal in ("NaN", "Infinity", "-Infinity", "1e999", '"0.7"', "null", "-2.1", "2.1"):
        response = served.http.post(path, content=f'{start},"{field}":{literal}}}')

        assert response.status_code == 400, literal
        json.loads(response.text, parse_constant=pytest.fail)
    assert served.http.post(path, json=call).status_code == 200


def test_bias_outside_the_vocabulary_is_refused(served: Served) -> None:
    """The message names the id; the engine never sees it."""
    response = served.http.post(COMPLETIONS, json={"prompt": "x", "logit_bias": {"191222": -100}})

    assert response.status_code == 400
    assert response.json()["error"]["param"] == "logit_bias"
    assert "191222" in response.json()["error"]["message"]


def test_dead_engine_is_said_by_health(serve_in_thread: Serve) -> None:
    """In flight: 500 or an error frame; then /health and every new call 503: none waits."""
    served = serve_in_thread(make_engine(FailingRunner({5: RuntimeError("device lost")})))

    whole = served.http.post(COMPLETIONS, json={"prompt": "x"})
    statuses = [served.http.get("/health").status_code]
    statuses += [served.http.post(path, json=call).status_code for path, call in CALLS]

    assert whole.status_code == 500
    assert statuses == [503, 503, 503]


def test_context_message_has_the_true_numbers(served: Served) -> None:
    """The limit, the prompt's tokens and the requested ones; never their difference."""
    response = served.http.post(COMPLETIONS, json={"prompt": "x" * 8, "max_tokens": 509})

    error = response.json()["error"]
    assert error["code"] == "context_length_exceeded"
    assert error["type"] == "invalid_request_error"
    assert error["param"] == "prompt"
    for number in ("512", "8", "509"):
        assert f" {number} " in error["message"]


def test_each_request_is_observed_once(serve_in_thread: Serve) -> None:
    """With preemptions, TTFT and e2e are counted once and reasons add up to the requests."""
    calls = [{"prompt": f"p{i}", "max_tokens": 50} for i in range(30)]
    served, responses = answers_of_a_crowd(serve_in_thread, calls, num_at_once=10)

    stats = served.engine.stats()

    assert stats.gauges.num_preemptions > 0
    assert sum(stats.ttft_s.counts) == sum(stats.e2e_s.counts) == 30
    assert stats.finished[FinishReason.LENGTH] == sum(stats.finished.values()) == 30
    tokens = sum(response["usage"]["completion_tokens"] for response in responses)
    assert stats.generation_tokens == tokens == 30 * 50


@pytest.mark.parametrize(
    "fields",
    [
        {"n": 10**9},
        {"best_of": 10**6},
        {"logprobs": 10**6},
        {"stop": ["x"] * 10**5},
        {"prompt": ["x"] * 10**6},
        {"stop_token_ids": [1] * 10**5},
        {"guided_choice": ["x"] * 10**5},
        {"logit_bias": {str(i): 1 for i in range(10**4)}},
    ],
)
def test_huge_numbers_cost_nothing(serve_in_thread: Serve, fields: dict[str, Any]) -> None:
    """Each is refused before any text is encoded."""
    codec = CountingTokenizer()
    served = serve_in_thread(codec=codec)
    content = json.dumps({"prompt": "x"} | fields)

    response = served.http.post(COMPLETIONS, content=content)

    assert response.status_code in (400, 413)
    assert codec.num_encoded == 0
    assert len(response.content) < 2000
    served.post(COMPLETIONS, prompt="x")
    assert codec.num_encoded == 1


@pytest.mark.parametrize(
    "content",
    [
        b'{"prompt":"x","stream":true,"n":0}',
        b'{"prompt":"x","stream":true,"model":"other"}',
        b'{"prompt":"' + b"x" * 600 + b'","stream":true}',
        b'{"prompt":"x","stream":true,',
        b'{"prompt":"x","stream":true,"guided_regex":"a"}',
        b'{"prompt":"x","stream":true,"best_of":2}',
    ],
)
def test_known_errors_keep_their_status_in_a_stream(served: Served, content: bytes) -> None:
    """JSON with a 4xx, and the connection goes on with the next call."""
    limits = httpx.Limits(keepalive_expiry=TIMEOUT_S)  # not after 5 s, however slow
    with httpx.Client(base_url=served.url, timeout=TIMEOUT_S, limits=limits) as client:
        response = client.post(COMPLETIONS, content=content)
        address = client_address(response)
        again = client.post(COMPLETIONS, json={"prompt": "x", "max_tokens": 1})
        assert client_address(again) == address

    assert 400 <= response.status_code < 500
    assert response.headers["content-type"] == "application/json"
    assert again.status_code == 200
