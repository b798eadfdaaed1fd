"""Which grammar the fields ask for."""

import re
from typing import Any

import pytest

from nanoserve.errors import InvalidRequestError
from nanoserve.server.grammar_fields import compile_grammar, grammar_of
from nanoserve.server.protocol import CompletionRequest
from nanoserve.text.grammar_spec import GrammarSpec
from tests.fakes import FakeCompiler

SCHEMA = {"type": "object", "properties": {"č": {}}}
SCHEMA_TEXT = '{"type": "object", "properties": {"č": {}}}'


def fields(**values: Any) -> CompletionRequest:
    return CompletionRequest.model_validate({"prompt": "x"} | values)


def schema_format(**values: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA} | values}


@pytest.mark.parametrize(
    ("name", "value", "spec"),
    [
        ("response_format", {"type": "json_object"}, GrammarSpec("json_object")),
        ("response_format", schema_format(), GrammarSpec("json_schema", SCHEMA_TEXT)),
        ("response_format", schema_format(strict=True), GrammarSpec("json_schema", SCHEMA_TEXT)),
        ("guided_json", SCHEMA, GrammarSpec("json_schema", SCHEMA_TEXT)),
        ("guided_json", "{}", GrammarSpec("json_schema", "{}")),
        ("guided_regex", "a+", GrammarSpec("regex", "a+")),
        ("guided_grammar", "start: A", GrammarSpec("lark", "start: A")),
        ("structured_outputs", {"json": SCHEMA}, GrammarSpec("json_schema", SCHEMA_TEXT)),
        ("structured_outputs", {"regex": "a"}, GrammarSpec("regex", "a")),
        ("structured_outputs", {"grammar": "g"}, GrammarSpec("lark", "g")),
        ("structured_outputs", {"json_object": True}, GrammarSpec("json_object")),
    ],
)
def test_each_field_is_one_grammar(name: str, value: Any, spec: GrammarSpec) -> None:
    """The order of a schema's keys is kept."""
    assert grammar_of(fields(**{name: value})) == (name, spec)


@pytest.mark.parametrize(
    "values",
    [{}, {"response_format": {"type": "text"}}, {"structured_outputs": {"json_object": False}}],
)
def test_free_text_has_none(values: dict[str, Any]) -> None:
    """Saying that text is free is saying nothing."""
    assert grammar_of(fields(**values)) is None


def test_choices_are_literal() -> None:
    """What means something in an expression means itself in a choice."""
    choices = ["a.b", "(c)", "d e", "\\", "[x]{2}|^$*+?"]

    found = grammar_of(fields(guided_choice=choices))

    assert found is not None
    assert all(re.fullmatch(found[1].text, choice) for choice in choices)
    assert not re.fullmatch(found[1].text, "axb")


@pytest.mark.parametrize(
    ("values", "param"),
    [
        ({"guided_regex": "a", "guided_json": {}}, "guided_regex"),
        ({"guided_regex": "a", "response_format": {"type": "json_object"}}, "guided_regex"),
        ({"guided_choice": []}, "guided_choice"),
        ({"guided_choice": ["a", ""]}, "guided_choice"),
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "n"}}}, None),
    ],
)
def test_contradictions_are_refused(values: dict[str, Any], param: str | None) -> None:
    """Two grammars, no alternative and a missing schema are named."""
    with pytest.raises(InvalidRequestError) as caught:
        grammar_of(fields(**values))

    assert caught.value.param == (param or "response_format")


def test_refusals_name_the_field() -> None:
    """No compiler, or one that refuses: the client learns which field and why."""
    with pytest.raises(InvalidRequestError, match="guided_regex is not supported"):
        compile_grammar(GrammarSpec("regex", "a"), "guided_regex", None)
    with pytest.raises(InvalidRequestError, match="guided_regex: It is no grammar") as caught:
        compile_grammar(GrammarSpec("regex", "broken"), "guided_regex", FakeCompiler("", 0))

    assert caught.value.param == "guided_regex"
