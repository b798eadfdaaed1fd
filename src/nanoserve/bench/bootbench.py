"""What capture costs a start, on paper: the list wanted against the list kept, and its price.

Reads a model's headers for its shape and needs neither its weights nor the device.
Starts that are really made are measured in `boot_repeat`.
"""

import csv
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

from nanoserve.bench.boot_bench_options import BootBenchOptions
from nanoserve.error_reasons import reason_of
from nanoserve.errors import CaptureTooSmall, OptionError
from nanoserve.options import DEFAULT_TOKEN_BUDGET, EngineOptions
from nanoserve.plan.backend_facts import BackendFacts
from nanoserve.plan.capture_axes import MIXED_TOKENS, row_buckets
from nanoserve.plan.capture_cost import (
    SECONDS_PER_GRAPH,
    SECONDS_PER_NATIVE_RECORDING,
    CaptureCost,
    price_capture,
    score_rectangle_bytes,
)
from nanoserve.plan.capture_plan import CapturePlan, CaptureRequest, plan_capture
from nanoserve.plan.native_facts import native_backend_facts, native_shape_problem
from nanoserve.plan.text_table import table_lines
from nanoserve.spec.gguf_file import read_gguf
from nanoserve.spec.gguf_spec import spec_from_gguf
from nanoserve.spec.hf_config import spec_from_hf_config
from nanoserve.spec.json_file import read_json_object
from nanoserve.spec.model_dir import resolve_model
from nanoserve.spec.model_spec import ModelSpec
from nanoserve.units import format_bytes

_BLOCK_SIZE = EngineOptions().block_size


@dataclass(frozen=True, slots=True)
class CaptureDevice:
    """Where decode steps are recorded.

    Attributes:
        kind: `cpu` or `cuda`.
        itemsize: Bytes of a number of the compute dtype there.
        records_natively: Whether a CPU records whole steps as native operators; one that does
            not runs them eagerly.
    """

    kind: Literal["cpu", "cuda"]
    itemsize: int = 2
    records_natively: bool = False

    @property
    def seconds_per_graph(self) -> float:
        """What recording one shape takes."""
        return SECONDS_PER_GRAPH if self.kind == "cuda" else SECONDS_PER_NATIVE_RECORDING


@dataclass(frozen=True, slots=True)
class CaptureCase:
    """One deployment's capture list.

    Attributes:
        max_num_seqs: Requests that run at once.
        max_model_len: Longest request in tokens.
        plan: The shapes kept.
        cost: Their price.
    """

    max_num_seqs: int
    max_model_len: int
    plan: CapturePlan
    cost: CaptureCost

    def figures(self) -> dict[str, int | float | str]:
        """Return every figure by its name, as the CSV file has them."""
        return {
            "max_num_seqs": self.max_num_seqs,
            "max_model_len": self.max_model_len,
            "row_buckets": len(self.plan.row_buckets),
            "width_buckets": self.plan.full_count // len(self.plan.row_buckets),
            "wanted": self.plan.full_count,
            "over": max(0, self.plan.full_count - self.plan.limit),
            "max_width": self.plan.max_width,
            "kept": self.plan.count,
            "width_bound_by": self.plan.width_bound_by,
            "arena_bytes": self.plan.arena_bytes,
            "startup_s": round(self.cost.startup_s, 6),
            "lazy_captures": self.cost.lazy_captures,
            "lazy_latency_s": round(self.cost.lazy_latency_s, 6),
            "startup_saved_s": round(self.cost.startup_saved_s, 6),
        }


def read_spec(model: str) -> ModelSpec:
    """Return the shape of a model from its headers.

    Raises:
        ModelError: There is no such model, or it cannot be read.
    """
    source = resolve_model(model)
    if source.kind == "gguf":
        return spec_from_gguf(read_gguf(source.path))
    config_path = source.path / "config.json"
    return spec_from_hf_config(read_json_object(config_path), str(config_path))


def plan_cases(
    model: str, options: BootBenchOptions, device: CaptureDevice
) -> tuple[CaptureCase, ...]:
    """Plan the capture list of every number of requests at every length.

    The attention of a GPU is the plain one: it materialises its scores, so a step is recorded
    for each width. A CPU's native operators read lengths as they run: one width serves all.

    Args:
        model: Whose shape counts, where the options do not give the query heads.
        options: What is planned.
        device: Where.

    Returns:
        A case for each; none where the device records no decode step.

    Raises:
        ModelError: The model cannot be read.
        OptionError: Query heads are given for a CPU, whose results depend on the whole shape.
        CaptureTooSmall: The limit is under one width of the most requests.
    """
    if device.kind == "cpu" and options.num_heads is not None:
        message = (
            f"--num-heads {options.num_heads} counts the scores of a GPU's attention, and a CPU "
            "keeps none; leave it out, or give --device cuda."
        )
        raise OptionError(message)
    needed = len(row_buckets(max(options.request_counts)))
    if options.capture_limit < needed:
        bound_by, advice = "limit", (f"--capture-limit {needed}",)
        raise CaptureTooSmall(bound_by, options.capture_limit, needed, advice)
    facts = _backend_facts(model, options, device)
    if facts is None:
        return ()
    return tuple(
        _plan_case(facts, device, max_num_seqs, max_model_len, options.capture_limit)
        for max_num_seqs in options.request_counts
        for max_model_len in options.lengths
    )


