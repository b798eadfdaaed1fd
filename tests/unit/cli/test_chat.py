"""`nanoserve chat` on a pipe and on a terminal, against servers that fail in every way."""

import io
import socket
import sys
from collections.abc import Callable, Iterator

import pytest
from typer.testing import CliRunner, Result

from nanoserve.bench.openai_answers import NotOpenAIError
from nanoserve.bench.server_client import ServerUnreachableError
from nanoserve.cli.chat import ChatSession, run_chat
from nanoserve.cli.main import app
from nanoserve.errors import OptionError
from tests.openai_server import (
    DONE,
    OK,
    Answer,
    Body,
    chat_event,
    chunked,
    openai_server,
    refusal,
    response,
)

CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


async def hello(body: Body) -> Answer:
    """Greet whatever was asked."""
    yield OK + chat_event("hello ") + chat_event(body["messages"][-1]["content"]) + DONE


def answer_of(words: bytes) -> Callable[[Body], Answer]:
    """Return a server's answer that consists of these bytes and then ends."""

    async def answer(body: Body) -> Answer:
        yield words

    return answer


def run(url: str, typed: str | bytes = "hi\n", *flags: str) -> Result:
    """Return what `chat` came to whose standard input is a pipe."""
    return CliRunner().invoke(app, ["chat", "--url", url, *flags], input=typed)


class Terminal(io.StringIO):
    """Standard input where somebody sits."""

    def isatty(self) -> bool:
        return True


@pytest.fixture
def typed(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str | BaseException]]:
    """Yield a list of what is typed at each prompt: lines, or an error for a key."""
    keys: list[str | BaseException] = []

    def prompt(words: str) -> str:
        key = keys.pop(0)
        if isinstance(key, BaseException):
            raise key
        return key

    monkeypatch.setattr("builtins.input", prompt)
    monkeypatch.setattr(sys, "stdin", Terminal())
    yield keys
    assert not keys, "not all of it was read"


def test_no_server_is_said_before_a_question() -> None:
    """With the address that was tried."""
    with socket.socket() as bound:  # and held, so that nobody else listens there meanwhile
        bound.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{bound.getsockname()[1]}"
        result = run(url)

    assert isinstance(result.exception, ServerUnreachableError)
    assert f"No server answers at {url}: nothing listens there" in str(result.exception)


def test_every_line_of_a_pipe_is_a_question() -> None:
    """Lines without words are none, and the conversation goes on from one to the next."""
    with openai_server(hello) as server:
        result = run(server.url, "\n one\n\n\ntwo")

    assert result.exit_code == 0
    assert result.stdout == "hello one\nhello two\n"
    roles = [[message["role"] for message in body["messages"]] for body in server.bodies]
    assert roles == [["user"], ["user", "assistant", "user"]]


def test_bytes_that_are_no_text_are_sent_as_marks() -> None:
    """A question in another encoding is asked as far as it can be read."""
    with openai_server(hello) as server:
        result = run(server.url, b"caf\xe9\n")

    assert result.exit_code == 0, result.exception
    assert server.bodies[0]["messages"][0]["content"] == "caf\ufffd"


def test_a_url_may_end_in_v1() -> None:
    """As that of `bench serve`."""
    with openai_server(hello) as server:
        result = run(f"{server.url}/v1")

    assert result.stdout == "hello hi\n"


