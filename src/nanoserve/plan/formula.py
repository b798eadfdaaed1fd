"""A formula as data: its symbols, their numbers, and the value that follows from both.

The value is computed from the text that is printed, so the two cannot differ. Knows no
memory: who writes formulas is `kv_layout` here, and most modules of `capacity`.
"""

import ast
import math
import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

from nanoserve.errors import InvariantError

Number = int | float
Unit = Literal["bytes", "tokens", "requests", "seconds", "parameters", "blocks"]

_OPERATORS: dict[type[ast.AST], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Pow: operator.pow,
}
_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "min": min,
    "max": max,
    "floor": math.floor,
    "ceil": math.ceil,
    "round": round,
}
_NAME = re.compile(r"[A-Za-z_]\w*")


@dataclass(frozen=True, slots=True)
class Formula:
    """One computed figure.

    Attributes:
        name: What it gives, e.g. `KV pool`.
        expression: Arithmetic on symbols, as Python writes it.
        symbols: The number of each symbol.
        value: What it comes to.
        unit: Of the value.
    """

    name: str
    expression: str
    symbols: Mapping[str, Number]
    value: Number
    unit: Unit

    @property
    def substituted(self) -> str:
        """The expression with the numbers in place of the symbols."""
        return _NAME.sub(self._number_of, self.expression)

    def _number_of(self, match: re.Match[str]) -> str:
        name = match[0]
        if name in _FUNCTIONS:
            return name
        number = self.symbols[name]
        return f"({number!r})" if number < 0 else repr(number)


def compute(name: str, expression: str, unit: Unit, symbols: Mapping[str, Number]) -> Formula:
    """Return a formula with its value, computed from its text.

    Example: `compute("pool", "floor(share * total)", "bytes", {"share": 0.9, "total": 10})`
    has the value 9.
    """
    return Formula(name, expression, symbols, evaluate(expression, symbols), unit)


def evaluate(expression: str, symbols: Mapping[str, Number] | None = None) -> Number:
    """Return what an expression comes to: numbers, symbols, + - * / // **, min, max, rounding.

    Raises:
        InvariantError: The text is no such expression, or has a symbol without a number.
    """
    value: Number = _value(_parsed(expression), symbols or {})
    return value


@cache
def _parsed(expression: str) -> ast.expr:
    return ast.parse(expression, mode="eval").body


def _value(node: ast.expr, symbols: Mapping[str, Number]) -> Any:
    if isinstance(node, ast.Constant) and isinstance(node.value, int | float):
        return node.value
    if isinstance(node, ast.Name) and node.id in symbols:
        return symbols[node.id]
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_value(node.operand, symbols)
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        left, right = _value(node.left, symbols), _value(node.right, symbols)
        return _OPERATORS[type(node.op)](left, right)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        return _FUNCTIONS[node.func.id](*(_value(item, symbols) for item in node.args))
    message = f"a formula cannot have {ast.unparse(node)!r}"
    raise InvariantError(message)
