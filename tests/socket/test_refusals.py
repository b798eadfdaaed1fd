"""What is refused: a 4xx with the envelope, and the server goes on."""

import gc
import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any

import httpx
import pytest

from nanoserve.runner.device_memory import HostProbe
from nanoserve.server.prompt_queue import PromptQueue
from nanoserve.units import MIB
from tests.builders import GatedRunner, make_engine, make_limits, wait_for
from tests.socket.conftest import Served

Serve = Callable[..., Served]

BAD_BODIES: list[tuple[str, bytes, int]] = [
    ("not json", b"{", 400),
    ("no object", b"[]", 400),
    ("empty", b"", 400),
    ("no prompt", b"{}", 400),
    ("nan", b'{"prompt":"x","temperature":NaN}', 400),
    ("infinity", b'{"prompt":"x","temperature":Infinity}', 400),
    ("minus infinity", b'{"prompt":"x","temperature":-Infinity}', 400),
    ("too large for a float", b'{"prompt":"x","temperature":1e999}', 400),
    ("number as text", b'{"prompt":"x","temperature":"0.7"}', 400),
    ("null temperature", b'{"prompt":"x","temperature":null}', 400),
    ("negative temperature", b'{"prompt":"x","temperature":-0.1}', 400),
    ("hot", b'{"prompt":"x","temperature":2.1}', 400),
    ("top_p 0", b'{"prompt":"x","top_p":0}', 400),
    ("min_p 2", b'{"prompt":"x","min_p":2}', 400),
    ("bool for int", b'{"prompt":"x","max_tokens":true}', 400),
    ("max_tokens 0", b'{"prompt":"x","max_tokens":0}', 400),
    ("max_tokens -1", b'{"prompt":"x","max_tokens":-1}', 400),
    ("too long", b'{"prompt":"x","max_tokens":512}', 400),
    ("n 0", b'{"prompt":"x","n":0}', 400),
    ("n huge", b'{"prompt":"x","n":1000000000}', 400),
    ("digits", b'{"prompt":"x","n":' + b"9" * 5000 + b"}", 400),
    ("best_of", b'{"prompt":"x","best_of":1000000}', 400),
    ("logprobs", b'{"prompt":"x","logprobs":1000000}', 400),
    ("logprobs 6", b'{"prompt":"x","logprobs":6}', 400),
    ("max_tokens 0 with logprobs", b'{"prompt":"x","logprobs":1,"max_tokens":0}', 400),
    ("suffix", b'{"prompt":"x","suffix":"y"}', 400),
    ("penalty", b'{"prompt":"x","presence_penalty":2.5}', 400),
    ("penalty NaN", b'{"prompt":"x","frequency_penalty":NaN}', 400),
    ("repetition 0", b'{"prompt":"x","repetition_penalty":0}', 400),
    ("bias of 1000", b'{"prompt":"x","logit_bias":{"5":1000}}', 400),
    ("bias of no id", b'{"prompt":"x","logit_bias":{"a":1}}', 400),
    ("bias out of vocabulary", b'{"prompt":"x","logit_bias":{"256":-100}}', 400),
    ("min over max", b'{"prompt":"x","min_tokens":17}', 400),
    ("no grammar compiler", b'{"prompt":"x","guided_regex":"a"}', 400),
    ("unknown field", b'{"prompt":"x","temprature":0.5}', 400),
    ("empty prompt", b'{"prompt":""}', 400),
    ("empty list", b'{"prompt":[]}', 400),
    ("mixed list", b'{"prompt":["a",1]}', 400),
    ("id out of range", b'{"prompt":[256]}', 400),
    ("negative id", b'{"prompt":[-1]}', 400),
    ("stop id out of range", b'{"prompt":"x","stop_token_ids":[999]}', 400),
    ("five stops", b'{"prompt":"x","stop":["1","2","3","4","5"]}', 400),
    ("empty stop", b'{"prompt":"x","stop":""}', 400),
    ("empty stop in a list", b'{"prompt":"x","stop":[""]}', 400),
    ("many stops", json.dumps({"prompt": "x", "stop": ["a"] * 10**5}).encode(), 400),
    ("many prompts", json.dumps({"prompt": ["a"] * 10**6}).encode(), 400),
    ("prompts times n", json.dumps({"prompt": ["a"] * 64, "n": 4}).encode(), 400),
    ("nested", b'{"prompt":' + b"[" * 10**5 + b"]" * 10**5 + b"}", 400),
    ("nested less", b'{"prompt":"x","metadata":' + b"[" * 70 + b"]" * 70 + b"}", 400),
    ("not utf-8", b'{"prompt":"\xff"}', 400),
    ("lone surrogate", b'{"prompt":"\\ud800"}', 400),
    ("surrogate in a key", b'{"prompt":"x","\\udfff":1}', 400),
    ("model", b'{"prompt":"x","model":"gpt-4"}', 404),
    ("huge", b'{"prompt":"' + b"x" * (8 * 1024 * 1024) + b'"}', 413),
]


