"""`step_pace`: how long a prompt may hold up those that run."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nanoserve.sched.admission import EngineLimits
from nanoserve.sched.request import Request
from nanoserve.sched.sampling_params import SamplingParams
from nanoserve.sched.scheduler import Scheduler
from nanoserve.sched.step import ScheduledRequest, StepPlan
from nanoserve.sched.step_cost import MAX_KINDS, StepCost, StepSize
from nanoserve.sched.step_pace import MIN_CHUNK, StepPace
from tests.fakes import FakeRunner


def seconds(num_decodes: int, num_tokens: int) -> float:
    """4 ms, 2 more for each decode and 0.4 for each token of a prompt."""
    return 0.004 + 0.002 * num_decodes + 0.0004 * num_tokens


def decodes(num: int) -> list[Request]:
    return [Request(f"d{i}", (1,), SamplingParams(), seed=0) for i in range(num)]


def prompts(num: int) -> list[Request]:
    return [Request(f"p{i}", (1,) * 500, SamplingParams(), seed=0) for i in range(num)]


def timed(target_s: float | None = None) -> StepPace:
    """Return a pace that has seen steps of several kinds."""
    pace = StepPace(target_s)
    for num_decodes, num_tokens in ((0, 500), (0, 100), (8, 0), (2, 0), (4, 64)):
        pace.observe(StepSize(num_decodes, num_tokens), seconds(num_decodes, num_tokens))
    return pace


@pytest.mark.parametrize(
    ("num_decodes", "num_prompts", "num_joining", "budget"),
    [
        (8, 1, 0, 40),  # 16 ms of prompt beside 20 ms of decodes
        (8, 0, 1, 40),
        (8, 2, 0, 50),
        (8, 8, 0, 200),  # as many prompts as decodes come first: four times their time
        (2, 8, 0, 320),  # four for each decode sixteen times
        (2, 4, 4, 320),
    ],
)
def test_prompts_get_their_share_of_the_step(
    num_decodes: int, num_prompts: int, num_joining: int, budget: int
) -> None:
    """Four fifths of the time of decodes, more where prompts are many."""
    running = [*decodes(num_decodes), *prompts(num_prompts)]

    assert timed().prompt_budget(running, num_joining) == pytest.approx(budget, rel=0.03)


@pytest.mark.parametrize(("num_decodes", "num_prompts"), [(0, 8), (8, 0)])
def test_nothing_is_bounded_where_nobody_waits(num_decodes: int, num_prompts: int) -> None:
    """Decodes alone, or prompts alone."""
    assert timed().prompt_budget([*decodes(num_decodes), *prompts(num_prompts)], 0) is None


def test_a_target_bounds_the_whole_step() -> None:
    """60 ms less 20 of decodes leave 40 ms, 100 tokens, however many prompts wait."""
    pace = timed(target_s=0.060)

    budget = pace.prompt_budget([*decodes(8), *prompts(80)], 0)

    assert budget == pytest.approx(100, rel=0.03)


def test_a_target_that_decodes_miss_alone_still_lets_prompts_on() -> None:
    """A prompt reads a few tokens a step, rather than none for ever."""
    assert timed(target_s=0.001).prompt_budget([*decodes(8), *prompts(1)], 0) == MIN_CHUNK


def test_nothing_is_bounded_before_a_prompt_was_timed() -> None:
    """Without an estimate of both costs the step's own budget is the only one."""
    pace = StepPace()
    assert pace.prompt_budget([*decodes(8), *prompts(1)], 0) is None
    pace.observe(StepSize(8), seconds(8, 0))
    assert pace.prompt_budget([*decodes(8), *prompts(1)], 0) is None


def test_pieces_of_one_size_do_not_blur_what_they_cost() -> None:
    """Hundreds of equal steps later the server still knows what a token costs."""
    pace = timed()
    for _ in range(500):
        pace.observe(StepSize(8, 50), seconds(8, 50))

    budget = pace.prompt_budget([*decodes(8), *prompts(1)], 0)

    assert budget == pytest.approx(40, rel=0.05)


def test_more_decodes_are_known_to_cost_more() -> None:
    """From steps of 2 and 8 follows what 32 take: 68 ms, so 136 tokens of one prompt."""
    budget = timed().prompt_budget([*decodes(32), *prompts(1)], 0)

    assert budget == pytest.approx(136, rel=0.05)


