"""The HTTP client of the commands that talk to a server, and its failures as our errors.

It connects directly, whatever proxies the environment names: to the address that was given,
as the bench's own sockets do.
"""

import os
import ssl

import httpx

from nanoserve.bench.client_key import key_headers
from nanoserve.bench.server_failures import CLOSED, NOT_HTTP, Failure, connection_failure
from nanoserve.errors import NanoserveError

CONNECT_S = 10.0
ANSWER_S = 30.0  # of a question that costs a server nothing
_DISCONNECTED = "Server disconnected"  # httpcore's words; its class is that of what is no HTTP


class ServerUnreachableError(NanoserveError):
    """No server answers at an address, or it went away in the middle of an answer."""


def server_client() -> httpx.Client:
    """Return a client that sends the key in the environment.

    Raises:
        OptionError: The key cannot be sent.
    """
    return httpx.Client(
        timeout=httpx.Timeout(CONNECT_S, read=ANSWER_S),
        headers=key_headers(os.environ),
        trust_env=False,
        verify=ssl.create_default_context(),
    )


def unreachable(url: str, error: httpx.HTTPError) -> ServerUnreachableError:
    """Return the error of a call that got no answer.

    Args:
        url: The server's base address.
        error: What the client raised.
    """
    failure = _failure(error)
    return ServerUnreachableError(f"No server answers at {url}: {failure.reason}. {failure.advice}")


def cut_short(url: str, error: httpx.HTTPError) -> ServerUnreachableError:
    """Return the error of an answer that did not come, or not to its end, from a server that is there.

    Args:
        url: The server's base address.
        error: What the client raised.
    """
    if isinstance(error, httpx.ConnectError | httpx.ConnectTimeout):
        return unreachable(url, error)
    is_closed = isinstance(error, httpx.RemoteProtocolError)
    reason = "it closed the connection" if is_closed else _failure(error).reason
    return ServerUnreachableError(f"The server at {url} broke off: {reason}. Its log says why.")


def _failure(error: httpx.HTTPError) -> Failure:
    failure = connection_failure(error)
    if isinstance(error, httpx.ConnectTimeout):
        return failure._replace(reason=f"no connection within {CONNECT_S:g} s")
    if isinstance(error, httpx.TimeoutException):
        return failure._replace(reason=f"no answer within {ANSWER_S:g} s")
    if failure is NOT_HTTP and str(error).startswith(_DISCONNECTED):
        return CLOSED
    return failure
