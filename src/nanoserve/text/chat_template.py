"""`ChatTemplate`: messages to the prompt the model was trained on.

A template comes with the model file and the messages from a client: neither is trusted. It
runs in jinja2's sandbox, with bounds on loop steps and text. What they leave (one step that
takes for ever) needs a process that can be killed: see `template_process`.
"""

import json
import re
from collections.abc import Callable
from datetime import datetime
from functools import wraps
from typing import Any, NoReturn

from jinja2 import TemplateError, TemplateSyntaxError, nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

from nanoserve.errors import InvalidRequestError, UnsupportedModelError

MAX_RENDERED_CHARS = 4 * 1024 * 1024  # far above any context; 4 bytes each at worst
MAX_STEPS = 50_000  # loop turns and macro calls of one rendering
_MAX_INT_BITS = 4096
_STEPS_LEFT = "steps left"  # no template can name a variable with a blank in it
_WIDE_PERCENT = re.compile(r"%(\([^)]*\))?[-+ #0]*[0-9]*\.?(\*|[0-9]{5})")  # '%99999d', '%.*f'
_WIDE_BRACES = re.compile(r"\{[^{}]*:[^{}]*(\{|[0-9]{5})")  # '{:>99999}', '{:{width}}'
_RENDER_ERRORS = (
    TemplateError,
    ArithmeticError,
    AttributeError,
    LookupError,
    MemoryError,
    RuntimeError,  # RecursionError is one
    TypeError,
    ValueError,
)


class ChatTemplate:
    """A compiled template.

    Behaves like transformers' `apply_chat_template`: blocks trimmed, `break` and `continue`,
    `raise_exception`, `strftime_now`, a `tojson` that escapes nothing, `{% generation %}`.

    Attributes:
        source: As it was handed in.
    """

    def __init__(self, source: str, bos_token: str | None, eos_token: str | None) -> None:
        """Compile `source`.

        Raises:
            UnsupportedModelError: It is not a template jinja2 understands.
        """
        self.source = source
        self._tokens = {"bos_token": bos_token, "eos_token": eos_token}
        environment = _Environment()
        try:
            tree = _StepCounter().visit(environment.parse(source))
            code = environment.compile(tree)
        except (*_RENDER_ERRORS, SyntaxError) as error:
            what = f"The model's chat template cannot be compiled: {_describe(error)}."
            raise UnsupportedModelError(what) from error
        global_names = environment.make_globals(None)
        self._template = environment.template_class.from_code(environment, code, global_names)

    def render(
        self,
        messages: list[dict[str, Any]],
        *,
        add_generation_prompt: bool = True,
        **variables: Any,
    ) -> str:
        """Return the prompt text, special tokens written out.

        Tokenise it without adding special tokens again. A message field that is None counts
        as absent.

        Args:
            messages: JSON objects with at least a role.
            add_generation_prompt: End with the opening of an assistant message.
            variables: What else the template may read, e.g. `tools`, `enable_thinking`.

        Raises:
            InvalidRequestError: The template refuses the messages, or passes a bound.
        """
        shown_messages = [
            {key: value for key, value in message.items() if value is not None}
            for message in messages
        ]
        names = {"tools": None, "documents": None, **variables, **self._named_tokens()}
        names |= {"messages": shown_messages, "add_generation_prompt": add_generation_prompt}
        names[_STEPS_LEFT] = iter(range(MAX_STEPS))
        try:
            return self._join(names)
        except _RENDER_ERRORS as error:
            message = f"The chat template cannot render these messages: {_describe(error)}."
            raise InvalidRequestError(message, "messages") from error

    @property
    def arguments(self) -> dict[str, str | None]:
        """What the template was made of, for another process to make it again."""
        return {"source": self.source, **self._tokens}

    def _named_tokens(self) -> dict[str, str]:
        return {name: token for name, token in self._tokens.items() if token is not None}

    def _join(self, names: dict[str, Any]) -> str:
        pieces = []
        num_chars = 0
        for piece in self._template.generate(names):
            num_chars += len(piece)
            _check_chars(num_chars)
            pieces.append(piece)
        return "".join(pieces)


