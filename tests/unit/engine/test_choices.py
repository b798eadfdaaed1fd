"""The fan-out of `n`."""

from nanoserve.engine.choices import fan_out
from nanoserve.sched.sampling_params import SamplingParams


def test_choices_are_prompt_major_with_rising_seeds() -> None:
    """Index = prompt * n + k, and answer k of each prompt has seed + k."""
    sampling = SamplingParams(n=2, seed=7)

    requests = fan_out("c", [(1,), (2,)], [sampling, sampling])

    assert [r.request_id for r in requests] == ["c-0", "c-1", "c-2", "c-3"]
    assert [r.prompt_token_ids for r in requests] == [(1,), (1,), (2,), (2,)]
    assert [(r.sampling.seed, r.sampling.n) for r in requests] == [(7, 1), (8, 1)] * 2


def test_choices_without_seed_draw_their_own() -> None:
    """None stays None: the scheduler draws for each."""
    requests = fan_out("c", [(1,)], [SamplingParams(n=3)])

    assert [r.sampling.seed for r in requests] == [None] * 3


class _Grammar:
    def allowed_tokens(self) -> bytes | None:
        return None

    def accept(self, token_id: int) -> None:
        """Allow it."""


def test_every_choice_has_a_grammar_of_its_own() -> None:
    """Matchers move with their answers, so no two share one; priority and salt are common."""
    sampling = SamplingParams(n=2)

    requests = fan_out("c", [(1,)], [sampling], 3, b"key", _Grammar)

    assert len({id(request.grammar) for request in requests}) == 2
    assert [(request.priority, request.salt) for request in requests] == [(3, b"key")] * 2
