"""Whatever runs beside it, each request gets the text it would get alone."""

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from nanoserve.engine.interface import OutputDelta
from nanoserve.sched.step import FinishReason
from tests.builders import expected_text, make_core, make_limits, make_request

MAX_TOKENS = 24

requests = st.tuples(
    st.text("abc", min_size=1, max_size=20),
    st.integers(1, MAX_TOKENS),
    st.none() | st.tuples(st.integers(0, MAX_TOKENS - 1), st.integers(1, 4)),
    st.booleans(),
    st.integers(-1, 1),
)


@settings(max_examples=60, deadline=None)
@given(
    crowd=st.lists(requests, min_size=1, max_size=8),
    num_blocks=st.integers(11, 40),
    budget=st.integers(4, 40),
    aborted=st.sets(st.integers(0, 7)),
    abort_step=st.integers(0, 20),
)
def test_text_is_the_text_alone_up_to_the_stop_string(
    crowd: list[tuple[str, int, tuple[int, int] | None, bool, int]],
    num_blocks: int,
    budget: int,
    aborted: set[int],
    abort_step: int,
) -> None:
    """Preemption, chunks, priorities, stop strings and aborts of others change no text and leak no block."""
    limits = make_limits(num_blocks=num_blocks, max_num_batched_tokens=budget, max_num_seqs=4)
    core = make_core(limits=limits)
    expected: dict[str, str] = {}
    for i, (prompt, max_tokens, cut, include_stop, priority) in enumerate(crowd):
        text = expected_text(prompt, max_tokens)
        stop = text[cut[0] : cut[0] + cut[1]] if cut else ""
        stops = (stop,) if stop else ()
        request = make_request(
            f"r{i}", prompt, max_tokens=max_tokens, stop=stops, include_stop=include_stop
        )
        core.add(replace(request, priority=priority))
        kept = text[: text.index(stop)] if stop else text
        expected[f"r{i}"] = kept + stop if include_stop else kept

    deltas: list[OutputDelta] = []
    num_steps = 0
    while core.has_work:
        deltas += core.step()
        if num_steps == abort_step:
            deltas += filter(None, (core.abort(f"r{i}") for i in aborted))
        num_steps += 1

    ends = {d.request_id: d.finish_reason for d in deltas if d.finish_reason is not None}
    assert sum(d.finish_reason is not None for d in deltas) == len(crowd)
    for request_id, text in expected.items():
        shown = "".join(d.text for d in deltas if d.request_id == request_id)
        was_aborted = ends[request_id] is FinishReason.ABORT
        assert text.startswith(shown) if was_aborted else shown == text
    stats = core.snapshot()
    assert stats.gauges.num_used_blocks == 0
    assert sum(stats.finished.values()) == stats.e2e_s.count == len(crowd)
    assert stats.generation_tokens == sum(len(d.token_ids) for d in deltas)
