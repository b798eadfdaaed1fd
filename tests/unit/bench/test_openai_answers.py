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
    refused,
    said,
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
    assert key_headers({"NANOSERVE_API_KEY": " a-key "}) == {"authorization": "Bearer a-key"}
    assert key_headers({}) == key_headers({"NANOSERVE_API_KEY": ""}) == {}


@pytest.mark.parametrize("key", ["\u043a\u043b\u044e\u0447", "two\nlines", "a\x00b"])
def test_a_key_that_no_header_can_hold_is_not_quoted(key: str) -> None:
    """Nor sent: a line of it would be a header of its own."""
    with pytest.raises(OptionError, match="NANOSERVE_API_KEY cannot be sent") as refusal:
        key_headers({"NANOSERVE_API_KEY": key})
    assert key not in str(refusal.value)


@pytest.mark.parametrize(
    ("headers", "advice"),
    [({}, "put it into NANOSERVE_API_KEY"), ({"authorization": "Bearer x"}, "refuses the key in")],
)
def test_a_key_is_asked_for_by_its_variable(headers: dict[str, str], advice: str) -> None:
    """A guarded server is not taken for a stranger, and a wrong key not for none."""
    request = httpx.Request("GET", f"{URL}/v1/models", headers=headers)

    with pytest.raises(NotOpenAIError, match=advice):
        first_model(httpx.Response(401, content=b"{}", request=request))


@pytest.mark.parametrize(
    ("status", "body", "headers", "words"),
    [
        (404, '{"error":{"message":"No m."}}', {}, "answered 404: No m."),
        (404, '{"detail":"x"}', {}, """answered 404: '{"detail":"x"}'. Check the address: is it"""),
        (400, '{"error":{"message":"Too long."}}', {}, "answered 400: Too long."),
        (500, "", {}, "answered 500: nothing. Its log says why."),
        (
            502,
            "<html><title> Bad\nGateway </title>",
            {},
            "502: a web page, 'Bad\\nGateway'. Its log",
        ),
        (
            503,
            '{"error":{"message":"Loading"}}',
            {"retry-after": "7"},
            "Loading. Try again in 7 s.",
        ),
        (503, "Loading", {"retry-after": "Wed, 21 Oct"}, "'Loading'. Try again later."),
        (429, '{"error":{"message":"Full"}}', {"retry-after": "1"}, "Full. Try again in 1 s."),
        (307, "", {"location": "http://b/"}, "answered 307: it sends to 'http://b/'. Check"),
    ],
)
def test_an_error_status_has_address_number_and_what_to_do(
    status: int, body: str, headers: dict[str, str], words: str
) -> None:
    """Whatever a server or a proxy before it says, it stands in a sentence of ours."""
    request = httpx.Request("GET", f"{URL}/v1/models")
    message = str(refused(httpx.Response(status, text=body, headers=headers, request=request)))

    assert message.startswith(f"{URL}/v1/models answered {status}: ")
    assert words in message
    assert message.endswith((".", "?"))


@pytest.mark.parametrize("url", ["", "x", "ftp://a", "http://", "http://h:99999", "http://h:x"])
def test_what_is_no_address_is_an_option_error(url: str) -> None:
    """Both commands refuse it before they connect."""
    with pytest.raises(OptionError, match="--url"):
        ChatSession(url)
    with pytest.raises(OptionError, match="--url"):
        run_bench(ServeBenchOptions(url=url))
    assert check_url(f"{URL}/") == URL


@pytest.mark.parametrize(
    "url",
    [
        "http://[::1",
        "http://a:b",
        "http://\x00",
        "http://a..b",
        f"http://{'a' * 70}.b",
        "http://a?b",
        "http://a/#b",
    ],
)
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
    "body", [b"<html>", b"[]", b"\xff", b'{"data":[]}', b'{"data":[{"id":1}]}', b"[" * 100_000]
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
    assert payload_of(f"data:{payload}") == payload  # the space is optional
    assert payload_of(": comment") == ""


@pytest.mark.parametrize(
    ("body", "message"),
    [('{"error":{"message":"no"}}', "no"), ('{"error":"x"}', '"x"'), ("oops", "oops")],
)
def test_error_frame_is_the_servers_message(body: str, message: str) -> None:
    """An error of another shape is quoted."""
    assert message in said(body)
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
