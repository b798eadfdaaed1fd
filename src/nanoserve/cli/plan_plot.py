"""`nanoserve plan --plot`: a plan as a picture, or as one HTML file with nothing outside it.

Owns what is drawn and how; the numbers are `capacity.plan_chart`'s. Needs matplotlib, which the
extra `plot` installs; nothing else does.
"""

import html
import io
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nanoserve.bench.plot_library import check_can_plot
from nanoserve.capacity.plan_answer import PlanAnswer
from nanoserve.capacity.plan_chart import LengthFit, fit_by_length, missing_bytes, stack_parts
from nanoserve.capacity.plan_formulas import formula_lines
from nanoserve.capacity.plan_table import headline, plan_lines
from nanoserve.capacity.stage_budget import KEPT_BACK
from nanoserve.errors import OptionError
from nanoserve.units import GIB

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FORMATS = (".png", ".svg", ".html")
_SIZE_INCHES = (11.0, 4.6)
# Okabe and Ito's colours, which colour-blind readers tell apart; the pool is the green one.
# A part has its colour whatever the engine's order, so that two plans can be compared.
_COLOURS = {
    KEPT_BACK: "#999999",
    "weights": "#0072B2",
    "rounding and rotary tables": "#E69F00",
    "activations": "#CC79A7",
    "outside the allocator": "#56B4E9",
    "CUDA graphs": "#D55E00",
}
_OTHER_COLOUR = "#F0E442"
_POOL_COLOUR = "#009E73"

_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>
body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 70rem; margin: 2rem auto; padding: 0 1rem; }}
pre {{ font: 13px/1.45 ui-monospace, monospace; background: #f6f6f6; padding: 1rem; overflow-x: auto; }}
svg {{ max-width: 100%; height: auto; }}
</style>
</head>
<body>
<h1>{title}</h1>
<p><strong>{verdict}</strong>: {reason}.</p>
{figure}
<h2>The plan</h2>
<pre>{plan}</pre>
<h2>Every formula, with its numbers</h2>
<pre>{formulas}</pre>
</body>
</html>
"""


def check_plot(path: Path) -> None:
    """Refuse what cannot be drawn, before anything is planned.

    Raises:
        OptionError: The name has no known ending, or matplotlib is not installed.
    """
    if path.suffix.lower() not in FORMATS:
        message = f"--plot {path}: write a name that ends with {', '.join(FORMATS)}."
        raise OptionError(message)
    check_can_plot()


def write_plot(plan: PlanAnswer, path: Path) -> None:
    """Draw a plan into a file; see `check_plot`.

    Raises:
        OptionError: The file cannot be written.
    """
    suffix = path.suffix.lower()[1:]
    picture = _draw(plan, "svg" if suffix == "html" else suffix)
    if suffix == "html":
        picture = _page(plan, picture.decode()).encode()
    try:
        path.write_bytes(picture)
    except OSError as error:
        message = f"--plot {path} cannot be written: {error}"
        raise OptionError(message) from None


def _draw(plan: PlanAnswer, kind: str) -> bytes:
    import matplotlib as mpl
    from matplotlib.figure import Figure

    with mpl.rc_context({"svg.hashsalt": "nanoserve", "svg.fonttype": "none"}):
        figure = Figure(figsize=_SIZE_INCHES, layout="constrained")
        stack, fits = figure.subplots(1, 2, width_ratios=(2, 3))
        _draw_stack(stack, plan)
        _draw_fits(fits, plan, fit_by_length(plan))
        figure.suptitle(f"{headline(plan)}: {plan.verdict}", fontsize=11)
        picture = io.BytesIO()
        metadata: dict[str, Any] = {"Date": None} if kind == "svg" else {}
        figure.savefig(picture, format=kind, dpi=150, metadata=metadata)
    return picture.getvalue()


def _draw_stack(axes: "Axes", plan: PlanAnswer) -> None:
    """The card from the bottom up, in the order subtracted; a dashed line where it ends."""
    bottom = 0.0
    parts = stack_parts(plan)
    for index, part in enumerate(parts):
        size = part.num_bytes / GIB
        is_pool = index == len(parts) - 1
        colour = _POOL_COLOUR if is_pool else _COLOURS.get(part.name, _OTHER_COLOUR)
        spread = f" ({part.low / GIB:.2f} to {part.high / GIB:.2f})" if part.high > part.low else ""
        axes.bar(0, size, bottom=bottom, color=colour, label=f"{part.name}: {size:.2f}{spread}")
        bottom += size
    total = plan.stage.total_bytes / GIB
    axes.axhline(total, color="black", linestyle="--", linewidth=1)
    axes.set_xlim(-0.6, 0.6)
    axes.set_ylim(0, max(bottom, total) * 1.05)
    axes.set_xticks([])
    axes.set_ylabel("GiB")
    missing = missing_bytes(plan) / GIB
    words = f"{missing:.2f} GiB too much for" if missing else "memory of"
    which = "the GPU" if plan.query.num_gpus == 1 else "each GPU"
    if plan.query.gpu.is_host:
        which = "this machine"
    axes.set_title(f"{words} {which} ({total:.2f} GiB)", fontsize=10)
    handles, labels = axes.get_legend_handles_labels()
    axes.legend(handles[::-1], labels[::-1], fontsize=8, loc="upper left", bbox_to_anchor=(1, 1))


def _draw_fits(axes: "Axes", plan: PlanAnswer, fits: Sequence[LengthFit]) -> None:
    """Requests at once over their length: more of them, or longer ones, and some wait.

    What fits and what the slots let run are two things: the second is a line of its own.
    """
    axes.set_title("requests that fit at once, by their length", fontsize=10)
    axes.set_xlabel("tokens of a request, prompt and output together")
    axes.set_ylabel("requests at once")
    if not fits:
        axes.text(0.5, 0.5, "no pool is left", ha="center", va="center", transform=axes.transAxes)
        axes.set_xticks([])
        axes.set_yticks([])
        return
    lengths = [fit.tokens for fit in fits]
    axes.fill_between(
        lengths,
        [_shown(fit.low) for fit in fits],
        [_shown(fit.high) for fit in fits],
        color=_POOL_COLOUR,
        alpha=0.25,
        label="likely range",
    )
    axes.plot(lengths, [_shown(fit.mid) for fit in fits], color=_POOL_COLOUR, label="likely")
    slots = plan.choices.max_num_seqs
    axes.axhline(
        slots, color="black", linestyle=":", linewidth=1, label=f"{slots:,} slots: no more run"
    )
    workload = plan.choices.workload.p95
    axes.axvline(
        workload, color="#0072B2", linestyle="--", linewidth=1, label=f"{workload:,} tokens"
    )
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_ylim(bottom=0.5)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}" if value >= 1 else "")
    axes.tick_params(axis="x", labelrotation=30)
    axes.grid(visible=True, which="major", alpha=0.3)
    axes.legend(fontsize=8)


def _shown(count: int) -> float:
    """A logarithmic axis has no 0: there the line ends."""
    return count or float("nan")


def _page(plan: PlanAnswer, svg: str) -> str:
    return _PAGE.format(
        title=html.escape(headline(plan)),
        verdict=html.escape(plan.verdict),
        reason=html.escape(plan.reason),
        figure=svg[svg.index("<svg") :],
        plan=html.escape("\n".join(plan_lines(plan))),
        formulas=html.escape("\n".join(formula_lines(plan))),
    )
