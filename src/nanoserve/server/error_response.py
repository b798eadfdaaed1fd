"""Exceptions to OpenAI's error envelope, the one shape of every error this server sends."""

import json
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from nanoserve.errors import (
    EngineError,
    NanoserveError,
    QueueFullError,
    RequestError,
    UnauthorizedError,
)
from nanoserve.server.sse import ClientGoneError

CLIENT_CLOSED_REQUEST = 499  # nginx's word for it; nobody reads this response
_MAX_MESSAGE_CHARS = 1000
_MAX_PARAM_CHARS = 100
_TYPES = {429: "rate_limit_error"}
_INTERNAL = "The server failed on this request. The reason is in its log."


def error_status(error: Exception) -> int:
    """Return the HTTP status of an exception; 500 for what nobody planned."""
    return error.status_code if isinstance(error, (RequestError, EngineError)) else 500


def error_body(error: Exception) -> dict[str, Any]:
    """Return the envelope of an exception. Unplanned ones show no detail."""
    message = str(error) if isinstance(error, NanoserveError) else _INTERNAL
    param = error.param if isinstance(error, RequestError) else None
    code = error.code if isinstance(error, RequestError) else None
    return envelope(error_status(error), message, param, code)


def envelope(
    status: int, message: str, param: str | None = None, code: str | None = None
) -> dict[str, Any]:
    """Return `{"error": {message, type, param, code}}` for a status."""
    fallback = "invalid_request_error" if status < 500 else "server_error"
    kind = _TYPES.get(status, fallback)
    shown_param = None if param is None else _shorten(param, _MAX_PARAM_CHARS)
    shown = _shorten(message, _MAX_MESSAGE_CHARS)
    return {"error": {"message": shown, "type": kind, "param": shown_param, "code": code}}


def _shorten(text: str, max_chars: int) -> str:
    """Cut what quotes the client at length: an error must not echo megabytes."""
    return text if len(text) <= max_chars else f"{text[:max_chars]}… ({len(text)} characters)"


def error_response(error: Exception) -> Response:
    """Return the response of an exception, with the headers that say what would help."""
    headers = {}
    if isinstance(error, QueueFullError):
        headers["retry-after"] = str(error.retry_after_s)
    if isinstance(error, UnauthorizedError):
        headers["www-authenticate"] = "Bearer"
    return json_response(error_body(error), error_status(error), headers)


def json_response(
    body: dict[str, Any], status: int = 200, headers: dict[str, str] | None = None
) -> Response:
    """Return a body as strict JSON."""
    return Response(strict_json(body), status, headers, "application/json")


def strict_json(body: dict[str, Any]) -> str:
    """Return a body as JSON without line breaks; lone surrogates become escapes."""
    return json.dumps(body, allow_nan=False)


def install_error_handlers(app: FastAPI) -> None:
    """Make every error of `app` an envelope, routing errors and unplanned ones included."""
    app.add_exception_handler(NanoserveError, _on_error)
    app.add_exception_handler(HTTPException, _on_http_exception)
    app.add_exception_handler(ClientDisconnect, _on_client_gone)
    app.add_exception_handler(ClientGoneError, _on_client_gone)
    app.add_exception_handler(Exception, _on_error)


async def _on_error(request: Request, error: Exception) -> Response:
    return error_response(error)


async def _on_client_gone(request: Request, error: Exception) -> Response:
    return Response(status_code=CLIENT_CLOSED_REQUEST)


async def _on_http_exception(request: Request, error: Exception) -> Response:
    """Answer what the router refuses: no such path, or not with this method."""
    status = error.status_code if isinstance(error, HTTPException) else 500
    given = (error.headers or {}) if isinstance(error, HTTPException) else {}
    headers = {name.lower(): value for name, value in given.items()}
    wrong = f"{request.method} {request.url.path}"
    message = {
        404: f"There is nothing at {wrong}. /openapi.json lists what is served.",
        405: f"{wrong} is not possible. Allowed: {headers.get('allow', 'see /openapi.json')}.",
    }.get(status, HTTPStatus(status).phrase)
    code = {404: "not_found", 405: "method_not_allowed"}.get(status)
    return json_response(envelope(status, message, None, code), status, headers)