def check_envelope(response: httpx.Response, status: int) -> dict[str, Any]:
    """Return the error of a response that has the right status and shape."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/json"
    body = json.loads(response.text, parse_constant=pytest.fail)
    assert set(body["error"]) == {"message", "type", "param", "code"}
    return dict(body["error"])


def test_bad_bodies_are_refused(served: Served) -> None:
    """Each is a 4xx with the envelope, stream or not; the next good call is served."""
    for name, body, status in BAD_BODIES:
        variants = [body, body.replace(b"{", b'{"stream":true,', 1)]
        for content in variants if body.startswith(b'{"prompt') else [body]:
            response = served.http.post("/v1/completions", content=content)
            assert response.status_code == status, name
            check_envelope(response, status)

    assert served.http.post("/v1/completions", json={"prompt": "hi"}).status_code == 200
    assert served.http.get("/health").status_code == 200
    assert served.engine.num_in_flight == 0


def test_stream_options_need_a_stream(served: Served) -> None:
    """Options of a stream on a unary call are a mistake, and named."""
    response = served.http.post("/v1/completions", json={"prompt": "x", "stream_options": {}})

    assert check_envelope(response, 400)["param"] == "stream_options"


@pytest.mark.parametrize(
    ("messages", "param"),
    [
        ([], "messages"),
        ([{"role": "wizard", "content": "x"}], "messages"),
        ([{"role": "user"}], "messages"),
        ([{"role": "user", "content": None}], "messages"),
        ([{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}], "messages"),
        ([{"role": "user", "content": "x" * 600}], "messages"),
    ],
)
def test_bad_messages_are_refused(served: Served, messages: Any, param: str) -> None:
    """The error names the field."""
    response = served.http.post("/v1/chat/completions", json={"messages": messages})

    assert check_envelope(response, 400)["param"] == param


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("tools", [{"type": "function", "function": {"name": "f"}}]),
        ("tool_choice", "required"),
        ("response_format", {"type": "json_object"}),
        ("guided_json", {"type": "object"}),
        ("top_logprobs", 2),
        ("functions", [{}]),
        ("max_completion_tokens", 0),
        ("reasoning_effort", "high"),
    ],
)
def test_unsupported_chat_fields_are_refused_by_name(
    served: Served, field: str, value: Any
) -> None:
    """A field that would change the answer is never ignored."""
    body = {"messages": [{"role": "user", "content": "x"}], field: value}

    error = check_envelope(served.http.post("/v1/chat/completions", json=body), 400)

    assert error["param"] == field


def test_harmless_fields_are_accepted(served: Served) -> None:
    """Neutral values and fields that cannot change the answer do not matter."""
    body = {
        "messages": [{"role": "user", "content": "x"}],
        "max_tokens": 3,
        "user": "u",
        "metadata": {"a": "b"},
        "store": False,
        "presence_penalty": 0,
        "frequency_penalty": 0.0,
        "logit_bias": {},
        "tools": [],
        "tool_choice": "none",
        "parallel_tool_calls": False,
        "response_format": {"type": "text"},
        "logprobs": False,
        "n": None,
        "stop": None,
        "seed": None,
        "stream": None,
    }

    assert served.http.post("/v1/chat/completions", json=body).status_code == 200


def test_context_error_has_the_three_numbers(served: Served) -> None:
    """The limit, the prompt's tokens and the requested tokens are in the message."""
    response = served.http.post("/v1/completions", json={"prompt": "x" * 100, "max_tokens": 500})

    error = check_envelope(response, 400)
    assert error["code"] == "context_length_exceeded"
    assert all(number in error["message"] for number in ("512", "100", "500"))


def test_wrong_paths_and_methods_have_the_envelope(served: Served) -> None:
    """404 and 405 look like every other error, and 405 says what is allowed."""
    check_envelope(served.http.get("/nothing"), 404)
    check_envelope(served.http.get("/v1/models/other"), 404)
    response = served.http.get("/v1/completions")

    assert check_envelope(response, 405)["message"].endswith("Allowed: POST.")
    assert response.headers["allow"] == "POST"


@pytest.mark.parametrize("path", ["/v1/embeddings", "/v1/responses"])
def test_other_endpoints_are_refused_by_name(served: Served, path: str) -> None:
    """The message says why, or what to use."""
    error = check_envelope(served.http.post(path, json={}), 400)

    assert "serve" in error["message"]


