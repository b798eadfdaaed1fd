"""The reference shape of continuous batching, checked on a trace of `bench trace`."""

from nanoserve.bench.tracebench import OUTPUT_LENS, TraceReport


def check_shape(report: TraceReport) -> None:
    """Check one prefill step, 63 decode steps, ends in order of length, blocks that come back."""
    first, *decodes = report.steps
    assert (first.kind, first.tokens, len(first.admitted)) == ("prefill", 760, 10)
    assert [step.kind for step in decodes] == ["decode"] * 63
    assert [step.step for step in report.steps] == list(range(64))
    assert not any(step.preempted or step.waiting for step in report.steps)
    _check_ends(report)
    _check_blocks(report)


def _check_ends(report: TraceReport) -> None:
    """A request of n tokens ends in step n - 1, the shortest first."""
    ends = {step.step: step.finished for step in report.steps if step.finished}
    in_order = tuple((request_id,) for request_id in report.steps[0].admitted)
    assert tuple(ends) == tuple(num_tokens - 1 for num_tokens in OUTPUT_LENS)
    assert tuple(ends.values()) == in_order
    running = [10 - sum(end <= step.step for end in ends) for step in report.steps]
    assert [step.running for step in report.steps] == running


def _check_blocks(report: TraceReport) -> None:
    """Free blocks fall at the prefill, rise at each end, and are all free after the last."""
    free = [report.num_blocks, *(step.free_blocks for step in report.steps)]
    assert free[1] < free[0]
    for step in report.steps:
        if step.finished:
            assert step.free_blocks > free[step.step], f"step {step.step} gave nothing back"
    assert free[-1] == report.num_blocks
