"""Grammars that cost too much to compile end in a refusal."""

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from nanoserve.errors import EngineError, InvalidRequestError
from nanoserve.text import grammar_trial
from nanoserve.text.gguf_tokenizer import tokenizer_from_gguf
from nanoserve.text.grammar import LLGuidanceCompiler
from nanoserve.text.grammar_source import grammar_source
from nanoserve.text.grammar_spec import GrammarKind, GrammarSpec
from nanoserve.text.grammar_trial import MAX_UNTRIED_CHARS, needs_trial, try_source
from nanoserve.text.grammar_vocabulary import GrammarVocabulary
from tests.text_models import byte_level_metadata


def _schema(schema: Any) -> GrammarSpec:
    return GrammarSpec("json_schema", json.dumps(schema))


def _vocabulary() -> GrammarVocabulary:
    return GrammarVocabulary([*(bytes([byte]) for byte in range(256)), b""], [256], [256])


def _nested(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(levels):
        schema = {"type": "object", "properties": {"a": schema}}
    return schema


_DOUBLING = {
    f"l{i}": {"anyOf": [{"$ref": f"#/$defs/l{i - 1}"}, {"allOf": [{"$ref": f"#/$defs/l{i - 1}"}]}]}
    for i in range(1, 25)
}
_ENDLESS = (
    _schema({"type": "integer", "multipleOf": 1_000_003}),
    _schema({"allOf": [{"type": "string", "pattern": f".*{c}.*"} for c in "abcdefghijklmnopqrst"]}),
    GrammarSpec("regex", r"\w*" * 5000),
    GrammarSpec("lark", f"start: T\nT: {'A ' * 100}\nA: {'W* ' * 100}\nW: /[a-z]/"),
)
_REFUSED = (
    _schema(_nested(200)),
    _schema(
        {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}}
    ),
    _schema({"type": "object", "properties": {f"p{i}": True for i in range(5000)}}),
    GrammarSpec("regex", "(" * 5000 + "a" + ")" * 5000),
    GrammarSpec("lark", "start: " + "(" * 50_000 + '"a"' + ")" * 50_000),
    GrammarSpec("lark", "start: r\nr: s\ns: r"),
    GrammarSpec("lark", f'start: {"a? " * 5000}\na: "x"?'),
)
_COMPILED = (
    GrammarSpec("regex", "(a|b){1,100000}"),
    GrammarSpec("regex", "(a+)+(a*)*b"),
    GrammarSpec("regex", ".*a.{200}"),
    _schema({"enum": [f"value {i}" for i in range(5000)]}),
    _schema({"type": "string", "minLength": 10**5, "maxLength": 10**9}),
    _schema({"type": "array", "items": {"type": "integer"}, "minItems": 10**7}),
    _schema({"type": "object", "properties": {"child": {"$ref": "#"}}}),
    _schema({"$ref": "#/$defs/l24", "$defs": {"l0": {"type": "string"}, **_DOUBLING}}),
)


@pytest.fixture(scope="module")
def compiler() -> LLGuidanceCompiler:
    """A compiler for 804 tokens."""
    tokenizer = tokenizer_from_gguf(byte_level_metadata())
    return LLGuidanceCompiler(tokenizer, tokenizer.vocab_size, (1,))


@pytest.mark.parametrize("spec", _ENDLESS, ids=lambda spec: spec.text[:20])
def test_endless_grammars_are_given_up(spec: GrammarSpec, compiler: LLGuidanceCompiler) -> None:
    """The process that compiles them is stopped by its limits."""
    with pytest.raises(InvalidRequestError, match=r"takes too long|precomputation"):
        compiler.compile(spec)


@pytest.mark.parametrize("spec", _REFUSED, ids=lambda spec: spec.text[:20])
def test_hostile_grammars_are_refused(spec: GrammarSpec, compiler: LLGuidanceCompiler) -> None:
    """Depth, circles and sizes end in a reason."""
    with pytest.raises(InvalidRequestError, match="cannot be followed"):
        compiler.compile(spec)


@pytest.mark.parametrize("spec", _COMPILED, ids=lambda spec: spec.text[:20])
def test_large_grammars_compile(spec: GrammarSpec, compiler: LLGuidanceCompiler) -> None:
    """Large counts, what makes other engines backtrack, and references back."""
    assert any(compiler.compile(spec).matcher().allowed_tokens())


@pytest.mark.parametrize(
    ("kind", "source", "expected"),
    [
        ("lark", 'start: "a"', True),
        ("regex", "a" * MAX_UNTRIED_CHARS, False),
        ("regex", "a" * (MAX_UNTRIED_CHARS + 1), True),
        ("regex", "a pattern", False),
        ("json_schema", '{"pattern": "a"}', True),
        ("json_schema", '{"type": "object"}', False),
    ],
)
def test_grammars_are_tried_where_their_cost_is_open(
    kind: GrammarKind, source: str, expected: bool
) -> None:
    """Rules, long texts, and keywords that intersect expressions."""
    assert needs_trial(kind, source) == expected


def test_escapes_do_not_hide_a_keyword() -> None:
    """A keyword spelled with an escape is found, because the source spells it out."""
    source = grammar_source(GrammarSpec("json_schema", '{"m\\u0075ltipleOf": 3}'))

    assert needs_trial("json_schema", source)


def test_a_trial_gives_the_reason() -> None:
    """None where there is nothing to say against a grammar."""
    good, bad = (grammar_source(GrammarSpec("lark", rules)) for rules in ('start: "ä"', "start: x"))

    assert try_source(_vocabulary(), good) is None
    assert "unknown name" in (try_source(_vocabulary(), bad) or "")


def test_a_signal_to_the_servers_group_is_not_the_trials(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Else a drain would blame the grammar that is being tried."""
    command = tmp_path / "python"  # in the interpreter's place; tells its group as a reason
    command.write_text(f"#!{sys.executable}\nimport os\nprint(os.getpgid(0), end='')\n")
    command.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(command))

    assert try_source(_vocabulary(), "") not in (None, str(os.getpgid(0)))


def test_a_trial_that_gets_no_time_is_the_servers_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a grammar costs is told by the time of the processor, not by the clock on the wall."""
    monkeypatch.setattr(grammar_trial, "_MAX_TRIAL_S", 0.0)

    with pytest.raises(EngineError, match="could not be tried"):
        try_source(_vocabulary(), 'start: "a"')


def test_a_trial_that_cannot_run_is_the_servers_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is no statement about the grammar."""
    monkeypatch.setattr(sys, "executable", "false")

    with pytest.raises(EngineError, match="could not be tried"):
        try_source(_vocabulary(), 'start: "a"')