def test_late_tokens_of_a_long_prompt_are_known_to_cost_more() -> None:
    """0.4 ms a token and as much again for each 1,000 keys: at 3,000 a quarter as many."""
    pace = timed()
    for keys in (0, 500, 1000, 2000, 3000):
        for _ in range(40):
            pace.observe(StepSize(8, 48, 48 * keys), seconds(8, 48) + 48 * 0.0004 * keys / 1000)
    early, late = (
        [Request("p", (1,) * 5000, SamplingParams(), seed=0, num_computed_tokens=num_computed)]
        for num_computed in (0, 3000)
    )

    budget = pace.prompt_budget([*decodes(8), *early], 0)
    late_budget = pace.prompt_budget([*decodes(8), *late], 0)

    assert (budget, late_budget) == (40, MIN_CHUNK)


def test_the_size_of_a_step_is_that_of_its_chunks() -> None:
    """Two decodes, and 3 tokens after 10: they attend to 11, 12 and 13 keys."""

    def part(num_tokens: int) -> ScheduledRequest:
        tokens = (1,) * num_tokens
        return ScheduledRequest("a", tokens, 10, (0,), SamplingParams(), seed=0, samples=False)

    assert StepSize.of(StepPlan(0, (part(1), part(1), part(3)))) == StepSize(2, 3, 36)


def test_a_stall_hardly_moves_the_estimate() -> None:
    """One step of ten seconds is not what a step costs."""
    pace = timed()
    pace.observe(StepSize(8), 10.0)

    budget = pace.prompt_budget([*decodes(8), *prompts(1)], 0)

    assert budget is not None
    assert MIN_CHUNK <= budget <= 100


@given(
    st.lists(
        st.tuples(
            st.builds(StepSize, st.integers(0, 256), st.integers(0, 8192), st.integers(0, 2**30)),
            st.floats(0.0, 1e6, allow_subnormal=False),
        )
    ),
    st.one_of(st.none(), st.floats(1e-6, 1e3)),
)
def test_a_bound_is_always_at_least_a_chunk(
    steps: list[tuple[StepSize, float]], target_s: float | None
) -> None:
    """Whatever was observed, a prompt gets on."""
    pace = StepPace(target_s)
    for size, seconds in steps:
        pace.observe(size, seconds)

    budget = pace.prompt_budget([*decodes(3), *prompts(2)], 1)

    assert budget is None or budget >= MIN_CHUNK


def test_the_scheduler_reads_a_prompt_in_pieces_beside_decodes() -> None:
    """Decodes come whole; the prompt, running or waiting, gets four times their 6 ms."""
    limits = EngineLimits(
        num_blocks=64,
        block_size=16,
        max_num_seqs=4,
        max_num_batched_tokens=512,
        max_model_len=512,
        vocab_size=100,
        eos_token_ids=frozenset(),
    )
    scheduler = Scheduler(limits, pace=timed())
    runner = FakeRunner()
    sampling = SamplingParams(max_tokens=40, ignore_eos=True)
    scheduler.add("short", [1, 2, 3], sampling)
    scheduler.apply(runner.execute(scheduler.schedule()))
    scheduler.add("long", [5] * 128, sampling)

    chunks = []
    for _ in range(2):
        plan = scheduler.schedule()
        assert [part.request_id for part in plan.scheduled] == ["short", "long"]
        chunks.append([part.num_scheduled_tokens for part in plan.scheduled])
        scheduler.apply(runner.execute(plan))

    assert [decode for decode, _ in chunks] == [1, 1]
    assert [prompt for _, prompt in chunks] == [60] * 2


def test_a_long_life_leaves_no_more_to_fit() -> None:
    """Of thousands of kinds of steps those seen last are kept; what is met often is among them."""
    cost = StepCost()
    for num_decodes in (2**power for power in range(9)):
        for num_tokens in (2**power for power in range(12)):
            for past_len in (0, 100, 1000, 10000, 100000):
                num_keys = num_tokens * past_len
                cost.observe(StepSize(num_decodes, num_tokens, num_keys), 1.0)
            cost.observe(StepSize(200), 0.5)

    assert len(cost._kinds) == MAX_KINDS
    assert cost.decode_s(200) == pytest.approx(0.5)


def test_no_fit_is_made_where_nothing_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Most steps are decodes alone: they wait for no arithmetic whose result nobody asks for."""
    pace = timed()
    monkeypatch.setattr(StepCost, "_fitted", lambda _: pytest.fail("a fit was made"))

    assert pace.prompt_budget(decodes(8), 0) is None
    assert pace.prompt_budget(prompts(8), 1) is None
