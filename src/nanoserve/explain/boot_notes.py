"""What no figure of a log can say, in a sentence: where to look for each outcome."""

from nanoserve.explain.boot_outcome import MANY_OTHERS, Outcome, OutcomeKind
from nanoserve.explain.logged_boot import LoggedBoot
from nanoserve.units import format_bytes

_NOTES: dict[OutcomeKind, str] = {
    "weights do not fit": (
        "The utilization does not matter here: weights are loaded before it is asked about. What "
        "helps is fewer bits a weight, more cards, or a card with more memory; `nanoserve plan` "
        "counts the weights beforehand."
    ),
    "step does not fit": (
        "The utilization does not matter here: the step is measured before the pool is made. "
        "Fewer tokens a step or fewer requests at once make it smaller."
    ),
    "memory changed while measuring": (
        "Engines that share a card must start one after the other; stating the pool's bytes, where "
        "the engine can be told, skips the measurement."
    ),
    "others hold the memory": (
        "Where those are this engine's own ranks, each must be given a card of its own."
    ),
    "out of memory while serving": (
        "A clean start measured one large step; real traffic met a larger peak. A lower "
        "utilization leaves more for it, fewer tokens a step make it smaller."
    ),
    "host memory": (
        "No setting of the card helps: give the container more memory or shared memory "
        "(`--shm-size`, `--ipc=host`), or load from a faster disk without a full copy."
    ),
    "driver": "Memory is not the matter: look at the driver, the engine's build and the container.",
    "model not found": "Memory is not the matter: look at the model's name, access and network.",
    "port in use": "Memory is not the matter: stop what listens there, or choose another port.",
    "unsupported": "Memory is not the matter: another version of the engine may support it.",
    "option": "Memory is not the matter: the option named in the line must change.",
    "other error": "Memory is not the matter as far as the log shows: read the quoted line.",
}
_LLAMACPP_NOTES: dict[OutcomeKind, str] = {
    "weights do not fit": (
        "What helps is fewer layers on the card (`--n-gpu-layers`), fewer bits a weight, or more "
        "cards; `nanoserve plan` counts the weights beforehand."
    ),
    "step does not fit": (
        "Compute buffers grow with the rows of a pass (`--ubatch-size`) and, without flash "
        "attention, with the context; several cards keep copies of them for their pipeline."
    ),
}
_ENOUGH = (
    "More was free than was asked for: not the amount stopped it but a limit on one allocation, on "
    "what the driver may map (integrated GPUs have one), or on the process."
)
_CLEARLY = 1.1  # times what was asked for: allocators round up
_CUT = (
    "The log ends before the server was ready, and shows no error: wait for its end, or paste more."
)


def boot_notes(boot: LoggedBoot, outcome: Outcome) -> tuple[str, ...]:
    """Return what else is to say of a boot.

    Args:
        boot: As read.
        outcome: What became of it.
    """
    own = _LLAMACPP_NOTES if boot.engine == "llama.cpp" else {}
    note = own.get(outcome.kind) or _NOTES.get(outcome.kind)
    notes = [] if note is None else [note]
    if outcome.kind in ("unknown", "ok") and boot.error is None and not boot.is_ready:
        notes.append(_CUT)
    if outcome.is_for_memory and (others := _held_before(boot)) is not None:
        notes.append(f"{format_bytes(others)} of the card were taken before the engine started.")
    if outcome.is_for_memory and _had_enough(boot):
        notes.append(_ENOUGH)
    if boot.num_preemptions and outcome.is_healthy:
        notes.append(f"Once it served, {boot.num_preemptions:,} requests were sent back to wait.")
    return tuple(notes)


def _had_enough(boot: LoggedBoot) -> bool:
    """Whether a failed allocation was smaller than what was free."""
    error = boot.error
    if error is None or error.kind != "out of memory":
        return False
    if error.need_bytes is None or error.have_bytes is None:
        return False
    return error.have_bytes > _CLEARLY * error.need_bytes


def _held_before(boot: LoggedBoot) -> int | None:
    """Return what others held of the card, where that is much; None where it is not, or unknown."""
    if boot.total_bytes is None or boot.free_bytes is None:
        return None
    others = boot.total_bytes - boot.free_bytes
    return others if others > MANY_OTHERS * boot.total_bytes else None
