"""What became of recorded boots: named from their figures, held against what was recorded."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from nanoserve.bench.boot_cache import cache_layout
from nanoserve.bench.boot_case import BootCase
from nanoserve.bench.boot_facts import UnsupportedRecordError
from nanoserve.explain.boot_outcome import OutcomeKind, name_outcome
from nanoserve.explain.boot_record import boot_of_record

Verdict = Literal["right", "wrong", "open", "not recorded"]

# Records have coarser words: a boot refused for its free memory is among the failed loads.
_RECORDED: Mapping[str, tuple[OutcomeKind, ...]] = {
    "ok": ("ok",),
    "max_len_too_big": ("request larger than pool",),
    "no_blocks": ("no room for pool",),
    "oom_graph": ("capture out of headroom",),
    "oom_load": ("weights do not fit", "free memory below utilization"),
    "oom_kv": ("pool does not fit",),
}


@dataclass(frozen=True, slots=True)
class OutcomeCheck:
    """One boot's outcome.

    Attributes:
        recorded: In the record's word; empty where it has none.
        named: What the figures and the error's account lead to.
        verdict: `open` where neither says what became of it.
    """

    recorded: str
    named: OutcomeKind
    verdict: Verdict

    @property
    def is_failure(self) -> bool:
        """Whether the record tells of a boot that failed."""
        return self.recorded not in ("ok", "")


def check_outcome(record: Mapping[str, Any], case: BootCase | None) -> OutcomeCheck:
    """Name what became of a record's boot without looking at its recorded outcome.

    Args:
        record: One object of the file.
        case: The same with its model, where that is known: says what one request takes.
    """
    recorded = record.get("outcome")
    word = recorded if isinstance(recorded, str) else ""
    named = name_outcome(boot_of_record(record), _request_bytes(case)).kind
    expected = _RECORDED.get(word)
    if expected is None:
        return OutcomeCheck(word, named, "not recorded")
    if named in expected:
        return OutcomeCheck(word, named, "right")
    return OutcomeCheck(word, named, "open" if named == "unknown" else "wrong")


def _request_bytes(case: BootCase | None) -> int | None:
    if case is None or case.boot.max_model_len is None:
        return None
    try:
        layout = cache_layout(case)
    except UnsupportedRecordError:
        return None
    return layout.groups.request_blocks(case.boot.max_model_len, layout.cache) * layout.block_bytes
