"""uvicorn's HTTP parser with a bound on what a request's head may weigh.

uvicorn's httptools protocol keeps reading a head of any length; this one answers 431.
"""

import json

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from nanoserve.server.error_response import envelope
from nanoserve.units import KIB

MAX_HEAD_BYTES = 64 * KIB  # request line and headers, as uvicorn's h11 protocol has it

_LINGER_S = 1.0  # for the client to stop sending and read why


class BoundedHttpProtocol(HttpToolsProtocol):
    """Closes a connection whose request head passes `MAX_HEAD_BYTES`."""

    _head_bytes = 0
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

    def on_headers_complete(self) -> None:
        """Start the request: its head is whole."""
        self._in_head = False
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        """Expect the next request's head."""
        self._in_head = True
        self._head_bytes = 0
        super().on_message_complete()

    def _refuse_head(self) -> None:
        message = f"The request's headers are larger than {MAX_HEAD_BYTES} bytes."
        body = json.dumps(envelope(431, message, None, "headers_too_large")).encode()
        head = (
            "HTTP/1.1 431 Request Header Fields Too Large\r\n"
            "content-type: application/json\r\n"
            f"content-length: {len(body)}\r\n"
            "connection: close\r\n\r\n"
        )
        self._is_refused = True
        self.transport.write(head.encode("ascii") + body)
        # To close with bytes unread would reset the connection and lose the answer.
        self.loop.call_later(_LINGER_S, self.transport.close)
