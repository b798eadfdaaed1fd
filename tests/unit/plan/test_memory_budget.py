"""Named parts that sum to a total, and readings of a device."""

import pytest

from nanoserve.errors import InvariantError
from nanoserve.plan.memory_budget import BudgetPart, MemoryBudget, MemoryReading


def test_remainder_is_named() -> None:
    """What no part claims is the last part; it is negative where too much was claimed."""
    budget = MemoryBudget.divide(10, {"weights": 7, "kv pool": 5})

    assert budget.parts[-1] == BudgetPart("unassigned", -2)
    assert budget.part_bytes("weights") == 7
    assert budget.part_bytes("capture") == 0


def test_parts_that_do_not_sum_are_refused() -> None:
    """Both sides of the broken identity are printed."""
    with pytest.raises(InvariantError, match="sum to 3 bytes and the total is 4"):
        MemoryBudget(4, (BudgetPart("weights", 3),))


def test_others_hold_what_nobody_else_does() -> None:
    """Others are what is neither free nor ours, and never less than nothing."""
    assert MemoryReading(10, 4, own_bytes=1, context_bytes=2).other_processes_bytes == 3
    assert MemoryReading(10, 9, own_bytes=1, context_bytes=2).other_processes_bytes == 0
