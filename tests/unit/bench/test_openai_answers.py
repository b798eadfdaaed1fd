"""Answers of strange servers: one message each, for every command that talks to one."""

import httpx
import pytest

from nanoserve.bench.client_key import key_headers
from nanoserve.bench.openai_answers import (
    NotOpenAIError,
    check_url,
    first_model,
    payload_of,
    read_chunk,
    refusal,
)
from nanoserve.bench.serve_bench_options import ServeBenchOptions
from nanoserve.bench.servebench import run_bench
from nanoserve.cli.chat import ChatSession
from nanoserve.errors import OptionError

URL = "http://127.0.0.1:8000"
MODELS = b'{"data": [{"id": "m"}]}'


def test_key_comes_from_the_environment() -> None:
    """Commands that talk to a guarded server send it; without one they send nothing."""
    assert key_headers({"NANOSERVE_API_KEY": "a-key"}) == {"authorization": "Bearer a-key"}
    assert key_headers({}) == key_headers({"NANOSERVE_API_KEY": ""}) == {}


def test_a_missing_key_is_asked_for_by_its_variable() -> None:
    """A guarded server is not taken for a stranger."""
    request = httpx.Request("GET", f"{URL}/v1/models")

    with pytest.raises(NotOpenAIError, match="put it into NANOSERVE_API_KEY"):
        first_model(httpx.Response(401, content=b"{}", request=request))


@pytest.mark.parametrize("url", ["", "x", "ftp://a", "http://", "http://h:99999", "http://h:x"])
def test_what_is_no_address_is_an_option_error(url: str) -> None:
    """Both commands refuse it before they connect."""
    with pytest.raises(OptionError, match="--url"):
        ChatSession(url)
    with pytest.raises(OptionError, match="--url"):
        run_bench(ServeBenchOptions(url=url))
    assert check_url(f"{URL}/") == URL


@pytest.mark.parametrize("url", ["http://[::1", "http://a:b", "http://\x00"])
def test_what_is_no_address_is_refused_with_one_that_is(url: str) -> None:
    """Not in the words of the library that reads addresses."""
    with pytest.raises(OptionError) as refusal:
        check_url(url)

    assert str(refusal.value) == f"--url is {url!r}; it must be like http://127.0.0.1:8000."


@pytest.mark.parametrize("temperature", [float("nan"), -1.0, float("inf")])
def test_impossible_temperature_is_an_option_error(temperature: float) -> None:
    """JSON has no such number, so it cannot be left to the server."""
    with pytest.raises(OptionError, match="--temperature"):
        ChatSession(URL, temperature=temperature)


@pytest.mark.parametrize(
    "body", [b"<html>", b"[]", b"\xff", b'{"data":[]}', b'{"data":[{"id":1}]}']
)
def test_other_servers_have_no_models(body: bytes) -> None:
    """The message quotes what came."""
    request = httpx.Request("GET", f"{URL}/v1/models")

    with pytest.raises(NotOpenAIError, match="no list of models"):
        first_model(httpx.Response(200, content=body, request=request))
    assert first_model(httpx.Response(200, content=MODELS, request=request)) == "m"


@pytest.mark.parametrize(
    "payload", ["hello", "[1]", "{}", "null", '{"choices":null}', '{"choices":[1]}', "\ufffd"]
)
def test_events_that_are_no_chunks_are_refused(payload: str) -> None:
    """Whatever follows `data: `, a chunk has a list of choices."""
    with pytest.raises(NotOpenAIError, match="no chunk"):
        read_chunk(payload)
    assert payload_of(f"data: {payload}") == payload
    assert payload_of(": comment") == ""


@pytest.mark.parametrize(
    ("body", "message"),
    [('{"error":{"message":"no"}}', "no"), ('{"error":"x"}', "answered"), ("oops", "oops")],
)
def test_error_frame_is_the_servers_message(body: str, message: str) -> None:
    """An error of another shape is quoted."""
    assert message in str(refusal(body))
    if body.startswith("{"):
        with pytest.raises(NotOpenAIError, match=message):
            read_chunk(body)


@pytest.mark.parametrize(
    "stream", [b"", b'data: {"choices":[{"delta":{"content":"a"}}]}\n\n', b"data: x\n\n"]
)
def test_chat_says_when_an_answer_breaks_off(stream: bytes) -> None:
    """An answer without its [DONE] is no answer, and is not kept in the conversation."""

    def answer(request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, content=MODELS if request.method == "GET" else stream)

    session = ChatSession(URL)
    client = httpx.Client(transport=httpx.MockTransport(answer))
    with client, pytest.raises(NotOpenAIError):
        list(session.ask(client, "hi"))

    assert session.messages == []
