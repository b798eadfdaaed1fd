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
        ("min_tokens", -1),
        ("min_tokens", 17),
        ("min_tokens", None),
        ("presence_penalty", 2.1),
        ("frequency_penalty", math.nan),
        ("repetition_penalty", 0.0),
        ("repetition_penalty", 10.1),
        ("logit_bias", {5: 1.0}),
        ("logit_bias", ((5, 1.0, 2),)),
        ("logit_bias", ((-1, 1.0),)),
        ("logit_bias", (("5", 1.0),)),
        ("logit_bias", ((5, 100.1),)),
        ("logit_bias", ((5, math.nan),)),
        ("logit_bias", ((5, 1.0),) * 1025),
        ("num_logprobs", 21),
        ("num_logprobs", True),
        ("num_prompt_logprobs", -1),
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
        ("min_tokens", 16),
        ("presence_penalty", -2.0),
        ("frequency_penalty", 2),
        ("repetition_penalty", 0.01),
        ("logit_bias", ((0, -100.0), (5, 100))),
        ("num_logprobs", 0),
        ("num_logprobs", 20),
        ("num_prompt_logprobs", None),
    ],
)
def test_the_ends_of_a_range_belong_to_it(field: str, value: Any) -> None:
    """Limits are inclusive, but for top_p at 0."""
    assert getattr(SamplingParams(**{field: value}), field) == value


def test_no_tokens_can_be_asked_for_only_to_score_the_prompt() -> None:
    """max_tokens 0 generates nothing, so it needs another purpose."""
    assert SamplingParams(max_tokens=0, num_prompt_logprobs=0).max_tokens == 0


@pytest.mark.parametrize(
    ("fields", "has_penalties"),
    [
        ({}, False),
        ({"temperature": 0.5, "logit_bias": ((1, 5.0),)}, False),
        ({"presence_penalty": 0.1}, True),
        ({"frequency_penalty": -0.1}, True),
        ({"repetition_penalty": 0.9}, True),
    ],
)
def test_only_penalties_look_back(fields: dict[str, Any], has_penalties: bool) -> None:
    """A neutral penalty is none."""
    assert SamplingParams(**fields).has_penalties is has_penalties


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
