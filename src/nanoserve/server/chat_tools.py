"""What `tools` and `tool_choice` ask for: which calls count, and the grammar that forces one."""

from typing import Any

from nanoserve.errors import InvalidRequestError
from nanoserve.server.chat_protocol import MAX_TOOLS, ChatCompletionRequest, Function, NamedTool
from nanoserve.server.grammar_fields import grammar_of
from nanoserve.server.json_body import parse_object
from nanoserve.server.prompt_encoding import ChatRenderer
from nanoserve.server.tool_calls import ToolCallRules
from nanoserve.server.tool_style import ToolStyle, detect_tool_style, tool_call_grammar
from nanoserve.text.grammar_spec import GrammarSpec


def chat_grammar(
    fields: ChatCompletionRequest, template: ChatRenderer | None
) -> tuple[ToolCallRules | None, tuple[str, GrammarSpec] | None]:
    """Return which tool calls to look for, and what grammar the answer must follow.

    Raises:
        InvalidRequestError: The model cannot call tools, or fields contradict each other.
    """
    grammar = grammar_of(fields)
    functions = _functions_to_call(fields)
    if not functions:
        return None, grammar
    is_named = isinstance(fields.tool_choice, NamedTool)
    is_parallel = fields.parallel_tool_calls is not False and not is_named
    rules = ToolCallRules(
        style=_style_of(template),
        names=tuple(function.name for function in functions),
        is_forced=is_named or fields.tool_choice == "required",
        max_calls=MAX_TOOLS if is_parallel else 1,
    )
    if rules.is_forced:  # then there is no text that another grammar could apply to
        return rules, ("tool_choice", tool_call_grammar(rules.style, functions, is_parallel))
    if grammar is None:
        return rules, None
    param, spec = grammar
    schema = _answer_schema(param, spec)
    return rules, (param, tool_call_grammar(rules.style, functions, is_parallel, schema))


def _answer_schema(param: str, spec: GrammarSpec) -> dict[str, Any]:
    """Return the schema of an answer that may be a tool call instead."""
    if spec.kind == "json_object":
        return {"type": "object"}
    if spec.kind != "json_schema":
        message = f"{param} can only be combined with tools where it asks for JSON."
        raise InvalidRequestError(message, param)
    try:
        return parse_object(spec.text.encode())
    except InvalidRequestError:
        message = f"{param} holds a schema that is no JSON object."
        raise InvalidRequestError(message, param) from None


def _functions_to_call(fields: ChatCompletionRequest) -> list[Function]:
    """Return the functions that the answer may call; none where tools are ruled out."""
    choice = fields.tool_choice
    functions = [tool.function for tool in fields.tools or ()]
    if len({function.name for function in functions}) < len(functions):
        message = "tools has two functions of one name."
        raise InvalidRequestError(message, "tools")
    if choice == "none":
        return []
    if isinstance(choice, NamedTool):
        functions = [f for f in functions if f.name == choice.function.name]
    if not functions and choice not in (None, "auto"):
        message = "tool_choice asks for a tool call that tools does not have."
        raise InvalidRequestError(message, "tool_choice")
    return functions


def _style_of(template: ChatRenderer | None) -> ToolStyle:
    style = None if template is None else detect_tool_style(template.source)
    if style is None:
        message = (
            "tools is not supported with this model: its chat template has no tools, or has "
            "calls in a form that this server does not read. Leave tools out."
        )
        raise InvalidRequestError(message, "tools")
    return style
