"""Where `nanoserve explain` reads from: a stream's end, or a metrics page on loopback."""

import http.client
import ipaddress
import os
from collections import deque
from typing import BinaryIO
from urllib.parse import SplitResult, urlsplit

from nanoserve.bench.client_key import key_headers
from nanoserve.bench.server_failures import connection_failure, status_advice
from nanoserve.errors import OptionError
from nanoserve.explain.log_text import MAX_BYTES

_CHUNK_BYTES = 1024 * 1024
_TIMEOUT_S = 5.0
_MAX_PAGE_BYTES = 16 * 1024 * 1024


def read_tail(stream: BinaryIO) -> tuple[bytes, int]:
    """Return a stream's last `MAX_BYTES`, give or take a chunk, and its first line's number.

    Raises:
        OSError: It cannot be read.
    """
    chunks: deque[bytes] = deque()
    num_bytes, first_number = 0, 1
    while chunk := stream.read(_CHUNK_BYTES):
        chunks.append(chunk)
        num_bytes += len(chunk)
        while num_bytes - len(chunks[0]) >= MAX_BYTES:
            dropped = chunks.popleft()
            num_bytes -= len(dropped)
            first_number += dropped.count(b"\n")
    return b"".join(chunks), first_number


def read_metrics_page(url: str) -> str:
    """Return the metrics page of a server on this machine; follow nothing elsewhere.

    The key in NANOSERVE_API_KEY is sent with the one request that is made.

    Args:
        url: `http://127.0.0.1:8000` or with a path; without one, `/metrics`.

    Raises:
        OptionError: It is not on loopback, or cannot be read, or wants another key.
    """
    parts = _loopback(url)
    headers = key_headers(os.environ)
    path = parts.path if parts.path not in ("", "/") else "/metrics"
    connection = http.client.HTTPConnection(
        parts.hostname or "", parts.port or 80, timeout=_TIMEOUT_S
    )
    try:
        target = path + (f"?{parts.query}" if parts.query else "")
        connection.request("GET", target, headers=headers)
        response = connection.getresponse()
        content = response.read(_MAX_PAGE_BYTES)
    except (OSError, http.client.HTTPException) as error:
        failure = connection_failure(error)
        message = f"{url} cannot be read: {failure.reason}. {failure.advice}"
        raise OptionError(message) from error
    finally:
        connection.close()
    if response.status != http.client.OK:
        raise _refused(url, response, has_key=bool(headers))
    return content.decode("utf-8", errors="replace")


def _refused(url: str, response: http.client.HTTPResponse, *, has_key: bool) -> OptionError:
    """Return the error of a page that is not given, and what to do about it."""
    status, retry_after = response.status, response.getheader("retry-after")
    advice = status_advice(status, has_key=has_key, retry_after=retry_after)
    advice = advice or "Give the server's metrics page, or paste it into a file."
    return OptionError(f"{url} answers {status} {response.reason}. {advice}")


def _loopback(url: str) -> SplitResult:
    """Return a URL's parts, if it is plain HTTP to this machine.

    Raises:
        OptionError: It is not.
    """
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
        is_here = host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        is_here, port = False, None
    if not is_here or parts.scheme != "http" or port == 0:
        message = (
            f"--metrics {url[:200]!r} is not plain http on this machine (127.0.0.1, ::1 or "
            "localhost). nanoserve asks no other host; fetch the page there and give the file."
        )
        raise OptionError(message)
    return parts
