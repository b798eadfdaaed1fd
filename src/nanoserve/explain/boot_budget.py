"""A logged boot's memory line by line, in the order in which its engine takes parts off.

Knows which engine starts from what and what it subtracts; knows no log's wording.
"""

from collections.abc import Callable
from dataclasses import dataclass

from nanoserve.explain.logged_boot import LoggedBoot


@dataclass(frozen=True, slots=True)
class BudgetRow:
    """One line of the budget.

    Attributes:
        name: As the outcome names lines.
        num_bytes: What was taken off; of the first row, what there was; None where the log
            does not say.
        left_bytes: What is left after it; None from the first row on that is not said.
        position: Where in the plain log it stands; None where it follows from others.
        is_outside: Whether it is no part of the sum: paid from what the engine keeps free.
    """

    name: str
    num_bytes: int | None
    left_bytes: int | None = None
    position: int | None = None
    is_outside: bool = False


@dataclass(frozen=True, slots=True)
class _Part:
    """A line an engine takes off: a field of `LoggedBoot`, or what follows from several."""

    name: str
    field: str = ""
    derive: Callable[[LoggedBoot], int | None] | None = None
    is_outside: bool = False
    is_needed: bool = True  # shown though the log does not say it


def budget_rows(boot: LoggedBoot) -> tuple[BudgetRow, ...]:
    """Return the lines of a boot's budget; none where the log gives no figure at all."""
    rows: list[BudgetRow] = []
    left: int | None = None
    for part in _parts(boot):
        num_bytes = _bytes_of(part, boot)
        if num_bytes is None and not part.is_needed:
            continue
        position = boot.positions.get(part.field) if num_bytes is not None else None
        if part.is_outside:
            rows.append(BudgetRow(part.name, num_bytes, None, position, True))
            continue
        if not rows:
            left = num_bytes
        else:
            left = None if left is None or num_bytes is None else left - num_bytes
        rows.append(BudgetRow(part.name, num_bytes, left, position))
    return tuple(rows) if any(row.num_bytes is not None for row in rows) else ()


def _bytes_of(part: _Part, boot: LoggedBoot) -> int | None:
    if part.derive is not None:
        return part.derive(boot)
    value = getattr(boot, part.field)
    return value if isinstance(value, int) else None


def _parts(boot: LoggedBoot) -> tuple[_Part, ...]:
    """Return the lines of a boot's engine; a log of no known engine is taken for vLLM's."""
    if boot.engine == "vllm" or boot.engine is None:
        return _vllm_parts(boot)
    return _PARTS[boot.engine]


def _vllm_parts(boot: LoggedBoot) -> tuple[_Part, ...]:
    held = (
        (_Part("weights", "weight_bytes"), _Part("driver context", "non_torch_bytes"))
        if boot.consumed_bytes is None
        else (_Part("weights", "consumed_bytes"),)
    )
    is_inside = boot.is_graph_estimate_in_budget is True
    graphs = (
        _Part("capture", "graph_estimate_bytes")
        if is_inside
        else _Part("capture", "graph_bytes", is_outside=True)
    )
    return (
        _Part("total", "total_bytes"),
        _Part("reserve", derive=_reserve),
        *held,
        _Part("activations", "activation_bytes"),
        *((graphs,) if is_inside else ()),
        _Part("kv pool", "pool_bytes"),
        *(() if is_inside else (graphs,)),
        _Part("other processes", derive=_others, is_outside=True, is_needed=False),
    )


def _reserve(boot: LoggedBoot) -> int | None:
    """Return what a share of the total leaves free."""
    if boot.total_bytes is None or boot.requested_bytes is None:
        return None
    return boot.total_bytes - boot.requested_bytes


def _free_reserve(boot: LoggedBoot) -> int | None:
    """Return what SGLang keeps free: a share of what was free at the start."""
    if boot.free_bytes is None or boot.utilization is None:
        return None
    return round((1 - boot.utilization) * boot.free_bytes)


def _others(boot: LoggedBoot) -> int | None:
    """Return what was taken before the engine started, where the log says what was free."""
    if boot.total_bytes is None or boot.free_bytes is None:
        return None
    return max(0, boot.total_bytes - boot.free_bytes)


_PARTS = {
    "sglang": (
        _Part("free at start", "free_bytes"),
        _Part("weights", "weight_bytes"),
        _Part("reserve", derive=_free_reserve),
        _Part("kv pool", "pool_bytes"),
        _Part("capture", "graph_bytes", is_outside=True),
        _Part("free when ready", "left_bytes", is_outside=True, is_needed=False),
    ),
    "tensorrt-llm": (
        _Part("total", "total_bytes"),
        _Part("weights", "weight_bytes"),
        _Part("activations", "activation_bytes"),
        _Part("kv pool", "pool_bytes"),
        _Part("free before the pool", "free_bytes", is_outside=True, is_needed=False),
    ),
    "llama.cpp": (
        _Part("free at start", "free_bytes"),
        _Part("weights", "weight_bytes"),
        _Part("kv pool", "pool_bytes"),
        _Part("activations", "activation_bytes"),
    ),
    "nanoserve": (
        _Part("total", "total_bytes"),
        _Part("reserve", "reserve_bytes", is_needed=False),
        _Part("weights", "weight_bytes"),
        _Part("this process at start", "own_bytes", is_needed=False),
        _Part("driver context", "non_torch_bytes", is_needed=False),
        _Part("other processes", "others_bytes", is_needed=False),
        _Part("kv pool", "pool_bytes"),
        _Part("activations", "activation_bytes"),
        _Part("capture", "graph_bytes", is_needed=False),
    ),
}
