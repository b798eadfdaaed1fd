"""Whatever is drawn among the allowed tokens follows the grammar."""

import functools
import json
import random
import re
from typing import Any

import jsonschema_rs
import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from nanoserve.text.gguf_tokenizer import tokenizer_from_gguf
from nanoserve.text.grammar import LLGuidanceCompiler
from nanoserve.text.grammar_spec import GrammarSpec
from nanoserve.text.tokenizer import Tokenizer
from tests.grammar_driver import random_answer
from tests.schema_strategies import JSON_SCHEMAS
from tests.text_models import byte_level_metadata

_STOP_IDS = (1, 2)
_PATTERNS = (
    r"[a-z]{2,5}",
    r"(foo|bar)+(,(foo|bar)+){0,3}",
    r"\d{4}-\d{2}-\d{2}",
    r"[A-ZÄÖÜ][^\s\"]{1,10}[.!?]?",
    r"-?(0|[1-9][0-9]{0,5})(\.[0-9]{1,3})?",
    r"(é|ß|世|👍){1,6}",
    r"a/b\\c\n\t[/]",
    r"(?i)yes|no|\w+@\w+\.(com|org)",
)


@functools.cache
def _tokenizer() -> Tokenizer:
    return tokenizer_from_gguf(byte_level_metadata())


@functools.cache
def _compiler() -> LLGuidanceCompiler:
    return LLGuidanceCompiler(_tokenizer(), _tokenizer().vocab_size, _STOP_IDS)


def _answer(spec: GrammarSpec, seed: int) -> tuple[str, bool]:
    matcher = _compiler().compile(spec).matcher()
    return random_answer(matcher, _tokenizer(), _STOP_IDS, random.Random(seed))


@settings(max_examples=200, deadline=None)
@given(schema=JSON_SCHEMAS, seed=st.integers(0, 2**32))
def test_answers_are_valid_by_their_schema(schema: dict[str, Any], seed: int) -> None:
    """An answer that ended is JSON that a validator finds valid."""
    text, is_complete = _answer(GrammarSpec("json_schema", json.dumps(schema)), seed)

    event(f"complete: {is_complete}")
    assert not is_complete or jsonschema_rs.is_valid(schema, json.loads(text)), text


@pytest.mark.parametrize("pattern", _PATTERNS)
def test_strings_match_their_pattern(pattern: str) -> None:
    """`pattern` holds for the value, escapes of JSON removed."""
    schema = {"type": "string", "pattern": f"^({pattern})$"}

    for seed in range(5):
        text, is_complete = _answer(GrammarSpec("json_schema", json.dumps(schema)), seed)

        assert not is_complete or re.fullmatch(pattern, json.loads(text)), text


@pytest.mark.parametrize("pattern", _PATTERNS)
def test_answers_match_their_expression(pattern: str) -> None:
    """An answer that ended matches from its first character to its last."""
    for seed in range(20):
        text, is_complete = _answer(GrammarSpec("regex", pattern), seed)

        assert not is_complete or re.fullmatch(pattern, text), text


def test_any_object_is_an_object() -> None:
    """`json_object` gives an object, of whatever members."""
    num_complete = 0
    for seed in range(30):
        text, is_complete = _answer(GrammarSpec("json_object"), seed)

        assert not is_complete or isinstance(json.loads(text), dict), text
        num_complete += is_complete
    assert num_complete > 10
