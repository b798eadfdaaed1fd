"""How much memory this process has, and may have, as the kernel's files say.

Owns the files' formats; decides nothing (see `plan`). The parsers are pure.
Read next: `device_memory`, which makes a probe of it.
"""

from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from nanoserve.errors import InvariantError
from nanoserve.units import KIB

_NO_LIMIT_V1 = 2**60  # version 1 writes "no limit" as a number near 2**63


def host_memory_bytes(root: Path = Path("/")) -> int:
    """Return the bytes this process may still take.

    The least of the kernel's MemAvailable and what is left under each memory limit of the
    control groups above this process, versions 1 and 2. Page cache that can be dropped
    counts as free.

    Args:
        root: Folder that holds `proc` and `sys`.

    Raises:
        InvariantError: There is no MemAvailable line; it is Linux's since 3.14.
    """
    available = parse_mem_available((root / "proc/meminfo").read_text())
    return max(0, min([available, *_cgroup_rooms(root)]))


def parse_mem_available(meminfo: str) -> int:
    """Return MemAvailable of /proc/meminfo, in bytes.

    Raises:
        InvariantError: The line is missing.
    """
    for line in meminfo.splitlines():
        name, _, value = line.partition(":")
        if name == "MemAvailable":
            return int(value.split()[0]) * KIB
    message = "/proc/meminfo has no MemAvailable line. Size the KV pool with --kv-cache-bytes."
    raise InvariantError(message)


def parse_cgroup_paths(proc_self_cgroup: str) -> dict[str, str]:
    """Return the group of this process in each memory hierarchy: keys 'v1' and 'v2'."""
    paths = {}
    for line in proc_self_cgroup.splitlines():
        hierarchy, controllers, path = line.split(":", 2)
        if hierarchy == "0" and not controllers:
            paths["v2"] = path
        elif "memory" in controllers.split(","):
            paths["v1"] = path
    return paths


def parse_limit(text: str) -> int | None:
    """Return a control group's limit in bytes; None where there is none."""
    stripped = text.strip()
    if stripped == "max":
        return None
    limit = int(stripped)
    return None if limit >= _NO_LIMIT_V1 else limit


def parse_droppable_cache(memory_stat: str) -> int:
    """Return the bytes of page cache in memory.stat that the kernel would drop first."""
    fields = dict(line.split() for line in memory_stat.splitlines() if line.strip())
    return int(fields.get("total_inactive_file", fields.get("inactive_file", 0)))


def parse_status(status: str) -> dict[str, int]:
    """Return the sizes of /proc/self/status in bytes, by their names there."""
    lines = (line.split() for line in status.splitlines() if line.endswith(" kB"))
    return {name.rstrip(":"): int(num_kib) * KIB for name, num_kib, _ in lines}


def _cgroup_rooms(root: Path) -> Iterator[int]:
    """Yield what is left under each limit above this process."""
    own_groups = root / "proc/self/cgroup"
    if not own_groups.exists():
        return
    layouts = {
        "v2": (root / "sys/fs/cgroup", "memory.max", "memory.current"),
        "v1": (root / "sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes"),
    }
    for version, path in parse_cgroup_paths(own_groups.read_text()).items():
        mount, limit_name, usage_name = layouts[version]
        group = PurePosixPath(path)
        for ancestor in (group, *group.parents):
            folder = mount / ancestor.relative_to("/")
            limit_file = folder / limit_name
            limit = parse_limit(limit_file.read_text()) if limit_file.exists() else None
            if limit is not None:
                usage = int((folder / usage_name).read_text())
                yield limit - usage + parse_droppable_cache((folder / "memory.stat").read_text())
