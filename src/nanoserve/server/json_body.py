"""Bytes of a request to plain Python values, strictly and within bounds.

Refuses what `json` lets through: NaN and infinite numbers, lone surrogates, endless
nesting. Knows nothing of fields (see `protocol`).
"""

import json
import math
import re
from typing import Any, NoReturn

from starlette.requests import Request

from nanoserve.errors import BodyTooLargeError, InvalidRequestError
from nanoserve.units import MIB

MAX_BODY_BYTES = 8 * MIB
MAX_CONTAINERS = 20_000  # a conversation of 10,000 messages, each with a list of one part
MAX_MEMBERS = 50_000  # of all objects together
MAX_ITEMS = 1_000_000  # 8 prompts of 128k token ids
MAX_DEPTH = 64  # nested arrays and objects; OpenAI's requests need about 10
_MAX_INT_DIGITS = 20  # more than any field takes
_LONG_NUMBER = re.compile(rb"[0-9]{%d}" % (_MAX_INT_DIGITS + 1))
_COUNTS = (
    ((b"[", b"{"), MAX_CONTAINERS, "arrays and objects"),
    ((b":",), MAX_MEMBERS, "object members"),
    ((b",",), MAX_ITEMS, "items"),
)
_SURROGATE_ESCAPE = re.compile(rb"\\u[dD][89a-fA-F]")  # raw ones are not UTF-8


async def read_body(request: Request, max_bytes: int = MAX_BODY_BYTES) -> bytes:
    """Read the whole body.

    Raises:
        BodyTooLargeError: As soon as it is certain; the rest is not read.
    """
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and int(declared[:20]) > max_bytes:
        raise BodyTooLargeError(max_bytes)
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > max_bytes:
            raise BodyTooLargeError(max_bytes)
    return bytes(body)


def parse_object(body: bytes) -> dict[str, Any]:
    """Parse a JSON object.

    Raises:
        InvalidRequestError: Not UTF-8, not JSON, not an object, nested deeper than
            `MAX_DEPTH`, of more values than are read, or with a number or string that
            JSON does not know.
    """
    _check_counts(body)
    try:
        value = json.loads(
            body.decode("utf-8"),
            parse_constant=_refuse_constant,
            parse_float=_parse_float,
            parse_int=_parse_int if _LONG_NUMBER.search(body) else None,  # a hook is slow
        )
    except UnicodeDecodeError as error:
        _refuse(f"is not UTF-8 at byte {error.start}")
    except json.JSONDecodeError as error:
        _refuse(f"is not JSON: {error.msg} at line {error.lineno}, column {error.colno}")
    except RecursionError:
        _refuse(f"is nested deeper than {MAX_DEPTH} levels")
    if not isinstance(value, dict):
        _refuse("must be a JSON object")
    if body.count(b"[") + body.count(b"{") > MAX_DEPTH:
        _check_depth(value)
    if _SURROGATE_ESCAPE.search(body):
        _check_text(json.dumps(value, ensure_ascii=False))
    return value


def _check_counts(body: bytes) -> None:
    """Bound the work of parsing and checking, which would hold up every other request."""
    if not _passes_a_bound(body):
        return
    without_escapes = body.replace(b"\\\\", b"").replace(b'\\"', b"")
    if without_escapes.count(b'"') > 2 * (MAX_MEMBERS + MAX_ITEMS):
        _refuse("has too many strings")
    outside_strings = b"".join(without_escapes.split(b'"')[::2])
    problem = _passes_a_bound(outside_strings)
    if problem:
        _refuse(problem)


def _passes_a_bound(text: bytes) -> str:
    """Return which bound `text` passes, taken as bare JSON; '' where none."""
    for marks, limit, what in _COUNTS:
        count = sum(map(text.count, marks))
        if count > limit:
            return f"has {count:,} {what}; at most {limit:,} are read"
    return ""


def _parse_float(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        _refuse(f"has the number {text[:_MAX_INT_DIGITS]}, which is out of range")
    return value


def _parse_int(text: str) -> int:
    if len(text) > _MAX_INT_DIGITS:
        _refuse(f"has a whole number of {len(text)} digits; at most {_MAX_INT_DIGITS} are read")
    return int(text)


def _refuse_constant(name: str) -> NoReturn:
    _refuse(f"has the literal {name}, which is not JSON")


def _check_depth(root: dict[str, Any]) -> None:
    level: list[Any] = [root]
    for _ in range(MAX_DEPTH):
        level = [child for value in level for child in _containers_in(value)]
        if not level:
            return
    _refuse(f"is nested deeper than {MAX_DEPTH} levels")


def _containers_in(value: Any) -> list[Any]:
    items = value.values() if isinstance(value, dict) else value
    return [item for item in items if isinstance(item, (dict, list))]


def _check_text(text: str) -> None:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        _refuse("has a lone surrogate in a string")


def _refuse(problem: str) -> NoReturn:
    message = f"The request body {problem}."
    raise InvalidRequestError(message)
