"""What an OpenAI-like server answers, read with distrust.

Shared by the commands that talk to a server: whatever listens at an address, they end
with one message. Knows no transport errors; httpx raises those.
"""

import json
from typing import Any

import httpx

from nanoserve.bench.client_key import KEY_VARIABLE
from nanoserve.errors import NanoserveError, OptionError

DONE = "[DONE]"
_MAX_SHOWN_CHARS = 200


class NotOpenAIError(NanoserveError):
    """The server answers, but not as the OpenAI API says; or it answers with an error."""


def check_url(url: str) -> str:
    """Return a server's base address without a slash at its end.

    Raises:
        OptionError: It is no address of an HTTP server.
    """
    try:
        parsed = httpx.URL(url)
    except (httpx.InvalidURL, ValueError):
        parsed = httpx.URL()  # refused as one without a host is
    if parsed.scheme not in ("http", "https") or not parsed.host:
        message = f"--url is {url!r}; it must be like http://127.0.0.1:8000."
        raise OptionError(message)
    if parsed.port is not None and not 1 <= parsed.port <= 65535:
        message = f"--url has the port {parsed.port}; it must be between 1 and 65535."
        raise OptionError(message)
    return url.rstrip("/")


def first_model(response: httpx.Response) -> str:
    """Return the id of the first model of GET /v1/models.

    Raises:
        NotOpenAIError: The answer is no list of models.
    """
    if response.status_code == httpx.codes.UNAUTHORIZED:
        message = f"{response.url} wants an API key; put it into {KEY_VARIABLE}."
        raise NotOpenAIError(message)
    try:
        model = response.json()["data"][0]["id"]
    except (ValueError, LookupError, TypeError):
        model = None
    if response.status_code != httpx.codes.OK or not isinstance(model, str):
        problem = f"GET {response.url} was answered with {response.status_code}"
        message = f"{problem} and no list of models: {_shown(response.text)}. Is it a nanoserve?"
        raise NotOpenAIError(message)
    return model


def refusal(body: str) -> NotOpenAIError:
    """Return the error that a response other than 200 stands for."""
    try:
        text = json.loads(body)["error"]["message"]
    except (ValueError, LookupError, TypeError):
        text = None
    return NotOpenAIError(text if isinstance(text, str) else f"The server answered: {_shown(body)}")


def payload_of(line: str) -> str:
    """Return the data of a line of an event stream; '' for a line that has none."""
    return line.removeprefix("data: ") if line.startswith("data: ") else ""


def read_chunk(payload: str) -> dict[str, Any]:
    """Return a chunk, whose `choices` is a list of objects.

    Raises:
        NotOpenAIError: It is something else, or the error that ends a stream.
    """
    try:
        chunk = json.loads(payload)
    except (ValueError, RecursionError):
        chunk = None
    if isinstance(chunk, dict) and chunk.get("error") is not None:  # some say null in each
        raise refusal(payload)
    choices = chunk.get("choices") if isinstance(chunk, dict) else None
    if not isinstance(choices, list) or not all(isinstance(choice, dict) for choice in choices):
        message = f"The server sent an event that is no chunk of an answer: {_shown(payload)}"
        raise NotOpenAIError(message)
    return dict(chunk)


def broken_off() -> NotOpenAIError:
    """Return the error of a stream that ended without its [DONE]."""
    return NotOpenAIError("The server ended its answer before it was complete. See its log.")


def _shown(text: str) -> str:
    return repr(text[:_MAX_SHOWN_CHARS])
