"""Objects with too many optional properties."""

from typing import Any

import pytest
from llguidance import LLTokenizer

from nanoserve.errors import InvalidRequestError
from nanoserve.text.grammar_source import grammar_source, start_matcher
from nanoserve.text.grammar_spec import GrammarSpec
from nanoserve.text.schema_bounds import MAX_OPTIONAL_PROPERTIES, crowded_object


def object_of(num_optional: int, **more: Any) -> dict[str, Any]:
    names = [f"p{index}" for index in range(num_optional)]
    return {"type": "object", "properties": {name: {"type": "null"} for name in names}} | more


def test_as_many_as_may_be_are_followed() -> None:
    """The bound is the grammar library's: an answer gets past the brace of such an object."""
    schema = str(object_of(MAX_OPTIONAL_PROPERTIES)).replace("'", '"')
    matcher = start_matcher(LLTokenizer("byte"), grammar_source(GrammarSpec("json_schema", schema)))

    assert matcher.consume_token(ord("{"))
    matcher.compute_bitmask()
    assert not matcher.is_error()


@pytest.mark.parametrize("depth", [0, 1, 5])
def test_one_more_is_refused_wherever_it_stands(depth: int) -> None:
    """Inside other schemas as well, before an answer has begun."""
    schema = object_of(MAX_OPTIONAL_PROPERTIES + 1)
    for _ in range(depth):
        schema = {"anyOf": [{"type": "null"}, {"type": "array", "items": schema}]}

    with pytest.raises(InvalidRequestError, match="249 optional properties in a row"):
        grammar_source(GrammarSpec("json_schema", str(schema).replace("'", '"')))


def test_required_properties_part_the_optional_ones() -> None:
    """What follows a required property is not possible before it."""
    schema = object_of(400, required=["p200"])

    assert crowded_object(schema) == ""
    assert crowded_object({"properties": [], "required": 1}) == ""
