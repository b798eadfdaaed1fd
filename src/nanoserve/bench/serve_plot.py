"""A picture of a load: when tokens came, how long first tokens and gaps took.

Needs matplotlib, which the extra `plot` installs; nothing else does.
"""

from pathlib import Path

from nanoserve.bench.serve_report import ServeReport

_BIN_S = 1.0  # of the rate over time
_SIZE_INCHES = (11.0, 7.0)


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
    times = [time_s for record in report.answered for time_s in record.event_times_s]
    num_bins = max(1, round(report.result.seconds / _BIN_S))
    edges = [report.result.seconds * index / num_bins for index in range(num_bins + 1)]
    scale = sum(r.output_tokens for r in report.answered) / max(1, len(times)) / edges[1]
    rate.hist(times, bins=edges, weights=[scale] * len(times))
    rate.set(title="Output", xlabel="s", ylabel="tokens/s")
    for axes, values, title in (
        (ttft, [1e3 * record.ttft_s for record in report.streams], "TTFT"),
        (gaps, [1e3 * gap for gap in report.gaps_s()], "ITL"),
    ):
        values = sorted(values)
        axes.plot(values, [100 * (i + 1) / len(values) for i in range(len(values))])
        axes.set(title=title, xlabel="ms", ylabel="% within", ylim=(0, 101))
        axes.grid(visible=True, alpha=0.3)
    for row, record in enumerate(sorted(report.answered, key=lambda record: record.sent_s)):
        first_s, last_s = record.event_times_s[0], record.event_times_s[-1]
        lanes.plot([record.sent_s, first_s], [row, row], color="tab:orange")
        lanes.plot([first_s, last_s], [row, row], color="tab:blue")
    lanes.set(title="Requests: waiting (orange), answering (blue)", xlabel="s", ylabel="request")
    figure.savefig(path)
