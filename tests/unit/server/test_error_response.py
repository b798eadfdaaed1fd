"""Exceptions to envelopes."""

import json

import pytest

from nanoserve.errors import (
    BodyTooLargeError,
    EngineError,
    EngineStoppedError,
    InvalidRequestError,
    QueueFullError,
    UnknownModelError,
)
from nanoserve.server.error_response import error_response, json_response


@pytest.mark.parametrize(
    ("error", "status", "kind", "code"),
    [
        (InvalidRequestError("no", "n"), 400, "invalid_request_error", None),
        (UnknownModelError("x", ("y",)), 404, "invalid_request_error", "model_not_found"),
        (BodyTooLargeError(5), 413, "invalid_request_error", "body_too_large"),
        (QueueFullError(3, 3), 429, "rate_limit_error", "queue_full"),
        (EngineError("no"), 500, "server_error", None),
        (EngineStoppedError("no"), 503, "server_error", None),
        (KeyError("secret"), 500, "server_error", None),
    ],
)
def test_exception_has_status_and_envelope(
    error: Exception, status: int, kind: str, code: str | None
) -> None:
    """Each exception maps to one status, type and code."""
    response = error_response(error)

    body = json.loads(bytes(response.body))["error"]
    assert (response.status_code, body["type"], body["code"]) == (status, kind, code)
    assert set(body) == {"message", "type", "param", "code"}


def test_full_queue_says_when_to_come_back() -> None:
    """Retry-After is the error's own number."""
    assert error_response(QueueFullError(1, 1)).headers["retry-after"] == "1"


def test_unplanned_exception_shows_no_detail() -> None:
    """What went wrong inside is for the log."""
    assert b"secret" not in bytes(error_response(KeyError("secret")).body)


def test_error_does_not_echo_megabytes() -> None:
    """A message or field name that quotes the client is cut."""
    response = error_response(InvalidRequestError("x" * 10**6, "y" * 10**6))

    assert len(bytes(response.body)) < 2000


def test_body_is_strict_json() -> None:
    """A number that JSON does not know cannot get out; any text can."""
    assert json.loads(bytes(json_response({"a": "\ud800"}).body)) == {"a": "\ud800"}
    with pytest.raises(ValueError, match="JSON compliant"):
        json_response({"a": float("nan")})
