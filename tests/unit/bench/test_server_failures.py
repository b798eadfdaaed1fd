"""Failures of connections and statuses in our words, whichever library met them."""

import errno
import http.client
import socket
import ssl

import httpx
import pytest

from nanoserve.bench.server_failures import CLOSED, NOT_HTTP, connection_failure, status_advice

REFUSED = "nothing listens there (connection refused)"


def caused(error: Exception, cause: Exception) -> Exception:
    """Return an error as it is raised from another."""
    error.__cause__ = cause
    return error


def wrong_version() -> ssl.SSLError:
    """Return what TLS says to a server of plain HTTP."""
    error = ssl.SSLError(1, "[SSL: WRONG_VERSION_NUMBER] wrong version number (_ssl.c:1006)")
    error.reason = "WRONG_VERSION_NUMBER"
    return error


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused"), REFUSED),
        (OSError(errno.ECONNREFUSED, "Connect call failed ('127.0.0.1', 9)"), REFUSED),
        (
            OSError("Multiple exceptions: [Errno 99] Connect call, [Errno 111] Connect call"),
            REFUSED,
        ),
        (caused(httpx.ConnectError("no"), ConnectionRefusedError(errno.ECONNREFUSED, "")), REFUSED),
        (
            socket.gaierror(socket.EAI_NONAME, "Name or service not known"),
            "its host name leads nowhere (Name or service not known)",
        ),
        (wrong_version(), "it does not speak TLS (wrong version number)"),
        (ssl.SSLError("no"), "it does not speak TLS (no handshake)"),
        (TimeoutError("timed out"), "it did not answer in time"),
        (ConnectionResetError(errno.ECONNRESET, "Connection reset"), "it reset the connection"),
        (BrokenPipeError(errno.EPIPE, "Broken pipe"), "it reset the connection"),
        (OSError(errno.ENETUNREACH, "no"), "Network is unreachable"),
        (OSError("odd"), "odd"),
        (http.client.RemoteDisconnected("no response"), CLOSED.reason),
        (http.client.BadStatusLine("SSH-2.0"), NOT_HTTP.reason),
        (httpx.RemoteProtocolError("illegal request line"), NOT_HTTP.reason),
    ],
)
def test_a_failure_has_a_reason_and_advice(error: Exception, reason: str) -> None:
    """No library's words but the system's own, and a sentence on what to do."""
    failure = connection_failure(error)

    assert failure.reason == reason
    assert failure.advice.endswith(".")


def test_an_untrusted_certificate_is_told_from_no_tls() -> None:
    """The first is mended by a file, the second by another address."""
    untrusted = ssl.SSLCertVerificationError()
    untrusted.verify_message = "self-signed certificate"
    failure = connection_failure(caused(httpx.ConnectError("no"), untrusted))

    assert failure.reason == "its certificate is not trusted (self-signed certificate)"
    assert "SSL_CERT_FILE" in failure.advice
    assert "http://" in connection_failure(wrong_version()).advice


@pytest.mark.parametrize(
    ("status", "retry_after", "advice"),
    [
        (401, None, "It wants an API key: put it into NANOSERVE_API_KEY."),
        (403, None, "It wants an API key: put it into NANOSERVE_API_KEY."),
        (429, "3", "Try again in 3 s."),
        (503, "3", "Try again in 3 s."),
        (503, None, "Try again later."),
        (503, "9" * 400, "Try again later."),
        (500, "3", "Its log says why."),
        (404, None, None),
        (302, None, None),
    ],
)
def test_a_status_says_what_to_do(status: int, retry_after: str | None, advice: str | None) -> None:
    """Nothing where only who asked can know."""
    assert status_advice(status, has_key=False, retry_after=retry_after) == advice


def test_a_wrong_key_is_told_from_none() -> None:
    """Both name the variable."""
    advice = status_advice(401, has_key=True)

    assert advice is not None
    assert advice.startswith("It refuses the key in NANOSERVE_API_KEY")
