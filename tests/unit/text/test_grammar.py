"""Masks, steps and kept grammars."""

import functools
import json
import random
import threading
from collections.abc import Callable
from typing import Any

import pytest
from llguidance import LLTokenizer

from nanoserve.errors import InvalidRequestError
from nanoserve.text.gguf_tokenizer import tokenizer_from_gguf
from nanoserve.text.grammar import GrammarCache, LLGuidanceCompiler, LLGuidanceGrammar
from nanoserve.text.grammar_source import grammar_source
from nanoserve.text.grammar_spec import GrammarMatcher, GrammarSpec
from nanoserve.text.tokenizer import Tokenizer
from tests.grammar_driver import allowed_ids, random_answer, token_id_of
from tests.text_models import byte_level_metadata, sentencepiece_metadata, smollm2_metadata

_METADATA: dict[str, Callable[[], dict[str, Any]]] = {
    "byte level": byte_level_metadata,
    "sentencepiece": sentencepiece_metadata,
    "smollm2": smollm2_metadata,
}
_STOP_IDS = (2, 0)  # special in each of them
_AMBIGUOUS = GrammarSpec("lark", 'start: e\ne: e e e e | e e e | e e | "a" | "b"')


@functools.cache
def _tokenizer(kind: str) -> Tokenizer:
    return tokenizer_from_gguf(_METADATA[kind]())


@functools.cache
def _compiler(kind: str) -> LLGuidanceCompiler:
    return LLGuidanceCompiler(_tokenizer(kind), _tokenizer(kind).vocab_size, _STOP_IDS)


def _matcher(kind: str, spec: GrammarSpec) -> GrammarMatcher:
    return _compiler(kind).compile(spec).matcher()


def _schema(schema: object) -> GrammarSpec:
    return GrammarSpec("json_schema", json.dumps(schema))


def _allowed(matcher: GrammarMatcher) -> set[int]:
    return set(allowed_ids(matcher.allowed_tokens() or b""))


def _accept_text(matcher: GrammarMatcher, tokenizer: Tokenizer, text: str) -> None:
    for byte in text.encode():
        matcher.accept(token_id_of(tokenizer, bytes([byte])))


@pytest.mark.parametrize("kind", _METADATA)
def test_every_stop_id_may_end_a_complete_answer_and_nothing_else(kind: str) -> None:
    """They are not allowed before; each is taken once the answer can only end."""
    for stop_id in _STOP_IDS:
        matcher = _matcher(kind, GrammarSpec("regex", "ab"))
        assert not _allowed(matcher) & set(_STOP_IDS)

        _accept_text(matcher, _tokenizer(kind), "ab")

        assert _allowed(matcher) == set(_STOP_IDS)
        matcher.accept(stop_id)


@pytest.mark.parametrize("kind", _METADATA)
def test_a_complete_answer_may_go_on_where_the_grammar_does(kind: str) -> None:
    """Stop ids stand beside what may follow."""
    matcher = _matcher(kind, GrammarSpec("regex", "a+"))

    _accept_text(matcher, _tokenizer(kind), "a")

    assert _allowed(matcher) > set(_STOP_IDS)


