"""How a model writes tool calls, and the grammar that makes it write them.

Two styles are known: `<tool_call>{"name": …, "arguments": …}</tool_call>` among text
(Hermes, Qwen), and a bare `{"name": …, "parameters": …}` in its place (Llama 3). Which one
a model was trained on shows in its chat template.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from nanoserve.errors import InvalidRequestError
from nanoserve.server.chat_protocol import Function
from nanoserve.text.grammar_spec import JSON_STYLE, GrammarSpec
from nanoserve.text.schema_bounds import crowded_object

# Keywords of JSON schema by which `properties` need not list everything.
_MORE_PROPERTIES = frozenset(
    {
        *("$ref", "allOf", "anyOf", "oneOf", "if", "dependentSchemas"),
        *("additionalProperties", "patternProperties", "unevaluatedProperties"),
    }
)


@dataclass(frozen=True, slots=True)
class ToolStyle:
    """The words around a call.

    Attributes:
        opening: Begins a call anywhere in the text; '' where a call is all there is.
        closing: Ends it.
        arguments_key: The key that holds the arguments.
    """

    opening: str
    closing: str
    arguments_key: str

    def start_of(self, name: str) -> str:
        """Return the text of a forced call up to its arguments."""
        line_break = "\n" if self.opening else ""
        return f'{self.opening}{line_break}{{"name": "{name}", "{self.arguments_key}": '

    @property
    def end(self) -> str:
        """The text of a forced call after its arguments."""
        line_break = "\n" if self.closing else ""
        return f"}}{line_break}{self.closing}"


HERMES = ToolStyle("<tool_call>", "</tool_call>", "arguments")
LLAMA = ToolStyle("", "", "parameters")


def detect_tool_style(template_source: str) -> ToolStyle | None:
    """Return the style that a chat template asks for; None where it knows none of ours."""
    source = template_source.replace('\\"', '"')
    if "tools" not in source or "<function=" in source:  # calls written in XML
        return None
    if HERMES.opening in source:
        return HERMES
    return LLAMA if '"name"' in source and '"parameters"' in source else None


def tool_call_grammar(
    style: ToolStyle,
    functions: Sequence[Function],
    is_parallel: bool,
    answer_schema: dict[str, Any] | None = None,
) -> GrammarSpec:
    """Return the grammar of an answer that calls one of `functions`, or several if parallel.

    The arguments follow each function's `parameters`, a JSON schema of an object.

    Args:
        style: How the model writes calls.
        functions: At least one.
        is_parallel: Whether calls may repeat.
        answer_schema: JSON that may stand in the place of calls; None where nothing may.

    Raises:
        InvalidRequestError: Names the function whose parameters are no object.
    """
    repeats = ' ("\\n" call)*' if is_parallel and style.opening else ""
    names = [f"call_{index}" for index in range(len(functions))]
    rules = [f"calls: call{repeats}", f"call: {' | '.join(names)}"]
    if answer_schema is None:
        rules.insert(0, "start: calls")
    else:
        rules.insert(0, f"start: answer | calls\nanswer: {_json_rule(answer_schema)}")
    for index, function in enumerate(functions):
        opening = json.dumps(style.start_of(function.name))
        closing = json.dumps(style.end)
        rules.append(f"call_{index}: {opening} args_{index} {closing}")
        rules.append(f"args_{index}: {_json_rule(_object_schema(function))}")
    return GrammarSpec("lark", "\n".join(rules))


def _json_rule(schema: dict[str, Any]) -> str:
    return f"%json {json.dumps(schema | {'x-guidance': JSON_STYLE})}"


def _object_schema(function: Function) -> dict[str, Any]:
    """Return the schema of a function's arguments; left out, it takes none.

    A function takes the arguments it lists. JSON schema would let a model invent more, unless
    `additionalProperties` is stated, as hardly any client does.
    """
    if function.parameters is None:
        return {"type": "object", "additionalProperties": False}
    schema = {"type": "object", **function.parameters}
    if schema["type"] != "object":
        message = (
            f"The parameters of function '{function.name}' in tools are of type "
            f"{json.dumps(schema['type'])[:40]}; they must be an object."
        )
        raise InvalidRequestError(message, "tools")
    problem = crowded_object(schema)
    if problem:
        message = f"The parameters of function '{function.name}' in tools: {problem}."
        raise InvalidRequestError(message, "tools")
    if "properties" in schema and _MORE_PROPERTIES.isdisjoint(schema):
        schema["additionalProperties"] = False
    return schema
