"""Formulas: what is printed is what was computed."""

import pytest

from nanoserve.errors import InvariantError
from nanoserve.plan.formula import compute, evaluate


def test_the_value_follows_from_the_text() -> None:
    """The printed numbers come to the value."""
    pool = compute(
        "pool", "floor(share * total) - held", "bytes", {"share": 0.9, "total": 101, "held": 7}
    )

    assert pool.value == 83
    assert pool.substituted == "floor(0.9 * 101) - 7"
    assert evaluate(pool.substituted) == pool.value


def test_a_negative_number_stands_in_brackets() -> None:
    """Subtracting a negative number reads as such."""
    left = compute("left", "a - b", "bytes", {"a": 1, "b": -2})

    assert left.substituted == "1 - (-2)"
    assert evaluate(left.substituted) == 3


@pytest.mark.parametrize("text", ["missing + 1", "'text'", "[1]", "1 if 2 else 3", "a.b"])
def test_what_is_no_formula_is_refused(text: str) -> None:
    """Only arithmetic on numbers and known symbols is a formula."""
    with pytest.raises(InvariantError):
        evaluate(text)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("7 // 2", 3),
        ("7 / 2", 3.5),
        ("2 ** 3", 8),
        ("ceil(7 / 2)", 4),
        ("max(1, min(3, 2))", 2),
        ("-3 + 4", 1),
    ],
)
def test_operators(text: str, value: float) -> None:
    """Every operator means what Python says."""
    assert evaluate(text) == value