@pytest.mark.parametrize("kind", _METADATA)
def test_masks_have_a_bit_for_every_token(kind: str) -> None:
    """Their bytes are as many as the vocabulary needs, and no bit is set beyond it."""
    vocab_size = _tokenizer(kind).vocab_size
    mask = _matcher(kind, GrammarSpec("regex", "(?s:.*)")).allowed_tokens() or b""

    assert len(mask) == -(-vocab_size // 8)
    assert max(allowed_ids(mask)) < vocab_size


@pytest.mark.parametrize("kind", _METADATA)
def test_special_tokens_are_never_text(kind: str) -> None:
    """Where any text may come, the tokens that stand for none may not."""
    mask = _matcher(kind, GrammarSpec("regex", "(?s:.*)")).allowed_tokens() or b""

    assert not set(allowed_ids(mask)) & (_tokenizer(kind).special_token_ids - set(_STOP_IDS))


def test_tokens_without_text_are_not_allowed() -> None:
    """A model with more rows than its tokenizer has tokens never draws one of those."""
    tokenizer = _tokenizer("byte level")
    compiler = LLGuidanceCompiler(tokenizer, tokenizer.vocab_size + 20, _STOP_IDS)
    mask = compiler.compile(GrammarSpec("regex", "(?s:.*)")).matcher().allowed_tokens()

    assert len(mask) == -(-(tokenizer.vocab_size + 20) // 8)
    assert max(allowed_ids(mask)) < tokenizer.vocab_size


@pytest.mark.parametrize("token_id", [-1, 10**6, 2**40, 1, 0])
def test_what_the_grammar_does_not_allow_is_refused(token_id: int) -> None:
    """A token that does not fit, a stop id too early, or no token at all."""
    matcher = _matcher("smollm2", GrammarSpec("json_object"))

    with pytest.raises(ValueError, match=r"can no longer follow|is not one of"):
        matcher.accept(token_id)


def test_a_refused_token_ends_the_answer() -> None:
    """There is no way back to where it stood."""
    matcher = _matcher("smollm2", GrammarSpec("json_object"))
    with pytest.raises(ValueError, match="can no longer follow"):
        matcher.accept(token_id_of(_tokenizer("smollm2"), b"x"))

    with pytest.raises(ValueError, match="can no longer follow"):
        matcher.allowed_tokens()


def test_matchers_of_one_grammar_stand_apart() -> None:
    """What one takes in does not move the other."""
    grammar = _compiler("byte level").compile(GrammarSpec("regex", "ab"))
    first, second = grammar.matcher(), grammar.matcher()
    before = second.allowed_tokens()

    _accept_text(first, _tokenizer("byte level"), "ab")

    assert second.allowed_tokens() == before


@pytest.mark.parametrize("kind", _METADATA)
@pytest.mark.parametrize("value", ["👍🏽 größer 世界", "<|im_end|></s><tool>", 'a"\\\n'])
def test_any_string_can_be_written(kind: str, value: str) -> None:
    """Characters split over tokens, names of special tokens as text, and escapes."""
    matcher = _matcher(kind, _schema({"const": value}))

    text, is_complete = random_answer(matcher, _tokenizer(kind), _STOP_IDS, random.Random(0))

    assert is_complete
    assert json.loads(text) == value


def test_blanks_are_few() -> None:
    """One blank may follow a colon or a comma, and no line breaks or blanks beside it."""
    tokenizer = _tokenizer("byte level")
    blank, line_break = token_id_of(tokenizer, b" "), token_id_of(tokenizer, b"\n")
    spec = _schema({"type": "object", "properties": {"a": {"enum": [1]}}, "required": ["a"]})
    matcher = _matcher("byte level", spec)

    assert not _allowed(matcher) & {blank, line_break}
    _accept_text(matcher, tokenizer, '{"a":')
    assert _allowed(matcher) & {blank, line_break} == {blank}
    matcher.accept(blank)
    assert not _allowed(matcher) & {blank, line_break}


def test_answers_go_on_when_others_have_used_up_the_states() -> None:
    """What one answer used up of the shared lexer ends none that begins later."""
    tokenizer = _tokenizer("byte level")
    letter = token_id_of(tokenizer, b"x")
    grammar = _compiler("byte level").compile(GrammarSpec("regex", r"(a|b|c|d)\p{L}{1,10000}"))
    first, second = grammar.matcher(), grammar.matcher()
    _accept_text(first, tokenizer, "a")
    while not first.is_alone:
        first.allowed_tokens()
        first.accept(letter)

    _accept_text(second, tokenizer, "bxxxxx")

    assert letter in _allowed(second)
    assert second.is_alone


def test_too_costly_steps_end_the_answer() -> None:
    """A grammar whose parses multiply is found out while it is followed."""
    matcher = _matcher("byte level", _AMBIGUOUS)

    with pytest.raises(ValueError, match="can no longer follow"):
        _accept_text(matcher, _tokenizer("byte level"), "a" * 500)


def test_the_same_grammar_is_compiled_once() -> None:
    """Threads that ask for one text at a time get one grammar."""
    found: list[LLGuidanceGrammar] = []
    spec = _schema({"type": "integer", "multipleOf": 7})
    compiler = LLGuidanceCompiler(_tokenizer("byte level"), 804, _STOP_IDS)
    threads = [
        threading.Thread(target=lambda: found.append(compiler.compile(spec))) for _ in range(4)
    ]

    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(found) == 4
    assert all(grammar is found[0] for grammar in found)


def test_a_model_without_stop_tokens_follows_no_grammar() -> None:
    """Its answers could not end."""
    compiler = LLGuidanceCompiler(_tokenizer("byte level"), 804, ())

    with pytest.raises(InvalidRequestError, match="no stop token"):
        compiler.compile(GrammarSpec("json_object"))


def _kept(cache: GrammarCache, specs: list[GrammarSpec]) -> list[bool]:
    return [cache.get(spec) is not None for spec in specs]


def test_grammars_unused_for_longest_are_dropped() -> None:
    """By their number, and by the characters of their texts."""
    backend = LLTokenizer("byte")
    specs = [GrammarSpec("regex", letter * 10) for letter in "abc"]
    grammars = [LLGuidanceGrammar(backend, grammar_source(spec)) for spec in specs]
    by_number, by_chars = GrammarCache(2, 1000), GrammarCache(9, 20)

    for cache in (by_number, by_chars):
        cache.put(specs[0], grammars[0])
        cache.put(specs[1], grammars[1])
        assert cache.get(specs[0]) is grammars[0]
        cache.put(specs[2], grammars[2])

    assert _kept(by_number, specs) == [True, False, True]
    assert _kept(by_chars, specs) == [True, False, True]
