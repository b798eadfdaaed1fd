"""Where requests go, and what their first lines are."""

import pytest

from nanoserve.bench.http_stream import ServerAddress, request_bytes, server_address


@pytest.mark.parametrize(
    ("url", "address", "host"),
    [
        ("http://127.0.0.1:8000", ServerAddress("127.0.0.1", 8000, False, ""), "127.0.0.1:8000"),
        ("http://example.org", ServerAddress("example.org", 80, False, ""), "example.org:80"),
        (
            "https://example.org/api/",
            ServerAddress("example.org", 443, True, "/api"),
            "example.org:443",
        ),
        ("http://[::1]:9", ServerAddress("::1", 9, False, ""), "[::1]:9"),
    ],
)
def test_addresses_are_taken_apart(url: str, address: ServerAddress, host: str) -> None:
    """Ports follow from the scheme, and a path before /v1 is kept."""
    head, body = request_bytes(address, "/v1/x", {"a": "b"}, b"{}").split(b"\r\n\r\n")
    lines = head.decode().split("\r\n")

    assert server_address(url) == address
    assert lines[0] == f"POST {address.path}/v1/x HTTP/1.1"
    assert {f"Host: {host}", "Connection: close", "Content-Length: 2", "a: b"} <= set(lines)
    assert body == b"{}"
