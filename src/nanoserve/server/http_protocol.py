"""uvicorn's HTTP parser with a bound on what a request's head may weigh.

uvicorn's httptools protocol keeps reading a head of any length; this one answers 431. What
is no HTTP is 400. Both have the envelope of every other error.
"""

import json
from http import HTTPStatus

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from nanoserve.server.error_response import envelope
from nanoserve.units import KIB

MAX_HEAD_BYTES = 64 * KIB  # request line and headers, as uvicorn's h11 protocol has it

_LINGER_S = 1.0  # for the client to stop sending and read why


class _HeadTooLargeError(Exception):
    """Ends the parser's work on a head that came whole and is too long."""


class BoundedHttpProtocol(HttpToolsProtocol):
    """Closes a connection whose request head passes `MAX_HEAD_BYTES`."""

    _head_bytes = 0  # received while a head was not complete
    _field_bytes = 0  # of its headers, parsed
    _in_head = True
    _is_refused = False

    def data_received(self, data: bytes) -> None:
        """Parse what came, and refuse a head that has grown too long."""
        if self._is_refused:
            return
        self._head_bytes += len(data) if self._in_head else 0
        super().data_received(data)
        if self._in_head and self._head_bytes > MAX_HEAD_BYTES:
            self._refuse_head()

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header, and weigh it."""
        self._field_bytes += len(name) + len(value)
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Start the request: its head is whole."""
        if self._field_bytes > MAX_HEAD_BYTES:
            raise _HeadTooLargeError
        self._in_head = False
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        """Expect the next request's head."""
        self._in_head = True
        self._head_bytes = self._field_bytes = 0
        super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        """Answer what the parser cannot take; uvicorn calls it."""
        if self._field_bytes > MAX_HEAD_BYTES:
            self._refuse_head()
        else:
            self._refuse(400, "This is no HTTP request that can be read.", "invalid_http")

    def _refuse_head(self) -> None:
        message = f"The request's headers are larger than {MAX_HEAD_BYTES} bytes."
        self._refuse(431, message, "headers_too_large")

    def _refuse(self, status: int, message: str, code: str) -> None:
        if self._is_refused:
            return
        body = json.dumps(envelope(status, message, None, code)).encode()
        head = (
            f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\n"
            "content-type: application/json\r\n"
            f"content-length: {len(body)}\r\n"
            "connection: close\r\n\r\n"
        )
        self._is_refused = True
        self.transport.write(head.encode("ascii") + body)
        # To close with bytes unread would reset the connection and lose the answer.
        self.loop.call_later(_LINGER_S, self.transport.close)
