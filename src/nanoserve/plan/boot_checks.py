"""Gates of a boot and of the running loop: what is said must be what was done.

Each gate takes plain values and raises `BootUnsound`, or returns nothing. Most cannot fail
in a process that `launch.boot` wired; they stay for who wires one by hand.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any

from nanoserve.errors import BootUnsound
from nanoserve.plan.capture_plan import CapturePlan

_MAX_SHAPES = 5  # shapes listed in a message before "and N more"
_MAX_MISSED_PERCENT = 1  # of the last decode steps, before a server counts as degraded

Shape = tuple[int, int]


@dataclass(frozen=True, slots=True)
class DecodeWindow:
    """The last decode steps, by how they ran; each step counts once.

    Attributes:
        num_steps: Decode steps in the window.
        num_replayed: Replayed a recorded shape.
        num_bucketed: Ran padded to a shape, which nothing records.
        num_eager: Ran as they came.
        num_late: Recorded their shape while a client waited.
    """

    num_steps: int
    num_replayed: int
    num_bucketed: int
    num_eager: int
    num_late: int


@dataclass(frozen=True, slots=True)
class BufferShape:
    """What the tensors that recorded steps read were made for.

    Attributes:
        num_rows: Rows of a step, padding included.
        num_blocks: Blocks of a row's block table.
        block_size: Slots in a block.
        sink_block: Block that padding rows write to.
    """

    num_rows: int
    num_blocks: int
    block_size: int
    sink_block: int


@dataclass(frozen=True, slots=True)
class PoolShape:
    """The KV pool as it was allocated.

    Attributes:
        num_blocks: Blocks that requests hold; their ids begin at 0.
        block_size: Slots in a block.
        sink_block: Block that padding rows may write to.
    """

    num_blocks: int
    block_size: int
    sink_block: int


def check_warm_before_serving(is_loop_running: bool) -> None:
    """Refuse to warm beside a running engine loop.

    A warm batch writes the buffers that a real step writes: the symptom is a token.

    Raises:
        BootUnsound: The loop runs.
    """
    if is_loop_running:
        _refuse(
            "capture",
            "the engine loop already runs, and warming writes the buffers its steps read. "
            "Warm first, then start the loop.",
        )


def check_capture_matches_cache(plan: CapturePlan, buffers: BufferShape, pool: PoolShape) -> None:
    """Refuse buffers that were not made for this plan and this pool.

    Raises:
        BootUnsound: A shape does not fit the buffers, or they address another pool's blocks.
    """
    width = buffers.num_blocks * buffers.block_size
    if buffers.num_rows < plan.max_rows or width < plan.max_width:
        _refuse(
            "capture",
            f"the buffers hold {buffers.num_rows:,} rows of {width:,} tokens and the widest "
            f"shape is {plan.max_rows:,} rows of {plan.max_width:,}.",
        )
    if buffers.block_size != pool.block_size:
        _refuse(
            "capture",
            f"the buffers count {buffers.block_size} slots in a block and the pool "
            f"{pool.block_size}.",
        )
    if buffers.sink_block != pool.sink_block:
        _refuse(
            "capture",
            f"padding rows write to block {buffers.sink_block:,} and the pool's sink is block "
            f"{pool.sink_block:,}.",
        )
    if pool.sink_block < pool.num_blocks:
        _refuse(
            "capture",
            f"padding rows write to block {pool.sink_block:,}, which a request may hold: "
            f"requests have blocks 0 to {pool.num_blocks - 1:,}.",
        )


def check_capture_limit(plan: CapturePlan, num_recorded: int) -> None:
    """Refuse more graphs than the process was to hold.

    Raises:
        BootUnsound: There are more.
    """
    if num_recorded > plan.limit:
        _refuse(
            "capture",
            f"{num_recorded:,} graphs are held and --capture-limit is {plan.limit:,}.",
        )


def check_all_shapes_captured(plan: CapturePlan, recorded: Collection[Shape]) -> None:
    """Refuse to serve while a planned shape is not recorded.

    Raises:
        BootUnsound: Names the shapes that are missing.
    """
    _check_none_cold(plan.shapes, recorded)


def check_replays_dominate(window: DecodeWindow) -> str | None:
    """Return why a server that was to replay its decode steps is degraded; None if it is not.

    More than 1 % of the steps ran eager or were captured late, in front of a client.
    """
    num_missed = window.num_eager + window.num_late
    if 100 * num_missed <= _MAX_MISSED_PERCENT * window.num_steps:
        return None
    return (
        f"{num_missed:,} of the last {window.num_steps:,} decode steps were not replayed: "
        f"{window.num_eager:,} ran eager and {window.num_late:,} were captured late, and more "
        f"than {_MAX_MISSED_PERCENT} % is too many. Raise --capture-limit, --warm-width or --warm-rows, "
        "or leave out --no-warm."
    )


def check_boot_info(info: dict[str, Any]) -> None:
    """Refuse a boot payload that contradicts itself.

    Args:
        info: As `boot_info` makes it.

    Raises:
        BootUnsound: Names both sides of what does not agree.
    """
    _check_pool(info)
    _check_budget(info)
    graphs = info["cuda_graphs"]
    if (graphs is None) != (info["decode_mode"] == "eager"):
        shapes = "no shapes" if graphs is None else f"{graphs['count']:,} shapes"
        _refuse("report", f"decode mode {info['decode_mode']} has {shapes}.")
    if graphs is not None:
        _check_graphs(graphs)


def _check_pool(info: dict[str, Any]) -> None:
    pool = info["kv_pool"]
    num_blocks = pool["num_blocks"] + pool["num_sink_blocks"]
    if pool["pool_bytes"] != num_blocks * pool["block_bytes"]:
        _refuse(
            "report",
            f"the pool is {pool['pool_bytes']:,} bytes and {num_blocks:,} blocks of "
            f"{pool['block_bytes']:,} are {num_blocks * pool['block_bytes']:,}.",
        )
    fits, wanted = pool["concurrency_at_max_len"], info["max_num_seqs"]
    if (pool["bound_by"] == "pool") != (fits < wanted):
        _refuse(
            "report",
            f"concurrency is said to be bound by the {pool['bound_by']}, and the pool holds "
            f"{fits:,} of {wanted:,} requests.",
        )


def _check_budget(info: dict[str, Any]) -> None:
    total_bytes = info["device"]["total_bytes"]
    planned_bytes = sum(line["planned_bytes"] for line in info["budget"])
    if planned_bytes != total_bytes:
        _refuse(
            "report",
            f"the budget's lines sum to {planned_bytes:,} bytes and the device has "
            f"{total_bytes:,}.",
        )
    for line in info["budget"]:
        measured_bytes, residual_bytes = line["measured_bytes"], line["residual_bytes"]
        if measured_bytes is None or measured_bytes - line["planned_bytes"] == residual_bytes:
            continue
        _refuse(
            "report",
            f"{line['name']}: {measured_bytes:,} bytes measured less {line['planned_bytes']:,} "
            f"planned is not {residual_bytes}.",
        )


def _check_graphs(graphs: dict[str, Any]) -> None:
    planned, recorded, dropped = (
        {tuple(shape) for shape in graphs[name]} for name in ("shapes", "recorded", "dropped")
    )
    if strange := (recorded | dropped) - planned:
        _refuse("report", f"{list_shapes(strange)} recorded or dropped and never planned.")
    if both := recorded & dropped:
        _refuse("report", f"{list_shapes(both)} both recorded and dropped.")
    if len(recorded) > graphs["limit"]:
        _refuse("report", f"{len(recorded):,} shapes recorded, and the limit is {graphs['limit']}.")
    if graphs["is_warm"]:
        _check_none_cold(planned - dropped, recorded)


def _check_none_cold(planned: Iterable[Shape], recorded: Collection[Shape]) -> None:
    cold = set(planned) - set(recorded)
    if cold:
        _refuse("capture", f"{list_shapes(cold)} planned and not recorded before serving.")


def list_shapes(shapes: Collection[Shape]) -> str:
    """Return how many shapes there are and the first of them: '2 shapes (1x128, 2x128)'."""
    names = [f"{rows}x{width}" for rows, width in sorted(shapes)]
    shown = ", ".join(names[:_MAX_SHAPES])
    more = f" and {len(names) - _MAX_SHAPES} more" if len(names) > _MAX_SHAPES else ""
    return f"{len(names)} shape{'s' if len(names) > 1 else ''} ({shown}{more})"


def _refuse(stage: str, problem: str) -> None:
    raise BootUnsound(stage, problem)
