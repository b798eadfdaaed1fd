"""Which grammar an answer must follow, from the fields that say so.

Pure. `tool_grammar` makes the grammar of forced tool calls; compiling is the compiler's.
"""

import json
import re
from collections.abc import Iterator
from typing import Any

from nanoserve.errors import InvalidRequestError
from nanoserve.server.protocol import (
    MAX_GUIDED_CHOICES,
    GenerationFields,
    SchemaFormat,
    TextFormat,
)
from nanoserve.text.grammar_spec import Grammar, GrammarCompiler, GrammarSpec

_OPERATORS = re.compile(r"[.^$*+?{}\[\]\\|()]")


def grammar_of(fields: GenerationFields) -> tuple[str, GrammarSpec] | None:
    """Return the grammar that `fields` ask for, with the field's name; None for free text.

    Raises:
        InvalidRequestError: Two fields ask for one, or a field is no grammar at sight.
    """
    found = [*_from_format(fields), *_from_guided(fields), *_from_structured(fields)]
    if len(found) > 1:
        names = " and ".join(name for name, _ in found)
        message = f"{names} each say what the answer must follow; send one of them."
        raise InvalidRequestError(message, found[1][0])
    return found[0] if found else None


def compile_grammar(spec: GrammarSpec, param: str, compiler: GrammarCompiler | None) -> Grammar:
    """Compile a grammar; run off the event loop.

    Args:
        spec: What to compile.
        param: The field that asked for it.
        compiler: None where the server has none.

    Raises:
        InvalidRequestError: There is no compiler, or it refuses the grammar.
    """
    if compiler is None:
        message = f"{param} is not supported: this server was started without a grammar compiler."
        raise InvalidRequestError(message, param)
    try:
        return compiler.compile(spec)
    except InvalidRequestError as error:
        message = f"{param}: {error}"
        raise InvalidRequestError(message, param) from None


def _from_format(fields: GenerationFields) -> Iterator[tuple[str, GrammarSpec]]:
    wanted = fields.response_format
    if wanted is None or isinstance(wanted, TextFormat):
        return
    if isinstance(wanted, SchemaFormat):
        schema = wanted.json_schema.json_schema
        if schema is None:
            message = "response_format.json_schema has no schema."
            raise InvalidRequestError(message, "response_format")
        yield "response_format", _schema_spec(schema)
    else:
        yield "response_format", GrammarSpec("json_object")


def _from_guided(fields: GenerationFields) -> Iterator[tuple[str, GrammarSpec]]:
    yield from _named("guided_json", fields.guided_json, _schema_spec)
    yield from _named("guided_regex", fields.guided_regex, _regex_spec)
    yield from _named("guided_choice", fields.guided_choice, _choice_spec)
    yield from _named("guided_grammar", fields.guided_grammar, _rules_spec)


def _from_structured(fields: GenerationFields) -> Iterator[tuple[str, GrammarSpec]]:
    wanted = fields.structured_outputs
    name = "structured_outputs"
    if wanted is None:
        return
    yield from _named(name, wanted.json_, _schema_spec)
    yield from _named(name, wanted.regex, _regex_spec)
    yield from _named(name, wanted.choice, _choice_spec)
    yield from _named(name, wanted.grammar, _rules_spec)
    yield from _named(name, wanted.json_object or None, lambda _: GrammarSpec("json_object"))


def _named(name: str, value: Any, make: Any) -> Iterator[tuple[str, GrammarSpec]]:
    """Yield the grammar of a field that is set."""
    if value is None:
        return
    try:
        yield name, make(value)
    except ValueError as error:
        message = f"{name} {error}."
        raise InvalidRequestError(message, name) from None


def _schema_spec(schema: str | dict[str, Any]) -> GrammarSpec:
    text = schema if isinstance(schema, str) else json.dumps(schema, ensure_ascii=False)
    return GrammarSpec("json_schema", text)


def _regex_spec(expression: str) -> GrammarSpec:
    return GrammarSpec("regex", expression)


def _rules_spec(rules: str) -> GrammarSpec:
    return GrammarSpec("lark", rules)


def _choice_spec(choices: list[str]) -> GrammarSpec:
    if not 1 <= len(choices) <= MAX_GUIDED_CHOICES or "" in choices:
        message = f"needs 1 to {MAX_GUIDED_CHOICES} texts, none of them empty"
        raise ValueError(message)
    return GrammarSpec("regex", "|".join(_OPERATORS.sub(r"\\\g<0>", text) for text in choices))
