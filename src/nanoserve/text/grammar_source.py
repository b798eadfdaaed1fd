"""What llguidance is told: the source of a grammar, the limits it is held to, its refusals.

A grammar is handed over as Lark rules, whatever it was written in, because Lark takes JSON
schemas and expressions in its stride and has the one switch that is needed everywhere:
`no_forcing`. Without it, text that a grammar leaves no choice about is tokenized by the
library, through a call back into Python in the middle of a step and by rules that read the
name of a special token in a text as that token. The model finds such tokens by itself.
"""

import json
import re
from typing import Any

from llguidance import LLMatcher, LLParserLimits, LLTokenizer, regex_to_lark

from nanoserve.errors import InvalidRequestError
from nanoserve.text.grammar_spec import JSON_STYLE, GrammarKind, GrammarSpec
from nanoserve.text.schema_bounds import crowded_object

MAX_GRAMMAR_CHARS = 131_072
_MAX_REASON_CHARS = 300

_ANY_OBJECT = '{"type": "object"}'
_NO_FORCING = '%llguidance {"no_forcing": true}'
_PREFIX = re.compile(r"(?:at )?\d+\(\d+\): (?:failed to compile JSON schema: )?")
_NAMES: dict[GrammarKind, str] = {
    "json_object": "JSON schema",
    "json_schema": "JSON schema",
    "regex": "regular expression",
    "lark": "grammar",
}
_UNSATISFIABLE = "NoExtensionBias"  # how llguidance says that no token may come next


def _limits() -> LLParserLimits:
    """Return the bounds of one compilation and of one step.

    Speeds are llguidance's own, of its documentation. A schema of 300 required properties has
    under 3,000 symbols, an answer of ten strings of bounded length under 10,000 states, and
    every optional property of an object is 4 items: 248 of them may stand in one. The most
    ambiguous rules get to 40 ms in a step.
    """
    return LLParserLimits(
        max_grammar_size=10_000,  # symbols
        initial_lexer_fuel=200_000,  # 50,000 a millisecond, before the first token
        step_lexer_fuel=100_000,  # 14,000 a millisecond, in each step
        step_max_items=4_000,  # of the parser, for one mask
        max_items_in_row=1_000,  # of the parser, for one byte
        max_lexer_states=30_000,  # 1 to 2 kB each
        # Here and not in the step where one is first met: it is then refused with its grammar.
        precompute_large_lexemes=True,
        verbose_errors=False,
    )


LIMITS = _limits()


def grammar_source(spec: GrammarSpec) -> str:
    """Return the Lark rules that say what `spec` says.

    Raises:
        InvalidRequestError: It is too long, or no JSON schema.
    """
    if len(spec.text) > MAX_GRAMMAR_CHARS:
        message = (
            f"The {_NAMES[spec.kind]} has {len(spec.text)} characters and the most is "
            f"{MAX_GRAMMAR_CHARS}. Send a smaller one."
        )
        raise InvalidRequestError(message)
    try:
        rules = _rules(spec)
        rules.encode()
    except UnicodeEncodeError:
        reason = "it holds a lone surrogate, which is not a character"
        raise refusal(spec.kind, reason) from None
    return rules


def _rules(spec: GrammarSpec) -> str:
    if spec.kind == "lark":
        return f"{spec.text}\n{_NO_FORCING}\n"  # last, so that errors name the caller's lines
    if spec.kind == "regex":
        # Digits and word characters are ASCII, as in a JSON schema's `pattern`.
        start = f"/{regex_to_lark(spec.text, 'dw')}/"
    else:
        start = f"%json {_styled_schema(spec)}"
    return f"{_NO_FORCING}\nstart: {start}\n"


def _styled_schema(spec: GrammarSpec) -> str:
    """Return the JSON text of a schema that says how its answers are spaced."""
    try:
        schema: Any = json.loads(_ANY_OBJECT if spec.kind == "json_object" else spec.text)
        is_object = isinstance(schema, dict)
        styled = schema | {"x-guidance": JSON_STYLE} if is_object else None
        text = json.dumps(styled, ensure_ascii=False)
    except (ValueError, RecursionError) as error:
        raise refusal(spec.kind, f"it is not JSON ({error})") from None
    problem = crowded_object(schema) if is_object else "it is not an object"
    if problem:
        raise refusal(spec.kind, problem)
    return text


def start_matcher(tokenizer: LLTokenizer, source: str) -> LLMatcher:
    """Compile `source`; return a matcher at its start, or one with `is_error()`.

    The first mask is computed as well: a grammar that nothing satisfies is found by it.
    """
    matcher = LLMatcher(tokenizer, source, log_level=0, limits=LIMITS)
    matcher.compute_bitmask()
    return matcher


def refusal(kind: GrammarKind, error: str) -> InvalidRequestError:
    """Return what to raise for llguidance's own words on why a grammar will not do.

    They begin with the reason, advice to whoever uses the library follows a semicolon, and
    what is wrong with an expression stands on a line of its own.
    """
    first, *others = error.split("\n")
    detail = next((f" {line}" for line in others if line.startswith("error: ")), "")
    reason = first.partition("; ")[0][:_MAX_REASON_CHARS] + detail
    if kind != "lark":
        reason = _PREFIX.sub("", reason, count=1)
    if reason == _UNSATISFIABLE:
        reason = "nothing satisfies it"
    message = f"This {_NAMES[kind]} cannot be followed: {reason}."
    return InvalidRequestError(message)
