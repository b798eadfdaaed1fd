"""The comparison with recorded boots as text and as JSON. Computes nothing but counts."""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from nanoserve.bench.boot_errors import (
    POOLS,
    Comparison,
    ErrorSummary,
    RecordReport,
    group_medians,
    summarise,
)
from nanoserve.plan.text_table import table_lines
from nanoserve.units import GIB

LISTED_BELOW = 40  # figures of fewer records have their worst cases listed
NUM_WORST = 5
_IN_GIB = ("pool", "weights")


def report_lines(reports: Sequence[RecordReport]) -> Iterator[str]:
    """Yield every comparison, the errors by figure, the outcomes, and what was refused."""
    comparisons = [one for report in reports for one in report.comparisons]
    yield from _comparison_lines(comparisons)
    yield ""
    for summary in summarise(comparisons):
        yield from _summary_lines(summary)
    yield from _residual_lines(comparisons)
    yield from _outcome_lines(reports)
    yield from _refusal_lines(reports)


def report_as_dict(reports: Sequence[RecordReport]) -> dict[str, Any]:
    """Return the same as one object for `--json`."""
    comparisons = [one for report in reports for one in report.comparisons]
    return {
        "records": [_record_dict(report) for report in reports],
        "summary": [_summary_dict(summary) for summary in summarise(comparisons)],
        "outcomes": _outcome_counts(reports),
        "refused": dict(_refused(reports)),
    }


def _comparison_lines(comparisons: Sequence[Comparison]) -> tuple[str, ...]:
    rows = [("record", "figure", "predicted", "logged", "error", "interval", "notes")]
    for one in comparisons:
        low, high = (_shown(one.figure, bound) for bound in one.bounds)
        interval = f"{low} to {high}" + ("" if one.is_inside else " outside")
        rows.append(
            (
                one.record_id,
                one.figure,
                _shown(one.figure, one.predicted),
                _shown(one.figure, one.logged),
                f"{one.error:+.2%}",
                interval,
                ", ".join(one.notes),
            )
        )
    return table_lines(rows)


def _shown(figure: str, value: float) -> str:
    if figure.startswith(_IN_GIB):
        return f"{value / GIB:,.2f} GiB"
    return f"{value:,.2f}" if figure == "concurrency" else f"{value:,.0f}"


def _summary_lines(summary: ErrorSummary) -> Iterator[str]:
    inside = f"{summary.num_inside} of {summary.num_records} inside the interval"
    even, odd = summary.halves
    yield (
        f"{summary.figure}: n {summary.num_records}, median {summary.median:.2%}, "
        f"90th percentile {summary.p90:.2%}, 95th {summary.p95:.2%}; "
        f"halves {even:.2%} and {odd:.2%}, {inside}"
    )
    if summary.num_records < LISTED_BELOW:
        worst = ", ".join(f"{one.record_id} {one.error:+.1%}" for one in summary.worst[:NUM_WORST])
        yield f"  worst: {worst}"


def _residual_lines(comparisons: Sequence[Comparison]) -> Iterator[str]:
    """Yield the pool's residuals by engine and by family, which show what is systematic."""
    pools = [one for one in comparisons if one.figure in POOLS]
    for title, groups in (
        ("engine", group_medians(pools, lambda one: one.engine)),
        ("family", group_medians(pools, lambda one: one.family)),
    ):
        if groups:
            yield f"pool by {title}:"
        for name, (count, median, largest) in groups.items():
            yield f"  {name}: n {count}, median {median:+.1%}, largest {largest:+.1%}"


def _outcome_lines(reports: Sequence[RecordReport]) -> Iterator[str]:
    counts = _outcome_counts(reports)
    for title in ("failures", "healthy"):
        of_kind = counts[title]
        decided = of_kind["right"] + of_kind["wrong"]
        share = f"{of_kind['right'] / decided:.0%}" if decided else "none"
        yield (
            f"outcome of {title}: n {decided}, named right {of_kind['right']} ({share}); "
            f"{of_kind['open']} left open by their record"
        )
    for report in reports:
        if report.outcome.verdict in ("wrong", "not recorded"):
            word = report.outcome.recorded or "nothing"
            yield f"  {report.record_id}: recorded {word}, named {report.outcome.named}"


def _outcome_counts(reports: Sequence[RecordReport]) -> dict[str, dict[str, int]]:
    counts = {}
    for title, is_failure in (("failures", True), ("healthy", False)):
        verdicts = Counter(
            report.outcome.verdict for report in reports if report.outcome.is_failure is is_failure
        )
        counts[title] = {word: verdicts[word] for word in ("right", "wrong", "open")}
    return counts


def _refusal_lines(reports: Sequence[RecordReport]) -> Iterator[str]:
    refused = _refused(reports)
    num_whole = sum(not report.comparisons and bool(report.refusals) for report in reports)
    yield (
        f"{len(reports)} records, {num_whole} without any prediction; "
        f"{sum(refused.values())} refusals:"
    )
    for kind, count in refused.most_common():
        names = [
            report.record_id
            for report in reports
            if any(error.kind == kind for error in report.refusals)
        ]
        yield f"  {kind}: {count} ({', '.join(names)})"


def _refused(reports: Sequence[RecordReport]) -> Counter[str]:
    return Counter(error.kind for report in reports for error in report.refusals)


def _record_dict(report: RecordReport) -> dict[str, Any]:
    return {
        "id": report.record_id,
        "comparisons": [_comparison_dict(one) for one in report.comparisons],
        "refused": [str(error) for error in report.refusals],
        "outcome": {
            "recorded": report.outcome.recorded,
            "named": report.outcome.named,
            "verdict": report.outcome.verdict,
        },
    }


def _comparison_dict(one: Comparison) -> dict[str, Any]:
    return {
        "figure": one.figure,
        "predicted": one.predicted,
        "logged": one.logged,
        "error": one.error,
        "interval": list(one.bounds),
        "notes": list(one.notes),
    }


def _summary_dict(summary: ErrorSummary) -> dict[str, Any]:
    return {
        "figure": summary.figure,
        "n": summary.num_records,
        "median": summary.median,
        "p90": summary.p90,
        "p95": summary.p95,
        "halves": list(summary.halves),
        "inside": summary.num_inside,
        "worst": [{"id": one.record_id, "error": one.error} for one in summary.worst[:NUM_WORST]],
    }
