"""The exception tree is drawn as it is, and messages carry their numbers."""

import inspect
import re

from nanoserve import errors
from nanoserve.errors import (
    CorruptFileError,
    DoesNotFitError,
    NanoserveError,
    PromptTooLongError,
    WeightMismatchError,
)


def classes_under(root: type) -> list[str]:
    """Return the tree as `depth name` lines, in no order."""
    found: list[str] = []
    child: type
    for child in root.__subclasses__():
        if child.__module__ == errors.__name__:
            found += [f"{root.__name__}>{child.__name__}", *classes_under(child)]
    return found


def test_docstring_draws_the_tree() -> None:
    """Every class stands in the drawing under its parent."""
    drawn, parents = [], {0: "NanoserveError"}
    for line in (inspect.getdoc(errors) or "").splitlines():
        match = re.match(r"([│ ]*)[├└]── (\w+)", line)
        if match:
            depth = len(match[1]) // 4 + 1
            parents[depth] = match[2]
            drawn.append(f"{parents[depth - 1]}>{match[2]}")

    assert sorted(drawn) == sorted(classes_under(NanoserveError))


def test_long_lists_of_names_are_cut() -> None:
    """A mismatch names ten tensors and counts the rest."""
    error = WeightMismatchError("dir", missing=tuple(f"t{i}" for i in range(12)), misshapen=("x",))

    assert "12 missing (t0" in str(error)
    assert "and 2 more" in str(error)
    assert "1 of the wrong shape (x)" in str(error)


def test_a_damaged_file_says_where() -> None:
    """Path, offset and problem are in the message."""
    assert str(CorruptFileError("m.gguf", "It ends early.", 1024)).startswith(
        "m.gguf is damaged at byte 1,024: It ends early."
    )


def test_refusal_carries_its_numbers() -> None:
    """Need, have and advice are attributes and text."""
    error = DoesNotFitError("Too big.", 2**31, 2**30, ("--max-model-len 5",))

    assert (error.need_bytes, error.have_bytes) == (2**31, 2**30)
    assert str(error) == (
        "Too big. It needs 2.00 GiB; 1.00 GiB is available. "
        "Any one of these would do: --max-model-len 5."
    )


def test_long_prompt_is_refused_in_openais_words() -> None:
    """Clients, litellm among them, tell a full context from other errors by this beginning."""
    assert str(PromptTooLongError(8, 6, 4)).startswith(
        "This model's maximum context length is 8 tokens. "
    )
