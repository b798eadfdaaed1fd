"""`nanoserve chat`: a conversation with a running server in the terminal, streamed."""

import contextlib
import io
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field

import httpx

from nanoserve.bench.openai_answers import (
    DONE,
    NotOpenAIError,
    broken_off,
    check_stream,
    check_url,
    first_model,
    payload_of,
    read_chunk,
)
from nanoserve.bench.server_client import (
    CONNECT_S,
    ServerUnreachableError,
    cut_short,
    server_client,
    unreachable,
)
from nanoserve.errors import OptionError

_ANSWER_TIMEOUT = httpx.Timeout(CONNECT_S, read=None)  # an answer may take as long as it takes
_MAX_TEMPERATURE = 2.0
# What moves a terminal's cursor, colours it or sets its title; an answer is text alone.
_CONTROLS = dict.fromkeys((*range(32), *range(127, 160)), "\N{REPLACEMENT CHARACTER}")
_SHOWN = _CONTROLS | {ord("\n"): "\n", ord("\t"): "\t", ord("\r"): ""}


@dataclass(slots=True)
class ChatSession:
    """A conversation and where it is held.

    Attributes:
        url: Base address of the server.
        system: System message; '' for none.
        temperature: Sampling temperature.
        max_tokens: Most tokens of one answer.
        messages: The conversation so far.
    """

    url: str
    system: str = ""
    temperature: float = 0.7
    max_tokens: int = 512
    messages: list[dict[str, str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Begin with the system message.

        Raises:
            OptionError: One of them is impossible.
        """
        self.url = check_url(self.url).removesuffix("/v1")
        if not 0.0 <= self.temperature <= _MAX_TEMPERATURE:
            message = f"--temperature is {self.temperature}; it must be between 0 and 2."
            raise OptionError(message)
        if self.max_tokens < 1:
            message = f"--max-tokens is {self.max_tokens}; it must be at least 1."
            raise OptionError(message)
        try:
            self.system.encode()
        except UnicodeEncodeError:  # of bytes that are no text in the shell's encoding
            message = f"--system is {self.system!r:.60}; it must be UTF-8 text."
            raise OptionError(message) from None
        if self.system and not self.messages:
            self.messages.append({"role": "system", "content": self.system})

    def ask(self, client: httpx.Client, question: str) -> Iterator[str]:
        """Send `question`; yield the answer as it comes; keep both in the conversation.

        Raises:
            ServerUnreachableError: The server cannot be reached, or went away.
            NotOpenAIError: It refused, broke off, or is another kind of server.
        """
        messages = [*self.messages, {"role": "user", "content": question}]
        body = {
            "model": self.model(client),
            "messages": messages,
            "stream": True,
            "temperature": self.temperature,
            "max_tokens": self.max_tokens,
        }
        url, answer = f"{self.url}/v1/chat/completions", ""
        try:
            with client.stream("POST", url, json=body, timeout=_ANSWER_TIMEOUT) as response:
                check_stream(response)
                for text in _texts(response.iter_lines()):
                    answer += text
                    yield text
        except httpx.HTTPError as error:
            raise cut_short(self.url, error) from error
        self.messages = [*messages, {"role": "assistant", "content": answer}]

    def model(self, client: httpx.Client) -> str:
        """Return the name of the model that is served.

        Raises:
            ServerUnreachableError: No server answers.
            NotOpenAIError: It is another kind of server, or wants a key.
        """
        try:
            return first_model(client.get(f"{self.url}/v1/models"))
        except httpx.HTTPError as error:
            raise unreachable(self.url, error) from error


def run_chat(session: ChatSession) -> int:
    """Hold a conversation on stdin and stdout; return the exit code.

    On a terminal an empty line or the end of input ends it, and an answer that fails is a
    message. Elsewhere each line is a question, and the first that fails is an error.

    Raises:
        OptionError: The key in the environment cannot be sent.
        ServerUnreachableError: As `ChatSession.ask` does.
        NotOpenAIError: As `ChatSession.ask` does.
    """
    is_terminal = sys.stdin is not None and sys.stdin.isatty()
    for stream in (sys.stdin, sys.stdout):  # what is no text in their encoding is no error
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    with server_client() as client:
        model = session.model(client)  # before the first question is typed
        if is_terminal:
            print(f"{model.translate(_SHOWN)} at {session.url}; an empty line ends.")
        for question in _typed_questions() if is_terminal else _piped_questions():
            try:
                _print_answer(session, client, question, is_terminal=is_terminal)
            except (ServerUnreachableError, NotOpenAIError) as error:
                if not is_terminal:
                    raise
                print(f"nanoserve: {error}", file=sys.stderr)
    return 0


def _print_answer(
    session: ChatSession, client: httpx.Client, question: str, *, is_terminal: bool
) -> None:
    """Print an answer, or what there is of it, and end its line."""
    has_text = False
    try:
        for text in session.ask(client, question):
            has_text = has_text or bool(text)
            print(text.translate(_SHOWN) if is_terminal else text, end="", flush=True)
    except KeyboardInterrupt:
        if not is_terminal:
            raise
        print(" [stopped]", end="")
    except (ServerUnreachableError, NotOpenAIError):
        if has_text:
            print()
        raise
    print()
    if not has_text:
        print("nanoserve: The answer has no text.", file=sys.stderr)


def _typed_questions() -> Iterator[str]:
    """Yield what is typed until an empty line, the end of input, or Ctrl-C at the prompt."""
    with contextlib.suppress(ImportError):
        import readline  # noqa: F401  # or the terminal cuts a line off at 4,096 bytes
    try:
        while question := input("> ").strip():
            yield question
    except (EOFError, KeyboardInterrupt):
        print()  # the shell's prompt begins a line of its own


def _piped_questions() -> Iterator[str]:
    for line in sys.stdin or ():
        if question := line.strip():
            yield question


def _texts(lines: Iterator[str]) -> Iterator[str]:
    """Yield the content of each server-sent event up to [DONE]; an error frame raises."""
    for line in lines:
        payload = payload_of(line)
        if payload == DONE:
            return
        for choice in read_chunk(payload)["choices"] if payload else ():
            delta = choice.get("delta")
            text = delta.get("content") if isinstance(delta, dict) else None
            if isinstance(text, str):
                yield text
    raise broken_off()
