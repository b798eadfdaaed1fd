"""What capture costs a start, on paper: the list wanted against the list kept, and its price.

Reads a model's headers for its query heads and needs neither its weights nor a device.
Starts that are really made are measured in `boot_repeat`.
"""

import csv
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from nanoserve.bench.boot_bench_options import BootBenchOptions
from nanoserve.error_reasons import reason_of
from nanoserve.errors import CaptureTooSmall, OptionError
from nanoserve.plan.capture_axes import row_buckets, width_buckets
from nanoserve.plan.capture_cost import CaptureCost, price_capture, score_rectangle_bytes
from nanoserve.plan.capture_plan import CapturePlan, CaptureRequest, plan_capture
from nanoserve.plan.text_table import table_lines
from nanoserve.spec.gguf_file import read_gguf
from nanoserve.spec.gguf_spec import spec_from_gguf
from nanoserve.spec.hf_config import spec_from_hf_config
from nanoserve.spec.json_file import read_json_object
from nanoserve.spec.model_dir import resolve_model
from nanoserve.units import format_bytes


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
            "width_buckets": len(width_buckets(self.max_model_len)),
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


def read_num_heads(model: str) -> int:
    """Return the query heads of a model from its headers.

    Raises:
        ModelError: There is no such model, or it cannot be read.
    """
    source = resolve_model(model)
    if source.kind == "gguf":
        return spec_from_gguf(read_gguf(source.path)).num_heads
    config_path = source.path / "config.json"
    return spec_from_hf_config(read_json_object(config_path), str(config_path)).num_heads


def plan_cases(model: str, options: BootBenchOptions) -> tuple[CaptureCase, ...]:
    """Plan the capture list of every number of requests at every length.

    The attention is the plain one: it materialises its scores, so a step is recorded for
    each width.

    Args:
        model: Whose query heads count, where the options give none.
        options: What is planned.

    Raises:
        ModelError: The model cannot be read.
        CaptureTooSmall: The limit is under one width of the most requests.
    """
    needed = len(row_buckets(max(options.request_counts)))
    if options.capture_limit < needed:
        bound_by, advice = "limit", (f"--capture-limit {needed}",)
        raise CaptureTooSmall(bound_by, options.capture_limit, needed, advice)
    num_heads = read_num_heads(model) if options.num_heads is None else options.num_heads
    return tuple(
        _plan_case(num_heads, max_num_seqs, max_model_len, options.capture_limit)
        for max_num_seqs in options.request_counts
        for max_model_len in options.lengths
    )


def _plan_case(num_heads: int, max_num_seqs: int, max_model_len: int, limit: int) -> CaptureCase:
    plan = plan_capture(
        max_num_seqs,
        max_model_len,
        request=CaptureRequest(limit=limit),
        arena_bytes=partial(score_rectangle_bytes, num_heads),
        depends_on_width=True,
    )
    return CaptureCase(max_num_seqs, max_model_len, plan, price_capture(plan))


def wanted_lines(cases: Iterable[CaptureCase]) -> tuple[str, ...]:
    """Return the table of the shapes wanted and the shapes kept."""
    header = (
        *("requests", "context", "rows", "widths", "wanted", "over"),
        *("max width", "kept", "bound by", "scores"),
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
    """Write every figure of every case, a line each.

    Raises:
        OptionError: The file cannot be written.
    """
    figures = [case.figures() for case in cases]
    try:
        with Path(path).open("w", newline="") as file:
            writer = csv.DictWriter(file, list(figures[0]))
            writer.writeheader()
            writer.writerows(figures)
    except OSError as error:
        message = f"--csv {path} cannot be written: {reason_of(error)}. Give a file in a folder."
        raise OptionError(message) from None
