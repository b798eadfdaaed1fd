"""`nanoserve chat`: a conversation with a running server in the terminal, streamed."""

import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field

import httpx

from nanoserve.bench.client_key import key_headers
from nanoserve.bench.openai_answers import (
    DONE,
    broken_off,
    check_url,
    first_model,
    payload_of,
    read_chunk,
    refusal,
)
from nanoserve.errors import NanoserveError, OptionError

_TIMEOUT = httpx.Timeout(10.0, read=None)  # an answer may take as long as it takes


class ChatError(NanoserveError):
    """The server cannot be reached."""


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
            OptionError: The address or the temperature is impossible.
        """
        self.url = check_url(self.url)
        if not 0.0 <= self.temperature <= 2.0:
            message = f"--temperature is {self.temperature}; it must be between 0 and 2."
            raise OptionError(message)
        if self.system and not self.messages:
            self.messages.append({"role": "system", "content": self.system})

    def ask(self, client: httpx.Client, question: str) -> Iterator[str]:
        """Send `question`; yield the answer as it comes; keep both in the conversation.

        Raises:
            ChatError: The server cannot be reached.
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
        answer = ""
        try:
            with client.stream("POST", f"{self.url}/v1/chat/completions", json=body) as response:
                if response.status_code != httpx.codes.OK:
                    response.read()
                    raise refusal(response.text)
                for text in _texts(response.iter_lines()):
                    answer += text
                    yield text
        except httpx.HTTPError as error:
            raise ChatError(_unreachable(self.url, error)) from error
        self.messages = [*messages, {"role": "assistant", "content": answer}]

    def model(self, client: httpx.Client) -> str:
        """Return the name of the model that is served.

        Raises:
            ChatError: No server answers.
        """
        try:
            return first_model(client.get(f"{self.url}/v1/models"))
        except httpx.HTTPError as error:
            raise ChatError(_unreachable(self.url, error)) from error


def run_chat(session: ChatSession) -> int:
    """Hold a conversation on stdin and stdout until an empty line or the end of input."""
    is_terminal = sys.stdin.isatty()
    with httpx.Client(timeout=_TIMEOUT, headers=key_headers(os.environ)) as client:
        model = session.model(client)  # before the first question is typed
        if is_terminal:
            print(f"{model} at {session.url}; an empty line ends.")
        while question := _read_question(is_terminal):
            try:
                for text in session.ask(client, question):
                    print(text, end="", flush=True)
            except KeyboardInterrupt:
                print(" [stopped]", end="")
            print()
    return 0


def _read_question(is_terminal: bool) -> str:
    try:
        return input("> " if is_terminal else "").strip()
    except (EOFError, KeyboardInterrupt):
        return ""


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


def _unreachable(url: str, error: Exception) -> str:
    return f"No nanoserve answers at {url} ({error}). Start one with `make serve` or `nanoserve serve`, or give --url."
