"""A start-up log explained: what became of the boot, where its memory went, what to change.

Puts together what the other modules read, name and work out; prints nothing. What the log
does not say is marked as not said, and what is assumed in its place is named.
"""

from dataclasses import asdict, dataclass, replace
from typing import Any

from nanoserve.explain.boot_budget import BudgetRow, budget_rows
from nanoserve.explain.boot_fixes import suggest_fixes
from nanoserve.explain.boot_headroom import suggest_headroom
from nanoserve.explain.boot_log import read_plain_log
from nanoserve.explain.boot_notes import boot_notes
from nanoserve.explain.boot_outcome import Outcome, name_outcome
from nanoserve.explain.explain_load import LoadExplanation, explain_load
from nanoserve.explain.log_text import LogLine, PlainLog, plain_log
from nanoserve.explain.logged_boot import LoggedBoot
from nanoserve.explain.pool_fixes import profile_of_boot
from nanoserve.explain.suggested_fix import Fix
from nanoserve.units import format_bytes

LACKING = (
    "The log lacks the figures to work out a change that would do. A paste from the command on, "
    "or `--gpu` and `--model`, may add them."
)
HEALTHY, FAILED_OTHERWISE, FAILED_FOR_MEMORY = 0, 3, 4  # exit codes, as `plan` gives 0 and 4


@dataclass(frozen=True, slots=True)
class ExplainedRow:
    """One line of the budget, and the line of the log it stands in.

    Attributes:
        row: The budget's.
        line_number: In the log; None where it follows from other lines.
        is_broken: Whether it is the line that broke.
    """

    row: BudgetRow
    line_number: int | None
    is_broken: bool


@dataclass(frozen=True, slots=True)
class Explanation:
    """All that is to say of a log.

    Attributes:
        boot: As read, with what was assumed.
        outcome: What became of it.
        quote: The line of the log that says so; None where none does.
        rows: Its budget in the order of subtraction; none where the log gives no figure.
        fixes: Changes with which it would have gone through; of a healthy one, what could be
            changed and what that gives.
        notes: What was assumed, and what no figure can say.
        load: What its periodic lines, or a page of metrics, say of its load.
    """

    boot: LoggedBoot
    outcome: Outcome
    quote: LogLine | None
    rows: tuple[ExplainedRow, ...]
    fixes: tuple[Fix, ...]
    notes: tuple[str, ...]
    load: LoadExplanation | None = None

    @property
    def is_nothing(self) -> bool:
        """Whether the text is neither a log nor a page of metrics."""
        return self.boot.is_empty and self.load is None

    @property
    def exit_code(self) -> int:
        """0 healthy; 4 memory stopped it; 3 anything else. A load alone has its own."""
        if self.boot.is_empty and self.load is not None:
            return self.load.exit_code
        if self.outcome.is_for_memory:
            return FAILED_FOR_MEMORY
        return HEALTHY if self.outcome.is_healthy else FAILED_OTHERWISE

    def as_dict(self) -> dict[str, Any]:
        """Return it as JSON has it."""
        return {
            "engine": self.boot.engine,
            "version": self.boot.version,
            "model": self.boot.model,
            "outcome": self.outcome.kind,
            "reason": self.outcome.reason,
            "broken_line": self.outcome.broken_line,
            "quote": None if self.quote is None else asdict(self.quote),
            "budget": [
                {
                    "name": one.row.name,
                    "bytes": one.row.num_bytes,
                    "left_bytes": one.row.left_bytes,
                    "line_number": one.line_number,
                    "is_outside": one.row.is_outside,
                }
                for one in self.rows
            ],
            "fixes": [asdict(fix) for fix in self.fixes],
            "notes": list(self.notes),
            "load": None if self.load is None else self.load.as_dict(),
            "exit_code": self.exit_code,
        }


def explain_log(text: str, total_bytes: int | None = None, first_number: int = 1) -> Explanation:
    """Explain any text: a log, a page of metrics, or something else altogether.

    Args:
        text: As decoded.
        total_bytes: All memory of the card, where the operator says; a log's own figure wins.
        first_number: The number of the text's first line in its file.
    """
    log = plain_log(text, first_number)
    load = explain_load(text, log.text)
    boot = read_plain_log(log)
    return explain_boot(boot, log, load, total_bytes)


def explain_boot(
    boot: LoggedBoot, log: PlainLog, load: LoadExplanation | None, total_bytes: int | None = None
) -> Explanation:
    """Explain a boot as read.

    Args:
        boot: From `log`.
        log: For its lines.
        load: What it says of its load, if anything.
        total_bytes: As in `explain_log`.
    """
    boot, assumed = _with_assumptions(boot, total_bytes)
    outcome = name_outcome(boot)
    rows = tuple(
        ExplainedRow(row, _number(log, row.position), row.name == outcome.broken_line)
        for row in budget_rows(boot)
    )
    fixes = suggest_headroom(boot) if outcome.is_healthy else suggest_fixes(boot)
    is_helped_by_figures = outcome.kind != "memory changed while measuring"
    is_lacking = outcome.is_for_memory and not fixes and is_helped_by_figures
    return Explanation(
        boot,
        outcome,
        log.line_at(boot.error.position) if boot.error is not None else None,
        rows,
        fixes,
        (*assumed, *boot_notes(boot, outcome), *((LACKING,) if is_lacking else ())),
        load,
    )


def _number(log: PlainLog, position: int | None) -> int | None:
    line = log.line_at(position)
    return None if line is None else line.number


def _with_assumptions(
    boot: LoggedBoot, total_bytes: int | None
) -> tuple[LoggedBoot, tuple[str, ...]]:
    """Fill in what the operator says of the card and what the engine does unless told."""
    notes: list[str] = []
    if boot.total_bytes is None and total_bytes is not None:
        boot = replace(boot, total_bytes=total_bytes)
        notes.append(f"The card's {format_bytes(total_bytes)} are the operator's word.")
    profile = profile_of_boot(boot) if boot.engine == "vllm" and not boot.is_empty else None
    if profile is None:
        return boot, tuple(notes)
    named = f"vLLM {boot.version}" if boot.version else "the newest vLLM known here"
    if boot.utilization is None and boot.total_bytes is not None:
        notes.append(f"Utilization {profile.utilization} is assumed, the default of {named}.")
        boot = replace(boot, utilization=profile.utilization)
    is_unsaid = boot.is_graph_estimate_in_budget is None and boot.graph_estimate_bytes is not None
    if is_unsaid and profile.graphs == "estimate in budget":
        notes.append(f"The graphs' estimate is taken off the budget, as {named} does.")
        boot = replace(boot, is_graph_estimate_in_budget=True)
    return boot, tuple(notes)
