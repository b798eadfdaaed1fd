"""`nanoserve explain`: a start-up log or a server's metrics, from a file, a pipe or a URL."""

import io
import json
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from nanoserve.cli.log_source import read_metrics_page, read_tail
from nanoserve.error_reasons import reason_of
from nanoserve.errors import OptionError
from nanoserve.explain.explain import ExplainedRow, Explanation, explain_log
from nanoserve.explain.explain_load import LoadExplanation, explain_load
from nanoserve.explain.log_text import decode_log
from nanoserve.explain.suggested_fix import Fix
from nanoserve.plan.text_table import table_lines
from nanoserve.spec.gpu_names import find_gpu
from nanoserve.spec.gpu_spec import GpuSpec, custom_gpu
from nanoserve.units import format_bytes

_NOT_SAID = "not said"
_NOTHING = (
    "Nothing was recognised: no line of a start-up log of vLLM, SGLang, TensorRT-LLM, llama.cpp or "
    "nanoserve, and no page of their metrics. Give the log from the command on, whole."
)
Line = tuple[str, str]  # words and rich's name of a style


@dataclass(frozen=True, slots=True)
class ExplainSource:
    """What is explained.

    Attributes:
        log: Path of a log; `-` is stdin; None where `metrics` is given.
        metrics: A file with a page of metrics, `-`, or a loopback URL.
        gpu: The card, where the log does not say how much memory it has.
        model: What was served, to plan what the log lacks.
        over_s: Seconds between two looks at a URL; 0 looks once.
    """

    log: str | None = None
    metrics: str | None = None
    gpu: str | None = None
    model: str | None = None
    over_s: float = 0.0


def run_explain(source: ExplainSource, as_json: bool) -> int:
    """Explain a log or metrics on stdout; return the exit code.

    Args:
        source: What is explained.
        as_json: Print one JSON object instead.

    Raises:
        OptionError: Neither or both are given, or what is given cannot be read.
        ModelError: The model that is to be planned cannot be read.
    """
    if (source.log is None) == (source.metrics is None):
        message = "Give one of the two: a LOG (or - for stdin), or --metrics FILE or URL."
        raise OptionError(message)
    if source.metrics is not None:
        return _print_load(explain_load(_metrics_text(source.metrics, source.over_s)), as_json)
    gpu = None if source.gpu is None else find_gpu(source.gpu)
    content, first_number = _read(source.log or "-")
    total_bytes = None if gpu is None else gpu.memory_bytes
    explanation = explain_log(decode_log(content), total_bytes, first_number)
    if source.model is not None:
        explanation = _planned(explanation, source.model, gpu)
    if as_json:
        print(json.dumps(explanation.as_dict(), indent=2))
    else:
        _print_lines(explanation_lines(explanation))
    return explanation.exit_code


def _planned(explanation: Explanation, model: str, gpu: GpuSpec | None) -> Explanation:
    """Return the explanation with what a plan of the model adds."""
    from nanoserve.explain.explain_plan import with_plan  # a log alone is explained without it
    from nanoserve.spec.read_model import read_planned_model

    if gpu is None and explanation.boot.total_bytes is None:
        message = "--model is planned on a card, and the log does not name its memory: add --gpu."
        raise OptionError(message)
    card = gpu or custom_gpu(explanation.boot.total_bytes or 0)
    return with_plan(explanation, read_planned_model(model), card)


def _print_load(load: LoadExplanation | None, as_json: bool) -> int:
    if as_json:
        empty: dict[str, object] = {"metrics": None, "diagnosis": None, "fixes": [], "exit_code": 3}
        print(json.dumps(empty if load is None else load.as_dict(), indent=2))
    else:
        _print_lines([(_NOTHING, "bold")] if load is None else load_lines(load))
    return 3 if load is None else load.exit_code


def _metrics_text(source: str, over_s: float) -> str:
    """Return a page, or two of a URL: counters are then of the time between them."""
    if "://" not in source:
        return decode_log(_read(source)[0])
    page = read_metrics_page(source)
    if over_s > 0:
        time.sleep(over_s)
        page += read_metrics_page(source)
    return page


