"""What is set aside on a device before the pool takes the rest."""

import pytest

from nanoserve.options import MemoryPolicy
from nanoserve.plan.memory_budget import MemoryReading
from nanoserve.plan.pool_room import PoolRoom, reserve_bytes
from nanoserve.units import GIB, MIB

READING = MemoryReading(
    total_bytes=16 * GIB, free_bytes=8 * GIB, own_bytes=3 * GIB, context_bytes=GIB
)


@pytest.mark.parametrize(
    ("policy", "utilization", "kept_back"),
    [
        ("device", 0.75, 4 * GIB),
        ("device", 1.0, 0),
        ("process", 0.5, 3 * GIB),  # 8 GiB allowed, 3 taken: 5 of the 8 free
        ("process", 1.0, 8 * GIB - int(0.95 * 8 * GIB)),
    ],
)
def test_reserve_of_each_policy(policy: MemoryPolicy, utilization: float, kept_back: int) -> None:
    """One policy keeps a share of the device free, the other limits this process."""
    assert reserve_bytes(READING, utilization, policy) == kept_back


def test_parts_of_a_device_sum_to_it() -> None:
    """Every scope has a line of its own, and the rest is named."""
    room = PoolRoom(READING, 2 * GIB, 4 * GIB, 512 * MIB, 256 * MIB)
    budget = room.divide(GIB)

    assert {part.name: part.num_bytes for part in budget.parts} == {
        "weights": 2 * GIB,
        "driver context": GIB,
        "this process at start": GIB,
        "other processes": 4 * GIB,
        "kv pool": GIB,
        "activations": 512 * MIB,
        "capture": 256 * MIB,
        "reserve": 4 * GIB,
        "unassigned": room.budget_bytes - GIB,
    }


def test_a_device_is_described_by_its_scopes() -> None:
    """The sentence names whose bytes are in the way and what is left."""
    text = PoolRoom(READING, 2 * GIB, 9 * GIB, 512 * MIB, 0).describe()

    assert "4.00 GiB is held by other processes" in text
    assert text.endswith("that leaves -1.50 GiB.")