class _Environment(ImmutableSandboxedEnvironment):
    """jinja2's sandbox, with transformers' functions and with bounds."""

    intercepted_binops = frozenset(["+", "*", "**", "%"])

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[loopcontrols, _GenerationBlock],
            finalize=_check_value,
        )
        self.filters["tojson"] = _to_json
        self.filters["format"] = _format
        for name in ("batch", "center", "indent", "slice"):
            self.filters[name] = _with_checked_widths(self.filters[name])
        self.globals["raise_exception"] = _raise_exception
        self.globals["strftime_now"] = _strftime_now
        del self.globals["lipsum"]

    def count_step(self, context: Context) -> None:
        """Take one of the rendering's steps."""
        if next(context[_STEPS_LEFT], None) is None:
            message = f"it takes more than {MAX_STEPS:,} loop steps"
            raise SecurityError(message)

    def join_texts(self, *values: Any) -> str:
        """Join what `~` joins."""
        texts = [str(value) for value in values]
        _check_chars(sum(map(len, texts)))
        return "".join(texts)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Compute an operator whose result could be huge."""
        if operator == "**":
            _check_power(left, right)
        elif operator == "*":
            _check_repeat(left, right)
            _check_repeat(right, left)
        elif operator == "%" and isinstance(left, str):
            _check_format(left, _WIDE_PERCENT)
        result = super().call_binop(context, operator, left, right)
        return _check_value(result)

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        """Call `__obj`; a string's method only with widths a prompt can have.

        The names are jinja2's: they leave every other one to the template.
        """
        if isinstance(getattr(__obj, "__self__", None), str):
            _check_widths(*args, *kwargs.values())
        return super().call(__context, __obj, *args, **kwargs)

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        """Return the sandbox's `str.format`, for formats of ordinary width."""
        wrapped = super().wrap_str_format(value)
        if wrapped is not None:
            _check_format(value.__self__, _WIDE_BRACES)
        return wrapped


class _StepCounter(NodeTransformer):
    """Makes every loop turn and macro call count as a step, and `~` check its result."""

    def visit_For(self, node: nodes.For) -> nodes.Node:
        return self._counted(node)

    def visit_Macro(self, node: nodes.Macro) -> nodes.Node:
        return self._counted(node)

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        self.generic_visit(node)
        return _call_environment("join_texts", node.nodes, node.lineno)

    def _counted(self, node: nodes.For | nodes.Macro) -> nodes.Node:
        self.generic_visit(node)
        step = _call_environment("count_step", [nodes.ContextReference()], node.lineno)
        node.body.insert(0, nodes.ExprStmt(step, lineno=node.lineno))
        return node


def _call_environment(method: str, arguments: list[nodes.Expr], lineno: int) -> nodes.Call:
    function = nodes.EnvironmentAttribute(method)
    return nodes.Call(function, arguments, [], None, None, lineno=lineno)


class _GenerationBlock(Extension):
    """`{% generation %}`, which marks an assistant's text for training: its content."""

    tags = {"generation"}  # noqa: RUF012 - declared so by jinja2

    def parse(self, parser: Parser) -> nodes.Node:
        lineno = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=lineno)


def _check_value(value: Any) -> Any:
    if isinstance(value, str | list | tuple):
        _check_chars(len(value))
    return value


def _check_chars(num_chars: int) -> None:
    if num_chars > MAX_RENDERED_CHARS:
        message = f"it makes more than {MAX_RENDERED_CHARS:,} characters"
        raise SecurityError(message)


def _check_repeat(repeated: Any, times: Any) -> None:
    if isinstance(repeated, str | list | tuple) and isinstance(times, int):
        _check_chars(len(repeated) * times)


def _check_power(base: Any, exponent: Any) -> None:
    if isinstance(base, int) and isinstance(exponent, int):
        num_bits = base.bit_length() * exponent
        if num_bits > _MAX_INT_BITS:
            message = f"it computes a number of {num_bits:,} bits"
            raise SecurityError(message)


def _check_format(text: str, wide: re.Pattern[str]) -> None:
    if wide.search(text):
        message = f"it formats with {text[:40]!r}, a width no prompt has"
        raise SecurityError(message)


def _check_widths(*arguments: Any) -> None:
    for argument in arguments:
        if isinstance(argument, int):
            _check_chars(argument)


def _with_checked_widths(filter_function: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(filter_function)
    def checked(*args: Any, **kwargs: Any) -> Any:
        _check_widths(*args, *kwargs.values())
        return filter_function(*args, **kwargs)

    return checked


def _format(text: str, *args: Any, **kwargs: Any) -> str:
    """jinja2's `format` filter, for formats of ordinary width."""
    _check_format(text, _WIDE_PERCENT)
    return text % (kwargs or args)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _raise_exception(message: str) -> NoReturn:
    raise TemplateError(message)


def _strftime_now(format: str) -> str:
    return datetime.now().strftime(format)


def _describe(error: BaseException) -> str:
    if isinstance(error, TemplateSyntaxError):
        return f"line {error.lineno}: {error.message}"
    text = str(error).rstrip(".")
    return text if isinstance(error, TemplateError) else f"{type(error).__name__}: {text}"