def _read(path: str) -> tuple[bytes, int]:
    """Return the end of a file or of stdin, and the number of its first line."""
    try:
        if path == "-":
            return (b"", 1) if sys.stdin is None else read_tail(sys.stdin.buffer)
        with Path(path).open("rb") as file:
            return read_tail(file)
    except OSError as error:
        message = f"{path} cannot be read: {reason_of(error)}. Give a file, or - for stdin."
        raise OptionError(message) from error


def _print_lines(lines: Iterator[Line] | list[Line]) -> None:
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a quoted line may hold what a terminal cannot
    console = Console(file=sys.stdout)
    for words, style in lines:
        console.print(words, style=style, highlight=False, markup=False, soft_wrap=True)


def explanation_lines(explanation: Explanation) -> Iterator[Line]:
    """Yield the report line by line, each with its style."""
    if explanation.is_nothing:
        yield _NOTHING, "bold"
        return
    if not explanation.boot.is_empty:
        yield from _boot_lines(explanation)
    if explanation.load is not None:
        if not explanation.boot.is_empty:
            yield "", ""
        yield from load_lines(explanation.load)


def _boot_lines(explanation: Explanation) -> Iterator[Line]:
    boot, outcome = explanation.boot, explanation.outcome
    named = " ".join(filter(None, (boot.engine or "an engine not recognised", boot.version)))
    yield f"engine   {named}{f', {boot.model}' if boot.model else ''}", ""
    yield f"outcome  {outcome.kind}", "bold green" if outcome.is_healthy else "bold red"
    yield f"         {outcome.reason}", ""
    if explanation.quote is not None:
        yield f"line {explanation.quote.number:<4}{explanation.quote.text}", "yellow"
    if explanation.rows:
        yield "", ""
        yield from _budget_lines(explanation.rows)
    title = "what could be changed" if outcome.is_healthy else "any one of these would do"
    yield from _fix_lines(title, explanation.fixes)
    for note in explanation.notes:
        yield f"note     {note}", ""


def _budget_lines(rows: tuple[ExplainedRow, ...]) -> Iterator[Line]:
    table = [("budget, in the order subtracted", "size", "left", "log line"), *map(_cells, rows)]
    header, *lines = table_lines(table)
    yield header, "bold"
    for row, line in zip(rows, lines, strict=True):
        yield line, "bold red" if row.is_broken else ""


def _cells(one: ExplainedRow) -> tuple[str, str, str, str]:
    row = one.row
    name = f"{row.name} (outside)" if row.is_outside else row.name
    return (
        f"{name}  <- broke" if one.is_broken else name,
        _NOT_SAID if row.num_bytes is None else format_bytes(row.num_bytes),
        "" if row.left_bytes is None else format_bytes(row.left_bytes),
        "" if one.line_number is None else str(one.line_number),
    )


def _fix_lines(title: str, fixes: tuple[Fix, ...]) -> Iterator[Line]:
    if not fixes:
        return
    yield "", ""
    yield f"{title}:", "bold"
    for number, fix in enumerate(fixes, 1):
        yield f"  {number}. {fix.change}", "bold"
        yield f"     {fix.effect}", ""


def load_lines(load: LoadExplanation) -> Iterator[Line]:
    """Yield a load's report line by line, each with its style."""
    metrics, diagnosis = load.metrics, load.diagnosis
    usage = None if metrics.pool_usage is None else f"{metrics.pool_usage:.1%}"
    figures = {
        "running": metrics.num_running,
        "waiting": metrics.num_waiting,
        "pool held": usage,
        "pool tokens": metrics.pool_tokens,
        "preemptions": metrics.num_preemptions,
        "finished": metrics.num_finished,
    }
    said = (f"{name} {value}" for name, value in figures.items() if value is not None)
    yield f"load     {', '.join(said)}", ""
    style = "bold green" if load.exit_code == 0 else "bold red"
    yield f"         {diagnosis.kind}: {diagnosis.reason}", style
    yield from _fix_lines("what to change", load.fixes)
