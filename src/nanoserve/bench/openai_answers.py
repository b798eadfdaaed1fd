"""What an OpenAI-like server answers, read with distrust.

Shared by the commands that talk to a server: whatever listens at an address, they end
with one message. Knows no transport errors; see `server_client`.
"""

import json
import re
from typing import Any

import httpx

from nanoserve.bench.server_failures import status_advice
from nanoserve.errors import NanoserveError, OptionError

DONE = "[DONE]"
_MAX_SHOWN_CHARS = 200
_IS_IT_ONE = "Check the address: is it a server of the OpenAI API?"
_NO_STREAM = ("text/html", "application/json")
_TITLE = re.compile(r"<title>\s*([^<]*?)\s*</title>", re.IGNORECASE)
_PAGE_START = re.compile(r"\s*<(?:!doctype\b|html\b)", re.IGNORECASE)


class NotOpenAIError(NanoserveError):
    """The server answers, but not as the OpenAI API says; or it answers with an error."""


def check_url(url: str) -> str:
    """Return a server's base address without a slash at its end.

    Raises:
        OptionError: It is no address of an HTTP server.
    """
    try:
        parsed = httpx.URL(url)
        parsed.raw_host.decode().encode("idna")  # as the system's look-up does, which would raise
    except (httpx.InvalidURL, ValueError):
        parsed = httpx.URL()  # refused as one without a host is
    has_more = bool(parsed.query or parsed.fragment)  # paths are put behind it
    if parsed.scheme not in ("http", "https") or not parsed.host or has_more:
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
    if response.status_code != httpx.codes.OK:
        raise refused(response)
    try:
        model = response.json()["data"][0]["id"]
    except (ValueError, LookupError, TypeError, RecursionError):
        model = None
    if not isinstance(model, str):
        problem = f"{response.url} answered 200 and no list of models"
        message = f"{problem}: {said(response.text)}. {_IS_IT_ONE}"
        raise NotOpenAIError(message)
    return model


def check_stream(response: httpx.Response) -> None:
    """Refuse an answer that is no stream; what a stream says is left to be read.

    Raises:
        NotOpenAIError: It is an error, or a page or an object instead.
    """
    is_ok = response.status_code == httpx.codes.OK
    if is_ok and not response.headers.get("content-type", "").startswith(_NO_STREAM):
        return
    response.read()
    if is_ok:
        message = f"{response.url} answered 200 and no stream: {said(response.text)}. {_IS_IT_ONE}"
        raise NotOpenAIError(message)
    raise refused(response)


def refused(response: httpx.Response) -> NotOpenAIError:
    """Return the error that a response other than 200 stands for, with what to do about it.

    Args:
        response: Its body has been read.
    """
    status, headers = response.status_code, response.headers
    words = said(response.text).removesuffix(".")
    if response.has_redirect_location:
        words = f"it sends to {_shown(headers['location'])}"
    has_key = "authorization" in response.request.headers
    advice = status_advice(status, has_key=has_key, retry_after=headers.get("retry-after"))
    if advice is None and _message_of(response.text) is None:
        advice = _IS_IT_ONE
    return NotOpenAIError(
        " ".join(filter(None, (f"{response.url} answered {status}: {words}.", advice)))
    )


def said(body: str) -> str:
    """Return what an answer says that is none: its message, a page's title, or how it begins."""
    message = _message_of(body)
    if message is not None:
        return message
    if _PAGE_START.match(body) is None:
        return _shown(body) if body.strip() else "nothing"
    title = _TITLE.search(body)
    return f"a web page, {_shown(title[1])}" if title is not None else "a web page"


def _message_of(body: str) -> str | None:
    """Return the message of an error as OpenAI writes it; None where there is none."""
    try:
        text = json.loads(body)["error"]["message"]
    except (ValueError, LookupError, TypeError, RecursionError):
        return None
    return text.strip() or None if isinstance(text, str) else None


def payload_of(line: str) -> str:
    """Return the data of a line of an event stream; '' for a line that has none."""
    return line.removeprefix("data:").removeprefix(" ") if line.startswith("data:") else ""


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
        message = f"The server ended its answer with an error: {said(payload)}"
        raise NotOpenAIError(message)
    choices = chunk.get("choices") if isinstance(chunk, dict) else None
    if not isinstance(choices, list) or not all(isinstance(choice, dict) for choice in choices):
        message = f"The server sent an event that is no chunk of an answer: {_shown(payload)}"
        raise NotOpenAIError(message)
    return dict(chunk)


def broken_off() -> NotOpenAIError:
    """Return the error of a stream that ended without its [DONE]."""
    return NotOpenAIError("The server ended its answer before it was complete. Its log says why.")


def _shown(text: str) -> str:
    return repr(text[:_MAX_SHOWN_CHARS])
