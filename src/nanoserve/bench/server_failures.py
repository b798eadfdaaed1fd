"""Why a server gave no answer that can be used, and what to do: one place for every command.

Needs no HTTP library: whichever was used, its error has the system's among its causes.
"""

import errno
import http.client
import os
import re
import socket
import ssl
from collections.abc import Iterator
from http import HTTPStatus
from typing import NamedTuple

from nanoserve.bench.client_key import key_advice
from nanoserve.error_reasons import reason_of

_CHECK_ADDRESS = "Check the address and its port."
_CHECK_PORT = f"{_CHECK_ADDRESS} A server of TLS is given as https://."
_ERRNO = re.compile(r"\[Errno (\d+)\]")  # asyncio puts several addresses' errors into one text


class Failure(NamedTuple):
    """What went wrong with a connection.

    Attributes:
        reason: Stands behind an address and a colon, without a full stop.
        advice: What to do, in a sentence.
    """

    reason: str
    advice: str


# A server of TLS does either to a client that speaks plain HTTP.
CLOSED = Failure("it closed the connection without an answer in HTTP", _CHECK_PORT)
NOT_HTTP = Failure("what listens there does not answer in HTTP", _CHECK_PORT)


def connection_failure(error: BaseException) -> Failure:
    """Return why a connection failed, or broke.

    Args:
        error: Of asyncio, http.client or httpx; what caused it is looked at, too.

    Returns:
        `NOT_HTTP` where the system knows of no failure.
    """
    for cause in _causes(error):
        if isinstance(cause, http.client.RemoteDisconnected):
            return CLOSED
        if isinstance(cause, OSError):
            return _of_system(cause)
    return NOT_HTTP


def status_advice(status: int, *, has_key: bool, retry_after: str | None = None) -> str | None:
    """Return what to do about an error status, in a sentence.

    Args:
        status: Of the answer.
        has_key: Whether a key was sent.
        retry_after: The header's value.

    Returns:
        None where the key is right and the server well: it was asked for the wrong thing.
    """
    if status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
        return key_advice(has_key=has_key)
    if status in (HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE):
        is_seconds = retry_after is not None and retry_after.isdecimal() and len(retry_after) < 6
        return f"Try again in {retry_after} s." if is_seconds else "Try again later."
    if status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        return "Its log says why."
    return None


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _of_system(error: OSError) -> Failure:
    if isinstance(error, socket.gaierror):
        return Failure(f"its host name leads nowhere ({reason_of(error)})", "Check the address.")
    if isinstance(error, ssl.SSLCertVerificationError):
        trust = "Put the file of who signed it into SSL_CERT_FILE."
        return Failure(f"its certificate is not trusted ({error.verify_message})", trust)
    if isinstance(error, ssl.SSLError):
        said = (getattr(error, "reason", None) or "no handshake").lower().replace("_", " ")
        advice = "A server of plain HTTP is given as http://, not https://."
        return Failure(f"it does not speak TLS ({said})", advice)
    if isinstance(error, TimeoutError):
        return Failure("it did not answer in time", "A server that still starts answers later.")
    number = _number_of(error)
    if number == errno.ECONNREFUSED:
        start = "Start a server (`nanoserve serve`), or check the address and its port."
        return Failure("nothing listens there (connection refused)", start)
    if number in (errno.ECONNRESET, errno.EPIPE, errno.ECONNABORTED):
        return Failure("it reset the connection", f"Its log says why. {_CHECK_ADDRESS}")
    return Failure(os.strerror(number) if number else reason_of(error), _CHECK_ADDRESS)


def _number_of(error: OSError) -> int | None:
    """Return the system's number of an error; of several the last one's."""
    if error.errno is not None:
        return error.errno
    numbers = _ERRNO.findall(str(error))
    return int(numbers[-1]) if numbers else None
