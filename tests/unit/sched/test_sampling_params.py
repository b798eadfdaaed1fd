"""`sampling_params`: the range of every field."""

import math
from typing import Any

import pytest

from nanoserve.errors import InvalidRequestError
from nanoserve.sched.sampling_params import MAX_SEED, SamplingParams


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("max_tokens", 0),
        ("temperature", -0.1),
        ("temperature", 2.1),
        ("temperature", math.nan),
        ("top_p", 0.0),
        ("top_p", 1.1),
        ("top_p", math.inf),
        ("top_k", -1),
        ("min_p", -0.1),
        ("min_p", 1.1),
        ("seed", MAX_SEED + 1),
        ("seed", -MAX_SEED - 2),
        ("n", 0),
        ("n", 2.5),
        ("n", None),
        ("seed", 1.5),
        ("max_tokens", True),
        ("temperature", "0.7"),
        ("temperature", None),
        ("stop", "ab"),
        ("stop", (5,)),
        ("stop_token_ids", ("a",)),
        ("n", 129),
        ("stop", ("a", "b", "c", "d", "e")),
        ("stop", ("",)),
        ("stop", ("a" * 1001,)),
        ("stop_token_ids", (3, -1)),
        ("stop_token_ids", (3,) * 1001),
    ],
)
def test_a_value_out_of_range_names_its_field(field: str, value: Any) -> None:
    """The error carries the field, and its text the field and what is allowed."""
    with pytest.raises(InvalidRequestError, match=f"{field} is .*; it must be ") as caught:
        SamplingParams(**{field: value})

    assert caught.value.param == field


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("max_tokens", 1),
        ("max_tokens", None),
        ("temperature", 0.0),
        ("temperature", 2.0),
        ("top_p", 1.0),
        ("top_k", 0),
        ("min_p", 1.0),
        ("seed", MAX_SEED),
        ("seed", -MAX_SEED - 1),
        ("n", 128),
        ("stop", ("a", "b", "c", "d")),
        ("stop_token_ids", (0,)),
    ],
)
def test_the_ends_of_a_range_belong_to_it(field: str, value: Any) -> None:
    """Limits are inclusive, but for top_p at 0."""
    assert getattr(SamplingParams(**{field: value}), field) == value


def test_each_choice_has_a_seed_of_its_own() -> None:
    """Answer i is one answer with seed + i, within 64 bits."""
    sampling = SamplingParams(n=3, seed=MAX_SEED)

    choices = [sampling.for_choice(index) for index in range(2)]

    assert [(choice.n, choice.seed) for choice in choices] == [
        (1, MAX_SEED),
        (1, -MAX_SEED - 1),
    ]


def test_a_choice_without_a_seed_stays_without() -> None:
    """Entropy is drawn per request, not per call."""
    assert SamplingParams(n=2).for_choice(1).seed is None
