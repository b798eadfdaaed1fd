"""Who gets in."""

import asyncio
from typing import Any

import pytest
from starlette.requests import Request
from starlette.types import Receive, Scope, Send

from nanoserve.server.auth import ApiKeyGate, salt_of

KEYS = ("first-key", "second-key")


class _Inner:
    """Notes what it was let see."""

    def __init__(self) -> None:
        self.scopes: list[Scope] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.scopes.append(scope)


def knock(
    path: str, *authorization: bytes, keys: tuple[str, ...] = KEYS
) -> tuple[int | None, bytes]:
    """Return the status of a refusal, None if there is none, and the salt."""
    inner = _Inner()
    sent: list[Any] = []
    headers = [(b"authorization", value) for value in authorization]
    scope: Scope = {"type": "http", "path": path, "headers": headers, "method": "GET"}

    async def receive() -> Any:
        return {"type": "http.request", "body": b""}

    async def send(message: Any) -> None:
        sent.append(message)

    asyncio.run(ApiKeyGate(inner, keys)(scope, receive, send))
    if inner.scopes:
        return None, salt_of(Request(inner.scopes[0]))
    assert b"invalid_api_key" in sent[1]["body"]
    assert (b"www-authenticate", b"Bearer") in sent[0]["headers"]
    return sent[0]["status"], b""


@pytest.mark.parametrize(
    "authorization",
    [
        (),
        (b"",),
        (b"Bearer",),
        (b"Bearer ",),
        (b"Bearer wrong",),
        (b"Bearer first-ke",),
        (b"Bearer first-keyy",),
        (b"Basic first-key",),
        (b"first-key",),
        (b"Bearer first-key", b"Bearer first-key"),
        (b"Bearer \xff\xfe",),
    ],
)
def test_without_a_key_nobody_gets_in(authorization: tuple[bytes, ...]) -> None:
    """Missing, wrong, nearly right or doubled: 401 in the envelope."""
    assert knock("/v1/models", *authorization)[0] == 401


@pytest.mark.parametrize("key", KEYS)
def test_every_key_opens(key: str) -> None:
    """The scheme's case does not matter."""
    assert knock("/v1/models", f"Bearer {key}".encode())[0] is None
    assert knock("/v1/models", f"bearer {key}".encode())[0] is None


def test_health_is_open_and_nothing_like_it() -> None:
    """The path as the router sees it decides."""
    assert knock("/health")[0] is None
    for path in ("/health/", "//health", "/Health", "/metrics", "/v1/models/health", "/nothing"):
        assert knock(path)[0] == 401


def test_no_keys_let_everybody_in() -> None:
    """A server without keys asks for none, and all share their prefixes."""
    assert knock("/v1/models", keys=()) == (None, b"")


def test_each_key_has_its_salt() -> None:
    """Prefixes are shared by the requests of one key alone."""
    first, second = (knock("/x", f"Bearer {key}".encode())[1] for key in KEYS)

    assert len({first, second, b""}) == 3
    assert first == knock("/y", b"Bearer first-key")[1]
    assert b"first-key" not in first
