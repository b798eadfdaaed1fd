"""Random JSON schemas that a grammar can be made of."""

from typing import Any

from hypothesis import strategies as st

_NAMES = st.sampled_from(["a", "b", "name", "größe", 'with "quotes"', "x y", "👍"])
_SCALARS = st.one_of(
    st.none(), st.booleans(), st.integers(-1000, 1000), st.text('aZ09 "\\\\/{é世👍', max_size=8)
)


def _integers(low: int, width: int) -> dict[str, Any]:
    return {"type": "integer", "minimum": low, "maximum": low + width}


def _numbers(low: int, width: int) -> dict[str, Any]:
    return {"type": "number", "exclusiveMinimum": low / 4, "maximum": low / 4 + width + 1}


def _strings(shortest: int, width: int) -> dict[str, Any]:
    return {"type": "string", "minLength": shortest, "maxLength": shortest + width}


def _array(items: dict[str, Any], fewest: int, more: int) -> dict[str, Any]:
    return {"type": "array", "items": items, "minItems": fewest, "maxItems": fewest + more}


def _object(properties: dict[str, Any], num_required: int) -> dict[str, Any]:
    required = sorted(properties)[:num_required]
    return {
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": False,
    }


_LEAVES = st.one_of(
    st.builds(_integers, st.integers(-500, 500), st.integers(0, 10**6)),
    st.builds(_numbers, st.integers(-500, 500), st.integers(0, 1000)),
    st.builds(_strings, st.integers(0, 3), st.integers(0, 20)),
    st.sampled_from([{"type": "boolean"}, {"type": ["null", "integer"], "maximum": 5}]),
    st.lists(_SCALARS, min_size=1, max_size=5).map(lambda values: {"enum": values}),
    _SCALARS.map(lambda value: {"const": value}),
)
JSON_SCHEMAS = st.recursive(
    _LEAVES,
    lambda inner: st.one_of(
        st.builds(_array, inner, st.integers(0, 2), st.integers(0, 3)),
        st.builds(_object, st.dictionaries(_NAMES, inner, max_size=4), st.integers(0, 4)),
        st.lists(inner, min_size=1, max_size=3).map(lambda options: {"anyOf": options}),
    ),
    max_leaves=8,
)