def test_closed_input_has_no_questions(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process may be started without any."""
    monkeypatch.setattr(sys, "stdin", None)
    with openai_server(hello) as server:
        assert run_chat(ChatSession(server.url)) == 0


@pytest.mark.parametrize(
    ("answer", "printed", "message"),
    [
        (refusal(404, "No such model."), "", "/v1/chat/completions answered 404: No such model."),
        (refusal(401, "Wrong key"), "", "answered 401: Wrong key. It wants an API key"),
        (refusal(503, "Loading", "Retry-After: 5"), "", "503: Loading. Try again in 5 s."),
        (
            response(502, "<html><title>Bad</title>"),
            "",
            "502: a web page, 'Bad'. Its log says why.",
        ),
        (
            response(200, "<html>", "Content-Type: text/html; charset=utf-8"),
            "",
            "answered 200 and no stream: a web page. Check the address",
        ),
        (b"", "", "broke off: it closed the connection. Its log says why."),
        (OK + chat_event("hel"), "hel\n", "ended its answer before it was complete"),
        (CHUNKED + chunked(chat_event("hel")), "hel\n", "broke off: it closed the connection."),
        (
            OK + chat_event("hel") + b'data: {"error": {"message": "The engine died."}}\n\n',
            "hel\n",
            "ended its answer with an error: The engine died.",
        ),
    ],
)
def test_an_answer_that_fails_is_a_message_below_it(
    answer: bytes, printed: str, message: str
) -> None:
    """What came is printed, its line is ended, and the error is one of ours."""
    with openai_server(answer_of(answer)) as server:
        result = run(server.url)

    assert isinstance(result.exception, NotOpenAIError | ServerUnreachableError)
    assert message in str(result.exception)
    assert result.stdout == printed
    assert result.exception.exit_code == 1


def test_an_empty_answer_is_said_to_be_one() -> None:
    """On stderr: the line for the answer is there, and empty."""
    with openai_server(answer_of(OK + DONE)) as server:
        result = run(server.url)

    assert (result.exit_code, result.stdout) == (0, "\n")
    assert result.stderr == "nanoserve: The answer has no text.\n"


def test_a_terminal_goes_on_after_an_answer_that_fails(
    typed: list[str | BaseException], capsys: pytest.CaptureFixture[str]
) -> None:
    """A queue that is full for a moment does not end a conversation; the question is not in it."""
    refusals = [refusal(429, "Full", "Retry-After: 1")]

    async def answer(body: Body) -> Answer:
        answers = answer_of(refusals.pop()) if refusals else hello
        async for piece in answers(body):
            yield piece

    typed += ["one", "two", ""]
    with openai_server(answer) as server:
        assert run_chat(ChatSession(server.url)) == 0

    out, err = capsys.readouterr()
    assert out == f"a-model at {server.url}; an empty line ends.\nhello two\n"
    assert "answered 429: Full. Try again in 1 s." in err
    assert [message["content"] for message in server.bodies[1]["messages"]] == ["two"]


@pytest.mark.parametrize("key", [EOFError(), KeyboardInterrupt()])
def test_ctrl_d_and_ctrl_c_at_the_prompt_end_its_line(
    key: BaseException, typed: list[str | BaseException], capsys: pytest.CaptureFixture[str]
) -> None:
    """The shell's next prompt is not behind ours."""
    typed += [key]
    with openai_server(hello) as server:
        assert run_chat(ChatSession(server.url)) == 0

    assert capsys.readouterr().out.endswith("an empty line ends.\n\n")


def test_a_terminal_gets_no_control_characters_of_a_models_name(
    typed: list[str | BaseException], capsys: pytest.CaptureFixture[str]
) -> None:
    """It is the server's word as well."""
    typed += [""]
    with openai_server(hello, response(200, r'{"data": [{"id": "a\u001b[2Jb"}]}')) as server:
        run_chat(ChatSession(server.url))

    assert capsys.readouterr().out.startswith("a\N{REPLACEMENT CHARACTER}[2Jb at ")


def test_a_terminal_gets_no_control_characters(
    typed: list[str | BaseException], capsys: pytest.CaptureFixture[str]
) -> None:
    """What a model says cannot move the cursor; a file gets every character."""
    words = "\x1b[2Ja\r\n\tb\x9b\x07"
    typed += ["one", ""]
    with openai_server(answer_of(OK + chat_event(words) + DONE)) as server:
        run_chat(ChatSession(server.url))
        piped = run(server.url)

    assert capsys.readouterr().out.endswith("\ufffd[2Ja\n\tb\ufffd\ufffd\n")
    assert piped.stdout_bytes.decode() == f"{words}\n"


def interrupted(session: ChatSession, client: object, question: str) -> Iterator[str]:
    """Stand for an answer in whose midst Ctrl-C is pressed."""
    yield "hel"
    raise KeyboardInterrupt


def test_ctrl_c_stops_an_answer_and_not_a_conversation(
    typed: list[str | BaseException],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On a terminal the next prompt follows."""
    monkeypatch.setattr(ChatSession, "ask", interrupted)
    typed += ["one", ""]
    with openai_server(hello) as server:
        assert run_chat(ChatSession(server.url)) == 0

    assert capsys.readouterr().out.endswith("hel [stopped]\n")


def test_ctrl_c_ends_a_pipe(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody is there to type on; the exit code is a shell's."""
    monkeypatch.setattr(ChatSession, "ask", interrupted)
    with openai_server(hello) as server:
        result = run(server.url, "one\ntwo\n")

    assert result.exit_code == 130
    assert result.stdout == "hel"


@pytest.mark.parametrize(
    ("flag", "value"),
    [
        ("--max-tokens", "0"),
        ("--max-tokens", "-3"),
        ("--temperature", "2.1"),
        ("--system", "\udcff"),
    ],
)
def test_options_no_request_can_have_are_refused_before_a_connection(flag: str, value: str) -> None:
    """With the flag and its value."""
    result = run("http://127.0.0.1:1", "hi\n", flag, value)

    assert isinstance(result.exception, OptionError)
    assert str(result.exception).startswith(f"{flag} is ")
