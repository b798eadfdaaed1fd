"""Strict JSON within bounds."""

import asyncio
import json
from typing import Any

import pytest
from starlette.requests import Request

from nanoserve.errors import BodyTooLargeError, InvalidRequestError
from nanoserve.server.json_body import (
    MAX_CONTAINERS,
    MAX_DEPTH,
    MAX_ITEMS,
    MAX_MEMBERS,
    parse_object,
    read_body,
)


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        (b"{", "not JSON"),
        (b'{"a":NaN}', "literal NaN"),
        (b'{"a":-Infinity}', "literal -Infinity"),
        (b'{"a":1e999}', "out of range"),
        (b'{"a":' + b"1" * 5000 + b"}", "5000 digits"),
        (b'{"a":"\xff"}', "not UTF-8 at byte 6"),
        (b'{"a":"x\\ud83d"}', "lone surrogate"),
        (b'{"a":[{"\\udc00":1}]}', "lone surrogate"),
        (b"[1]", "must be a JSON object"),
        (b"null", "must be a JSON object"),
        (b"[" * 19_000, "nested deeper"),
        (b'{"a":[' + b"[]," * MAX_CONTAINERS + b"1]}", "arrays and objects; at most 20,000"),
        (b"{" + b'"k":1,' * (MAX_MEMBERS + 1) + b"}", "object members; at most 50,000"),
        (b'{"a":[' + b"1," * MAX_ITEMS + b"1,1]}", "items; at most 1,000,000"),
        (b'{"a":[' + b'"" ' * 2 * MAX_ITEMS + b"[]" * MAX_CONTAINERS, "too many strings"),
    ],
)
def test_what_is_no_strict_json_is_refused(body: bytes, problem: str) -> None:
    """The message says what is wrong and where."""
    with pytest.raises(InvalidRequestError, match=problem):
        parse_object(body)


def test_depth_is_bounded_exactly() -> None:
    """The object itself is one level; one level more than allowed is refused."""
    fits = b'{"a":' + b"[" * (MAX_DEPTH - 1) + b"]" * (MAX_DEPTH - 1) + b"}"

    assert "a" in parse_object(fits)
    with pytest.raises(InvalidRequestError, match="nested"):
        parse_object(fits.replace(b"[]", b"[[]]"))


def test_marks_inside_strings_count_for_nothing() -> None:
    """A long text of brackets, commas and escaped quotes is one string."""
    text = '[{"a":1,}]\\' * 30_000

    assert parse_object(json.dumps({"prompt": text}).encode()) == {"prompt": text}


def test_paired_surrogates_are_a_character() -> None:
    """An escaped emoji is text like any other, and numbers keep their type."""
    assert parse_object(b'{"a":"\\ud83c\\udf89","b":1,"c":1.5}') == {"a": "🎉", "b": 1, "c": 1.5}


def _request(parts: list[bytes], **headers: str) -> Request:
    messages: list[dict[str, Any]] = [
        {"type": "http.request", "body": part, "more_body": True} for part in parts
    ]
    messages.append({"type": "http.request", "body": b"", "more_body": False})

    async def receive() -> dict[str, Any]:
        return messages.pop(0)

    raw = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    return Request({"type": "http", "headers": raw}, receive)


def test_body_is_read_whole() -> None:
    """Parts are joined; a body of exactly the bound is read."""
    assert asyncio.run(read_body(_request([b"abc", b"de"]), max_bytes=5)) == b"abcde"


@pytest.mark.parametrize("request_", [_request([b"abc", b"def"]), _request([], content_length="6")])
def test_larger_body_is_refused(request_: Request) -> None:
    """By what is declared, or by what has come."""
    with pytest.raises(BodyTooLargeError):
        asyncio.run(read_body(request_, max_bytes=5))