def _backend_facts(
    model: str, options: BootBenchOptions, device: CaptureDevice
) -> BackendFacts | None:
    """Return what is recorded, and what it takes; None where nothing is."""
    if device.kind == "cuda":
        num_heads = read_spec(model).num_heads if options.num_heads is None else options.num_heads
        return BackendFacts(True, partial(score_rectangle_bytes, num_heads))
    spec = read_spec(model)
    if not device.records_natively or native_shape_problem(spec) is not None:
        return None
    return native_backend_facts(spec, _BLOCK_SIZE, "none")


def _plan_case(
    facts: BackendFacts, device: CaptureDevice, max_num_seqs: int, max_model_len: int, limit: int
) -> CaptureCase:
    step_tokens = max(DEFAULT_TOKEN_BUDGET[device.kind], max_num_seqs)
    plan = plan_capture(
        max_num_seqs,
        max_model_len,
        request=CaptureRequest(limit=limit),
        arena_bytes=facts.arena_bytes_of(device.itemsize, step_tokens, max_model_len),
        depends_on_width=facts.depends_on_width,
        has_close_rows=facts.is_native,
    )
    cost = price_capture(plan, device.seconds_per_graph)
    return CaptureCase(max_num_seqs, max_model_len, plan, cost)


def capture_lines(cases: Sequence[CaptureCase], device: CaptureDevice) -> Iterator[str]:
    """Yield what is recorded before serving, what that costs, and what is recorded besides."""
    if not cases:
        yield (
            "A CPU records decode steps as native operators, and they do not serve this model "
            "here: steps run eagerly. `nanoserve kernels info` says what is built; --device cuda "
            "shows a GPU's list."
        )
        return
    is_gpu = device.kind == "cuda"
    yield f"Shapes wanted and kept on {'a GPU' if is_gpu else 'a CPU with native operators'}"
    yield from wanted_lines(cases, "scores" if is_gpu else "results")
    yield ""
    yield f"Their price at {device.seconds_per_graph:g} s a {'graph' if is_gpu else 'recording'}"
    yield from price_lines(cases)
    if not is_gpu:
        yield ""
        yield (
            f"The largest step of up to {MIXED_TOKENS} tokens that reads prompts is recorded too, "
            "once, and run with as many rows as a step has."
        )


def wanted_lines(cases: Iterable[CaptureCase], arena: str) -> tuple[str, ...]:
    """Return the table of the shapes wanted and the shapes kept; `arena` heads its bytes."""
    header = (
        *("requests", "context", "rows", "widths", "wanted", "over"),
        *("max width", "kept", "bound by", arena),
    )
    counted = (
        *("max_num_seqs", "max_model_len", "row_buckets", "width_buckets", "wanted", "over"),
        *("max_width", "kept"),
    )
    rows = [
        (
            *(f"{case.figures()[name]:,}" for name in counted),
            case.plan.width_bound_by,
            format_bytes(case.plan.arena_bytes),
        )
        for case in cases
    ]
    return table_lines([header, *rows])


def price_lines(cases: Iterable[CaptureCase]) -> tuple[str, ...]:
    """Return the table of what the kept shapes cost at boot, and the trimmed ones later."""
    header = ("requests", "context", "start-up", "late", "late latency", "start-up saved")
    rows = [
        (
            f"{case.max_num_seqs:,}",
            f"{case.max_model_len:,}",
            f"{case.cost.startup_s:.2f} s",
            f"{case.cost.lazy_captures:,}",
            f"{case.cost.lazy_latency_s:.2f} s",
            f"{case.cost.startup_saved_s:.2f} s",
        )
        for case in cases
    ]
    return table_lines([header, *rows])


def write_csv(path: str, cases: Sequence[CaptureCase]) -> None:
    """Write every figure of every case, a line each; nothing of no cases.

    Raises:
        OptionError: The file cannot be written.
    """
    figures = [case.figures() for case in cases]
    try:
        with Path(path).open("w", newline="") as file:
            if figures:
                writer = csv.DictWriter(file, list(figures[0]))
                writer.writeheader()
                writer.writerows(figures)
    except OSError as error:
        message = f"--csv {path} cannot be written: {reason_of(error)}. Give a file in a folder."
        raise OptionError(message) from None