@pytest.mark.parametrize("num_bytes", [70_000, 10**6])
def test_large_head_is_refused(served: Served, num_bytes: int) -> None:
    """Too many headers, in one read or many, are 431, which the client can read."""
    response = served.http.get("/health", headers={"big": "x" * num_bytes})

    assert check_envelope(response, 431)["code"] == "headers_too_large"
    assert served.http.get("/health").status_code == 200


@pytest.mark.parametrize(
    "head",
    [
        b"garbage\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nZZ\r\n",
        b"\x16\x03\x01\x02\x00" * 20,
    ],
)
def test_what_is_no_http_has_the_envelope(served: Served, head: bytes) -> None:
    """A client that speaks something else is told so in JSON, and the connection ends."""
    with served.connect() as connection:
        connection.sendall(head)
        answer = b"".join(iter(lambda: connection.recv(65536), b""))

    status_line, body = answer.split(b"\r\n", 1)[0], answer.split(b"\r\n\r\n", 1)[1]
    assert status_line == b"HTTP/1.1 400 Bad Request"
    assert json.loads(body)["error"]["code"] == "invalid_http"
    assert served.http.get("/health").status_code == 200


def test_refused_calls_leave_no_memory_behind(serve_in_thread: Serve) -> None:
    """Three hundred calls turned away leave less than 1 MiB behind.

    What the process takes once, for itself or its allocator, is not in all of three rounds.
    """
    engine = make_engine(GatedRunner(), make_limits(max_num_seqs=1), max_in_flight=1)
    served = serve_in_thread(engine)
    probe = HostProbe()

    def refuse(count: int) -> None:
        call = {"prompt": "x" * 100, "max_tokens": 4}
        for _ in range(count):
            assert served.http.post("/v1/completions", json=call).status_code == 429

    places = engine.reserve(1)
    refuse(100)
    held_bytes = []
    for count in (0, 300, 300, 300):
        refuse(count)
        gc.collect()
        held_bytes.append(probe.read().own_bytes)

    assert min(after - before for before, after in pairwise(held_bytes)) < MIB
    places.release()


def test_overload_is_429_with_retry_after(serve_in_thread: Serve) -> None:
    """Above the bound in flight, calls are refused at once; afterwards there is room."""
    runner = GatedRunner()
    engine = make_engine(runner, make_limits(max_num_seqs=2), max_in_flight=6)
    served = serve_in_thread(engine)

    def one(_: int) -> httpx.Response:
        response = served.http.post("/v1/completions", json={"prompt": "x", "max_tokens": 4})
        if response.status_code == 429 and engine.stats().num_rejected == 14:
            runner.open()
        return response

    with ThreadPoolExecutor(20) as pool:
        responses = list(pool.map(one, range(20)))

    refused = [response for response in responses if response.status_code == 429]
    assert len(refused) == 14
    assert all(int(response.headers["retry-after"]) >= 1 for response in refused)
    assert check_envelope(refused[0], 429)["type"] == "rate_limit_error"
    assert served.http.post("/v1/completions", json={"prompt": "x"}).status_code == 200


def test_waiting_prompt_tokens_are_bounded(serve_in_thread: Serve) -> None:
    """Beside a long prompt that waits a second one is refused, counted, and soon let in."""
    runner = GatedRunner()
    engine = make_engine(runner)
    queue = PromptQueue(100, engine.count_rejected)
    served = serve_in_thread(engine, prompt_queue=queue)
    long = {"prompt": "x" * 90, "max_tokens": 1}
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(served.http.post, "/v1/completions", json=long)
        wait_for(engine, lambda: queue.num_tokens == 90)
        refused = served.http.post("/v1/completions", json=long)
        num_rejected = engine.stats().num_rejected
        runner.open()
        assert waiting.result().status_code == 200

    assert "90 prompt tokens" in check_envelope(refused, 429)["message"]
    assert int(refused.headers["retry-after"]) >= 1
    assert num_rejected == 1
    assert served.http.post("/v1/completions", json=long).status_code == 200


def test_more_choices_than_places_are_a_400(serve_in_thread: Serve) -> None:
    """A call that could never be in flight is not told to come back later."""
    served = serve_in_thread(make_engine(max_in_flight=4))

    response = served.http.post("/v1/completions", json={"prompt": "x", "n": 5})

    assert check_envelope(response, 400)["param"] == "n"


def test_model_without_template_has_no_chat(serve_in_thread: Serve) -> None:
    """The error points to the endpoint that works."""
    served = serve_in_thread(chat_template=None)

    body = {"messages": [{"role": "user", "content": "x"}]}
    error = check_envelope(served.http.post("/v1/chat/completions", json=body), 400)

    assert "/v1/completions" in error["message"]
