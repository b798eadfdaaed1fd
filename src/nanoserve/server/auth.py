"""API keys: who is let in, and whose prefixes are shared with whom.

A request is judged by the path that the router will see, before anything of it is read.
"""

import hashlib
import hmac
from collections.abc import Iterable

from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from nanoserve.errors import UnauthorizedError
from nanoserve.server.error_response import error_response

OPEN_PATHS = frozenset({"/health"})
_SALT = "nanoserve.salt"  # key of the ASGI scope


class ApiKeyGate:
    """Lets through what has a key, and /health."""

    def __init__(self, app: ASGIApp, keys: Iterable[str]) -> None:
        """Store digests of the keys, which all have one length.

        Args:
            app: What is guarded.
            keys: The valid keys; none lets everybody in.
        """
        self._app = app
        self._digests = [_digest(key.encode()) for key in keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or answer 401."""
        if scope["type"] == "http" and self._digests and scope["path"] not in OPEN_PATHS:
            digest = self._find_key(scope)
            if digest is None:
                await error_response(UnauthorizedError())(scope, receive, send)
                return
            scope[_SALT] = digest
        await self._app(scope, receive, send)

    def _find_key(self, scope: Scope) -> bytes | None:
        """Return the digest of the request's key; every key is compared, whichever it is."""
        given = [value for name, value in scope["headers"] if name == b"authorization"]
        scheme, _, key = (given[0] if len(given) == 1 else b"").partition(b" ")
        found = _digest(key.strip())
        matches = [hmac.compare_digest(found, digest) for digest in self._digests]
        return found if scheme.lower() == b"bearer" and any(matches) else None


def salt_of(request: Request) -> bytes:
    """Return what keeps the prefixes of one key's requests apart from all others'."""
    salt: bytes = request.scope.get(_SALT, b"")
    return salt


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()
