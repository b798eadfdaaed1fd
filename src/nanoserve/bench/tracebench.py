"""Ten requests of different lengths on a real model, and what the scheduler did, as a table.

Owns the requests and the table. The steps come from the engine's own trace file (see
`engine.step_trace`), so the table shows what `--trace-file` would have written. Prompts
are fixed token ids and answers run to their full length: every run plans the same steps.
"""

import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path

from nanoserve.engine.step_trace import StepTrace, read_step_trace
from nanoserve.launch.llm import LLM
from nanoserve.sched.sampling_params import SamplingParams

# Tokens of each request. The longest prompt has the shortest answer, so no request passes
# 116 tokens and the smallest models take them all.
PROMPT_LENS = (112, 104, 96, 88, 80, 72, 64, 56, 48, 40)
OUTPUT_LENS = (4, 11, 17, 24, 31, 37, 44, 51, 57, 64)
_TOKEN_IDS = range(100, 200)  # in every vocabulary we serve

# What the shape of the trace rests on: all prompts fit one step, and nobody waits.
FIXED_OPTIONS: dict[str, object] = {
    "max_num_seqs": len(PROMPT_LENS),
    "max_num_batched_tokens": sum(PROMPT_LENS),
    "max_model_len": 128,
    "enable_prefix_caching": False,  # so that the blocks of ended requests are free again
}

_COLUMNS = "{:>7}  {:<7}  {:<8}  {:>6}  {:>7}  {:>7}  {:>11}  {}"
_HEADER = _COLUMNS.format(
    "step", "kind", "mode", "tokens", "running", "waiting", "free blocks", "what happened"
)


@dataclass(frozen=True, slots=True)
class TraceReport:
    """What the scheduler did with the requests.

    Attributes:
        num_blocks: Blocks of the pool.
        steps: Every step, in order.
    """

    num_blocks: int
    steps: tuple[StepTrace, ...]

    def describe(self, *, all_steps: bool = False) -> str:
        """Return a table for people.

        Args:
            all_steps: Whether each step has a line; otherwise neighbours that differ in
                nothing but their free blocks share one.
        """
        rows = [[step] for step in self.steps] if all_steps else list(_merged(self.steps))
        return "\n".join([*self._summary(), "", _HEADER, *(_describe_row(row) for row in rows)])

    def _summary(self) -> list[str]:
        num_decode_steps = sum(step.kind == "decode" for step in self.steps)
        num_preemptions = sum(len(step.preempted) for step in self.steps)
        free_blocks = [step.free_blocks for step in self.steps]
        return [
            f"{len(PROMPT_LENS)} requests, {sum(PROMPT_LENS)} prompt tokens together, "
            f"{OUTPUT_LENS[0]} to {OUTPUT_LENS[-1]} output tokens",
            f"{len(self.steps) - num_decode_steps} step with prefill, {num_decode_steps} decode "
            f"steps, {num_preemptions} preemptions",
            f"free blocks: {self.num_blocks} before, {min(free_blocks)} at the least, "
            f"{free_blocks[-1]} after",
        ]


def trace_requests() -> list[tuple[list[int], SamplingParams]]:
    """Return the prompts with their sampling, the shortest answer first."""
    return [
        (
            [_TOKEN_IDS[(7 * number + position) % len(_TOKEN_IDS)] for position in range(length)],
            SamplingParams(temperature=0.0, max_tokens=num_tokens, ignore_eos=True),
        )
        for number, (length, num_tokens) in enumerate(zip(PROMPT_LENS, OUTPUT_LENS, strict=True))
    ]


def run_trace(model: str, options: Mapping[str, object]) -> TraceReport:
    """Boot a model, answer the requests, and report every step.

    Args:
        model: Preset name, local folder, .gguf file or hub id.
        options: Fields of `EngineOptions` other than `FIXED_OPTIONS`. With a `trace_file`
            the steps stay there; otherwise they pass through a temporary one.

    Raises:
        NanoserveError: The boot was refused.
    """
    prompts, samplings = zip(*trace_requests(), strict=True)
    with tempfile.TemporaryDirectory() as folder:
        trace_file = str(options.get("trace_file") or Path(folder) / "trace.jsonl")
        llm = LLM(model, None, **{**options, **FIXED_OPTIONS, "trace_file": trace_file})
        llm.generate(prompts, samplings, show_progress=False)
        return TraceReport(llm.num_blocks, tuple(read_step_trace(Path(trace_file))))


def _merged(steps: tuple[StepTrace, ...]) -> Iterator[list[StepTrace]]:
    """Group neighbours that differ in nothing but their number and their blocks."""
    for _, group in groupby(steps, key=_without_blocks):
        yield list(group)


def _without_blocks(step: StepTrace) -> StepTrace:
    return replace(step, step=0, free_blocks=0, cached_blocks=0)


def _describe_row(steps: list[StepTrace]) -> str:
    first, last = steps[0], steps[-1]
    return _COLUMNS.format(
        _span(first.step, last.step, "-"),
        first.kind,
        first.mode,
        first.tokens,
        first.running,
        first.waiting,
        _span(first.free_blocks, last.free_blocks, " to "),
        ", ".join(_events(first)),
    ).rstrip()


def _span(first: int, last: int, between: str) -> str:
    return str(first) if first == last else f"{first}{between}{last}"


def _events(step: StepTrace) -> Iterator[str]:
    events = (
        ("admitted", step.admitted),
        ("finished", step.finished),
        ("preempted", step.preempted),
    )
    for verb, request_ids in events:
        if len(request_ids) == 1:
            yield f"{verb} {request_ids[0]}"
        elif request_ids:
            yield f"{verb} {len(request_ids)} requests"
