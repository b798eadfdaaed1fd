"""Free memory is read from what the kernel writes, limits of control groups included."""

from pathlib import Path

import pytest

from nanoserve.errors import InvariantError
from nanoserve.runner.host_memory import (
    host_memory_bytes,
    parse_cgroup_paths,
    parse_droppable_cache,
    parse_limit,
    parse_mem_available,
    parse_status,
)
from nanoserve.units import GIB, KIB, MIB

MEMINFO = "MemTotal:       16384 kB\nMemFree:         1024 kB\nMemAvailable:    8388608 kB\n"


def machine(root: Path, files: dict[str, str]) -> Path:
    for name, text in {"proc/meminfo": MEMINFO, **files}.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def test_available_memory_is_read_in_kibibytes() -> None:
    """MemAvailable counts, not MemFree."""
    assert parse_mem_available(MEMINFO) == 8388608 * KIB


def test_a_kernel_without_mem_available_is_refused() -> None:
    """The error names the option that replaces the figure."""
    with pytest.raises(InvariantError, match="--kv-cache-bytes"):
        parse_mem_available("MemTotal: 1 kB\n")


def test_both_versions_of_control_groups_are_found() -> None:
    """Version 2 is the line without controllers; version 1 the one with memory."""
    text = "11:cpu,cpuacct:/x\n4:memory:/docker/ab:c\n0::/user.slice\n"

    assert parse_cgroup_paths(text) == {"v1": "/docker/ab:c", "v2": "/user.slice"}


@pytest.mark.parametrize(
    ("text", "limit"),
    [("max\n", None), ("9223372036854771712\n", None), ("1073741824\n", GIB)],
)
def test_limits_are_bytes_or_none(text: str, limit: int | None) -> None:
    """Both versions' ways to write "no limit" are understood."""
    assert parse_limit(text) == limit


@pytest.mark.parametrize(
    ("stat", "expected"),
    [
        ("anon 5\ninactive_file 7\n", 7),
        ("inactive_file 7\ntotal_inactive_file 9\n", 9),
        ("anon 5\n", 0),
    ],
)
def test_droppable_cache_is_the_inactive_file_memory(stat: str, expected: int) -> None:
    """Version 1 reports the group's children under a name of its own."""
    assert parse_droppable_cache(stat) == expected


def test_without_control_groups_the_kernel_s_figure_counts(tmp_path: Path) -> None:
    """A machine without control groups has MemAvailable."""
    assert host_memory_bytes(machine(tmp_path, {})) == 8 * GIB


def test_a_version_2_limit_on_a_parent_counts(tmp_path: Path) -> None:
    """The tightest limit between the process and the root wins; cache counts as free."""
    files = {
        "proc/self/cgroup": "0::/pod/app\n",
        "sys/fs/cgroup/pod/app/memory.max": "max\n",
        "sys/fs/cgroup/pod/memory.max": f"{2 * GIB}\n",
        "sys/fs/cgroup/pod/memory.current": f"{GIB}\n",
        "sys/fs/cgroup/pod/memory.stat": f"anon 1\ninactive_file {300 * MIB}\n",
    }

    assert host_memory_bytes(machine(tmp_path, files)) == GIB + 300 * MIB


def test_a_version_1_limit_at_the_mount_counts(tmp_path: Path) -> None:
    """Inside a container the group's own path is missing and its limit lies at the mount."""
    files = {
        "proc/self/cgroup": "4:memory:/docker/abc\n",
        "sys/fs/cgroup/memory/memory.limit_in_bytes": f"{3 * GIB}\n",
        "sys/fs/cgroup/memory/memory.usage_in_bytes": f"{2 * GIB}\n",
        "sys/fs/cgroup/memory/memory.stat": "total_inactive_file 0\n",
    }

    assert host_memory_bytes(machine(tmp_path, files)) == GIB


def test_a_group_over_its_limit_has_nothing_left(tmp_path: Path) -> None:
    """The figure is never negative."""
    files = {
        "proc/self/cgroup": "0::/\n",
        "sys/fs/cgroup/memory.max": "1000\n",
        "sys/fs/cgroup/memory.current": "5000\n",
        "sys/fs/cgroup/memory.stat": "",
    }

    assert host_memory_bytes(machine(tmp_path, files)) == 0


def test_sizes_of_the_process_are_read_in_kibibytes() -> None:
    """Lines that are no sizes are passed over."""
    text = "Name:\tpython\nVmRSS:\t    5 kB\nRssAnon:\t       3 kB\nThreads:\t1\n"

    assert parse_status(text) == {"VmRSS": 5 * KIB, "RssAnon": 3 * KIB}


def test_this_machine_has_memory() -> None:
    """The real files can be read."""
    assert host_memory_bytes() > 0
