"""`admission`: what is refused at the door, and with which numbers."""

from dataclasses import replace
from typing import Any

import pytest

from nanoserve.errors import InvalidRequestError, OptionError, PromptTooLongError
from nanoserve.sched.admission import EngineLimits, admit_or_refuse
from nanoserve.sched.sampling_params import SamplingParams

LIMITS = EngineLimits(
    num_blocks=8,
    block_size=4,
    max_num_seqs=2,
    max_num_batched_tokens=16,
    max_model_len=24,
    vocab_size=100,
)


def limits_with(**changes: Any) -> EngineLimits:
    return replace(LIMITS, **changes)


def test_a_request_that_fits_keeps_its_parameters() -> None:
    """A request within every limit is returned unchanged."""
    sampling = SamplingParams(max_tokens=4)

    assert admit_or_refuse(limits_with(), [1] * 20, sampling) is sampling


def test_open_max_tokens_is_the_rest_of_the_context() -> None:
    """max_tokens None becomes max_model_len less the prompt."""
    resolved = admit_or_refuse(limits_with(), [1] * 10, SamplingParams(max_tokens=None))

    assert resolved.max_tokens == 14


def test_open_max_tokens_is_at_most_the_rest_of_the_pool() -> None:
    """max_tokens None never asks for more tokens than the pool has slots."""
    limits = limits_with(num_blocks=3)

    resolved = admit_or_refuse(limits, [1] * 10, SamplingParams(max_tokens=None))

    assert resolved.max_tokens == 2


def test_an_empty_prompt_is_refused() -> None:
    """A request needs at least one prompt token."""
    with pytest.raises(InvalidRequestError, match="empty") as caught:
        admit_or_refuse(limits_with(), [], SamplingParams())

    assert caught.value.param == "prompt"


@pytest.mark.parametrize("token_id", [-1, 100])
def test_a_prompt_id_outside_the_vocabulary_is_named(token_id: int) -> None:
    """The refusal names the id, where it stands, and the ids there are."""
    with pytest.raises(InvalidRequestError, match=rf"id {token_id} at index 1; .* 0 to 99"):
        admit_or_refuse(limits_with(), [99, token_id], SamplingParams(max_tokens=1))


def test_a_stop_id_outside_the_vocabulary_is_named() -> None:
    """stop_token_ids are checked like the prompt."""
    sampling = SamplingParams(max_tokens=1, stop_token_ids=(3, 777))

    with pytest.raises(InvalidRequestError, match="777") as caught:
        admit_or_refuse(limits_with(), [1], sampling)

    assert caught.value.param == "stop_token_ids"


def test_more_tokens_than_the_context_are_refused_with_the_numbers() -> None:
    """Prompt + max_tokens may not pass max_model_len."""
    with pytest.raises(PromptTooLongError) as caught:
        admit_or_refuse(limits_with(), [1] * 20, SamplingParams(max_tokens=5))

    error = caught.value
    assert (error.limit_tokens, error.prompt_tokens, error.requested_tokens) == (24, 20, 5)


def test_more_tokens_than_the_pool_are_refused_with_the_numbers() -> None:
    """A request whose worst case exceeds the whole pool could never finish."""
    with pytest.raises(PromptTooLongError) as caught:
        admit_or_refuse(limits_with(num_blocks=5), [1] * 20, SamplingParams(max_tokens=1))

    assert caught.value.limit_tokens == 20


def test_a_prompt_that_leaves_no_room_for_a_token_is_refused() -> None:
    """With max_tokens None at least one token must still fit."""
    with pytest.raises(PromptTooLongError) as caught:
        admit_or_refuse(limits_with(), [1] * 24, SamplingParams(max_tokens=None))

    assert caught.value.requested_tokens == 1


@pytest.mark.parametrize(
    "field", ["num_blocks", "block_size", "max_num_seqs", "max_model_len", "vocab_size"]
)
def test_limits_below_one_are_refused(field: str) -> None:
    """Limits under which nothing could run name their field."""
    with pytest.raises(OptionError, match=f"{field} is 0"):
        limits_with(**{field: 0})


def test_the_token_budget_covers_one_token_of_every_request() -> None:
    """A budget below max_num_seqs is refused, with both values that would work."""
    with pytest.raises(OptionError, match=r"batched-tokens to 8, or lower --max-num-seqs to 7"):
        limits_with(max_num_seqs=8, max_num_batched_tokens=7)


def test_a_biased_id_outside_the_vocabulary_is_named() -> None:
    """logit_bias is checked like the prompt: an id without a logit cannot be biased."""
    sampling = SamplingParams(max_tokens=1, logit_bias=((3, 1.0), (191222, -100.0)))

    with pytest.raises(InvalidRequestError, match="191222") as caught:
        admit_or_refuse(limits_with(), [1], sampling)

    assert caught.value.param == "logit_bias"


def test_a_scoring_call_needs_no_room_beyond_its_prompt() -> None:
    """With max_tokens 0 a prompt may fill the context, and not pass it."""
    scoring = SamplingParams(max_tokens=0, num_prompt_logprobs=0)

    assert admit_or_refuse(limits_with(), [1] * 24, scoring) is scoring
    with pytest.raises(PromptTooLongError):
        admit_or_refuse(limits_with(), [1] * 25, scoring)


def test_open_max_tokens_must_leave_room_for_min_tokens() -> None:
    """A least number of tokens that cannot be reached is too long a request."""
    sampling = SamplingParams(max_tokens=None, min_tokens=5)

    assert admit_or_refuse(limits_with(), [1] * 19, sampling).max_tokens == 5
    with pytest.raises(PromptTooLongError) as caught:
        admit_or_refuse(limits_with(), [1] * 20, sampling)
    assert caught.value.requested_tokens == 5


def test_stop_ids_are_the_models_and_the_requests() -> None:
    """ignore_eos leaves out the model's own, and only those."""
    limits = limits_with(eos_token_ids=frozenset({2}))

    assert limits.stop_ids_of(SamplingParams(stop_token_ids=(5,))) == {2, 5}
    assert limits.stop_ids_of(SamplingParams(stop_token_ids=(5,), ignore_eos=True)) == {5}
