"""Which grammars are refused, and in what words."""

import json
from typing import Any

import pytest
from llguidance import LLTokenizer

from nanoserve.errors import InvalidRequestError
from nanoserve.text.grammar_source import (
    MAX_GRAMMAR_CHARS,
    grammar_source,
    refusal,
    start_matcher,
)
from nanoserve.text.grammar_spec import GrammarKind, GrammarSpec

_BYTES = LLTokenizer("byte")


def _error(spec: GrammarSpec) -> str:
    error = start_matcher(_BYTES, grammar_source(spec)).get_error()
    return str(refusal(spec.kind, error)) if error else ""


@pytest.mark.parametrize(
    "spec",
    [
        GrammarSpec("json_object"),
        GrammarSpec(
            "json_schema",
            '{"type": "object", "title": "x", "$schema": "http://json-schema.org/draft-07/schema#"}',
        ),
        GrammarSpec("regex", "^a/b\\/[/]\n$"),
        GrammarSpec("regex", ""),
        GrammarSpec("lark", 'start: "a" # comment'),
        GrammarSpec("lark", 'start: %json {"type": "object"}'),
    ],
)
def test_grammars_compile(spec: GrammarSpec) -> None:
    """Of each kind."""
    assert _error(spec) == ""


@pytest.mark.parametrize(
    ("schema", "named"),
    [
        ({"not": {"type": "string"}}, '"not"'),
        ({"type": "array", "uniqueItems": True}, '"uniqueItems"'),
        ({"if": {}, "then": {}}, '"if", "then"'),
        ({"type": "string", "format": "int32"}, "Unknown format: int32"),
        ({"type": "wat"}, "Invalid type: wat"),
        ({"type": "string", "pattern": "(?=a)b"}, "look-around"),
        ({"$ref": "https://example.org/x"}, "https://example.org/x"),
        ({"$ref": "#"}, "nothing satisfies it"),
        (False, "it is not an object"),
        ({"type": "integer", "minimum": float("nan")}, "cannot be followed"),
    ],
)
def test_schemas_are_refused_by_what_is_wrong(schema: Any, named: str) -> None:
    """A keyword that is not enforced is named rather than passed over."""
    with pytest.raises(InvalidRequestError, match="This JSON schema cannot be followed") as error:
        raise InvalidRequestError(_error(GrammarSpec("json_schema", json.dumps(schema))))

    assert named in str(error.value)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (GrammarSpec("regex", "(a"), "This regular expression cannot be followed: .*unclosed"),
        (GrammarSpec("regex", "(a)\\1"), "backreferences are not supported"),
        (GrammarSpec("regex", "[^\\s\\S]"), "nothing satisfies it"),
        (GrammarSpec("lark", ""), "This grammar cannot be followed: no start rule found."),
        (GrammarSpec("lark", 'start: "a"\nb c'), r"2\(3\): Expected token ':'"),
        (GrammarSpec("lark", "start: x"), r'at 1\(8\): unknown name: "x"'),
        (GrammarSpec("lark", '{"grammars": []}'), "cannot be followed"),
        (GrammarSpec("lark", "start: <|im_end|>"), 'unknown special token: "<|im_end|>"\\.'),
    ],
)
def test_expressions_and_rules_are_refused_with_the_place(spec: GrammarSpec, message: str) -> None:
    """Lines and columns are those of the text that was sent."""
    error = _error(spec)

    with pytest.raises(InvalidRequestError, match=message):
        raise InvalidRequestError(error)


@pytest.mark.parametrize("kind", ["json_schema", "regex", "lark"])
def test_long_texts_are_refused(kind: GrammarKind) -> None:
    """Their length is given beside the most."""
    with pytest.raises(InvalidRequestError, match=f"131073 characters and .* {MAX_GRAMMAR_CHARS}"):
        grammar_source(GrammarSpec(kind, "a" * (MAX_GRAMMAR_CHARS + 1)))


@pytest.mark.parametrize(
    "spec",
    [
        GrammarSpec("regex", "\ud800"),
        GrammarSpec("lark", '"\ud800"'),
        GrammarSpec("json_schema", '{"const": "\\ud800"}'),
    ],
)
def test_lone_surrogates_are_refused(spec: GrammarSpec) -> None:
    """No bytes spell them."""
    with pytest.raises(InvalidRequestError, match="lone surrogate"):
        grammar_source(spec)


@pytest.mark.parametrize("text", ["", "{", "[" * 50_000, '{"a":' * 5_000, "1" * 50_000])
def test_what_is_not_json_is_no_schema(text: str) -> None:
    """Text that ends early, or is nested so deep that it is not read."""
    with pytest.raises(InvalidRequestError, match="it is not JSON"):
        grammar_source(GrammarSpec("json_schema", text))


def test_the_style_of_answers_is_not_the_callers() -> None:
    """`x-guidance` in a schema, which llguidance would follow, is replaced."""
    source = grammar_source(GrammarSpec("json_schema", '{"x-guidance": {"lenient": true}}'))

    assert "lenient" not in source
