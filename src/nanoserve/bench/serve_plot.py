"""A picture of a load: when tokens came, how long first tokens and gaps took.

Needs matplotlib, which the extra `plot` installs; nothing else does.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from nanoserve.bench.request_record import percentile
from nanoserve.bench.serve_report import ServeReport

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_BIN_S = 1.0  # of the rate over time
_SIZE_INCHES = (11.0, 7.0)
_CLOCK = "seconds since the load began"
_LONG_TAIL = 10  # times the median: past it, a linear axis would show the tail alone


def write_plot(report: ServeReport, path: Path) -> None:
    """Draw the report; the name's ending decides the format.

    Args:
        report: With at least one answer.
        path: Ends in .png or .svg.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=_SIZE_INCHES, layout="constrained")
    rate, ttft, gaps, lanes = figure.subplots(2, 2).flat
    figure.suptitle(
        f"{report.model}: {report.load}\n"
        f"{report.output_tokens_per_s:,.1f} output tokens/s, {report.errors.total()} failed"
    )
    _draw_rate(rate, report)
    first = [1e3 * record.ttft_s for record in report.streams]
    _draw_shares(ttft, first, "Time to first token (TTFT)")
    _draw_shares(gaps, [1e3 * gap for gap in report.gaps_s()], "Gap between tokens (ITL)")
    _draw_lanes(lanes, report)
    figure.savefig(path, dpi=120)


def _draw_rate(axes: "Axes", report: ServeReport) -> None:
    """Tokens a second over the run, in bins of about a second."""
    times = [time_s for record in report.answered for time_s in record.event_times_s]
    num_bins = max(1, round(report.result.seconds / _BIN_S))
    edges = [report.result.seconds * index / num_bins for index in range(num_bins + 1)]
    scale = sum(r.output_tokens for r in report.answered) / max(1, len(times)) / edges[1]
    axes.hist(times, bins=edges, weights=[scale] * len(times))
    axes.axhline(
        report.output_tokens_per_s,
        color="black",
        linestyle="--",
        linewidth=1,
        label=f"whole run: {report.output_tokens_per_s:,.1f}",
    )
    axes.set(title="Output", xlabel=_CLOCK, ylabel="tokens/s")
    axes.legend(fontsize=8)


def _draw_shares(axes: "Axes", values_ms: Sequence[float], title: str) -> None:
    """What share came within how long, from 0 on; of a long tail on a logarithmic axis."""
    from matplotlib.ticker import LogLocator

    values = sorted(values_ms)
    axes.set(title=title, xlabel="ms", ylabel="% within", ylim=(0, 101))
    axes.grid(visible=True, alpha=0.3)
    if not values:
        axes.text(0.5, 0.5, "none", ha="center", va="center", transform=axes.transAxes)
        return
    shares = [100 * (index + 1) / len(values) for index in range(len(values))]
    axes.plot(values, shares, drawstyle="steps-post")
    median = percentile(values, 0.5)
    if median > 0 and values[0] > 0 and values[-1] > _LONG_TAIL * median:
        axes.set_xscale("log")
        axes.set_xlabel("ms, logarithmic")
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:,g}")
        axes.xaxis.set_minor_formatter(lambda value, _: "")
    else:
        axes.set_xlim(left=0)
    for fraction, style in ((0.5, ":"), (0.99, "--")):
        value = percentile(values, fraction)
        label = f"p{100 * fraction:.0f}: {value:,.1f} ms"
        axes.axvline(value, color="black", linestyle=style, linewidth=1, label=label)
    axes.legend(fontsize=8, loc="lower right")


def _draw_lanes(axes: "Axes", report: ServeReport) -> None:
    """Each request's wait and answer, in the order sent."""
    from matplotlib.ticker import MaxNLocator

    for row, record in enumerate(sorted(report.answered, key=lambda record: record.sent_s)):
        first_s, last_s = record.event_times_s[0], record.event_times_s[-1]
        axes.plot([record.sent_s, first_s], [row, row], color="tab:orange")
        axes.plot([first_s, last_s], [row, row], color="tab:blue")
    axes.set(
        title="Requests: waiting (orange), answering (blue)",
        xlabel=_CLOCK,
        ylabel="request, in the order sent",
    )
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))
