"""A plan drawn: the deciding GPU as a stack of parts, and how many requests fit by length.

The numbers are `capacity.plan_chart`'s. Needs matplotlib, which the extra `plot` installs.
"""

import io
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from nanoserve.capacity.budget_line import KEPT_BACK, LEFT_OVER
from nanoserve.capacity.plan_answer import PlanAnswer
from nanoserve.capacity.plan_chart import LengthFit, fit_by_length, missing_bytes, stack_parts
from nanoserve.capacity.plan_table import headline
from nanoserve.units import GIB

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_SIZE_INCHES = (11.0, 4.6)
_PANEL_INCHES = (4.8, 4.2)  # narrow enough for its words to be read on a phone
# Okabe and Ito's colours, which colour-blind readers tell apart; the pool is the green one.
# A part has its colour whatever the engine's order, so that two plans can be compared.
_COLOURS = {
    KEPT_BACK: "#999999",
    "weights": "#0072B2",
    "rounding and rotary tables": "#E69F00",
    "activations": "#CC79A7",
    "outside the allocator": "#56B4E9",
    "CUDA graphs": "#D55E00",
    "recorded steps": "#D55E00",
    "this process at start": "#56B4E9",
    LEFT_OVER: "#DDDDDD",
}
_OTHER_COLOUR = "#F0E442"
_POOL_COLOUR = "#009E73"


def draw_plan(plan: PlanAnswer, kind: str) -> bytes:
    """Return one picture with both panels.

    Args:
        plan: What is drawn.
        kind: `png` or `svg`.
    """
    import matplotlib as mpl
    from matplotlib.figure import Figure

    with mpl.rc_context(_settings("plan")):
        figure = Figure(figsize=_SIZE_INCHES, layout="constrained")
        stack, fits = figure.subplots(1, 2, width_ratios=(2, 3))
        _draw_stack(stack, plan)
        _draw_fits(fits, plan, fit_by_length(plan))
        figure.suptitle(f"{headline(plan)}: {plan.verdict}", fontsize=11)
        return _saved(figure, kind)


def draw_panels(plan: PlanAnswer) -> tuple[str, str]:
    """Return the two panels as SVGs of their own, for a page that sets them side by side.

    Their background is left out, so that a dark page shows through.
    """
    import matplotlib as mpl
    from matplotlib.figure import Figure

    panels = []
    for name in ("stack", "fits"):
        with mpl.rc_context(_settings(name)):
            figure = Figure(figsize=_PANEL_INCHES, layout="constrained")
            axes = figure.subplots()
            if name == "stack":
                _draw_stack(axes, plan)
            else:
                _draw_fits(axes, plan, fit_by_length(plan))
            drawing = _saved(figure, "svg", transparent=True).decode()
        panels.append(drawing[drawing.index("<svg") :])
    return panels[0], panels[1]


def _settings(salt: str) -> dict[str, Any]:
    """Return matplotlib's settings: words stay words, and names of two drawings differ."""
    return {"svg.hashsalt": f"nanoserve {salt}", "svg.fonttype": "none"}


def _saved(figure: "Figure", kind: str, *, transparent: bool = False) -> bytes:
    picture = io.BytesIO()
    metadata: dict[str, Any] = {"Date": None} if kind == "svg" else {}
    figure.savefig(picture, format=kind, dpi=150, metadata=metadata, transparent=transparent)
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
        words = f"{size:.2f}{spread}" if size or not is_pool else "none"
        axes.bar(0, size, bottom=bottom, color=colour, label=f"{part.name}: {words}")
        bottom += size
    total = plan.stage.total_bytes / GIB
    which = "the GPU" if plan.query.num_gpus == 1 else "each GPU"
    if plan.query.gpu.is_host:
        which = "this machine"
    words = f"{which}: {total:.2f}"
    axes.axhline(total, color="black", linestyle="--", linewidth=1, label=words)
    axes.set_xlim(-0.6, 0.6)
    axes.set_ylim(0, max(bottom, total) * 1.05)
    axes.set_xticks([])
    axes.set_ylabel("GiB")
    missing = missing_bytes(plan) / GIB
    words = f"{missing:.2f} GiB too much for" if missing else "memory of"
    axes.set_title(f"{words} {which} ({total:.2f} GiB)", fontsize=10, loc="left")
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
        words = "no pool is left: none fits"
        axes.text(0.5, 0.5, words, ha="center", va="center", transform=axes.transAxes)
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
    _draw_limits(axes, plan)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_ylim(bottom=0.5)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}" if value >= 1 else "")
    axes.tick_params(axis="x", labelrotation=30)
    axes.grid(visible=True, which="major", alpha=0.3)
    axes.legend(fontsize=8)


def _draw_limits(axes: "Axes", plan: PlanAnswer) -> None:
    """The slots, those that the launch command asks for, and the workload's length."""
    slots, recommended = plan.choices.max_num_seqs, plan.fit.max_num_seqs
    words = f"{slots:,} slots: no more run"
    axes.axhline(slots, color="black", linestyle=":", linewidth=1, label=words)
    if recommended != slots:
        words = f"{recommended:,} slots recommended: requests grow"
        axes.axhline(recommended, color="#D55E00", linestyle="-.", linewidth=1, label=words)
    words = f"workload: {plan.choices.workload.p95:,} tokens"
    axes.axvline(
        plan.choices.workload.p95, color="#0072B2", linestyle="--", linewidth=1, label=words
    )


def _shown(count: int) -> float:
    """A logarithmic axis has no 0: there the line ends."""
    return count or float("nan")
