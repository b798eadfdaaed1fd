"""What this machine has to serve with, asked without torch: its NVIDIA GPUs, or its CPU."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from nanoserve.errors import NanoserveError
from nanoserve.runner.host_memory import host_memory_bytes
from nanoserve.spec.gpu_names import GpuGroup, find_gpu
from nanoserve.spec.gpu_spec import GpuSpec, custom_gpu
from nanoserve.units import MIB

_ASK = ("nvidia-smi", "--query-gpu=name,memory.total", "--format=csv,noheader,nounits")
_TIMEOUT_S = 10.0
# Of what the driver's tool prints, CUDA reports a little less. Source: gpus.csv, the cards of
# evidence mib+cuda.
_CUDA_SHARE = 0.985
_PROCESSOR_FLAGS = {"bf16": {"avx512_bf16", "amx_bf16", "bf16"}, "amx": {"amx_tile"}}


def machine_gpus(ask: Callable[[], str] | None = None) -> GpuGroup | None:
    """Return the GPUs of this machine; None where there is none, or no driver to ask.

    Cards that differ are not planned together: those like the first are taken.

    Args:
        ask: Returns what the driver's tool prints; None runs it.
    """
    rows = [row for row in map(_row, (ask or _ask_driver)().splitlines()) if row is not None]
    if not rows:
        return None
    name, num_mib = rows[0]
    return GpuGroup(rows.count(rows[0]), _card(name, num_mib))


def machine_memory() -> GpuSpec:
    """Return this machine's memory as a device: what this process may still take of it.

    Raises:
        NanoserveError: The system does not say.
    """
    try:
        num_bytes = host_memory_bytes()
    except (OSError, NanoserveError) as error:
        message = f"this machine does not say what memory it has ({error}): give --gpu."
        raise NanoserveError(message) from None
    spec = _renamed(custom_gpu(num_bytes), "this machine's memory", "free now")
    return replace(spec, compute_capability="host", host_has=cpu_has())


def cpu_has() -> frozenset[str]:
    """Return what `processor_has` says, and whether native operators can be built."""
    from nanoserve.kernels.kernel_build import find_compiler  # plans for a named card do without

    has = processor_has(Path("/proc/cpuinfo"))
    return has if find_compiler() is None else has | {"native"}


def processor_has(cpuinfo: Path) -> frozenset[str]:
    """Return what the processor says it has, as `GpuSpec.host_has` names it."""
    try:
        words = set(cpuinfo.read_text(encoding="utf-8", errors="replace").split())
    except OSError:
        return frozenset()
    return frozenset(name for name, flags in _PROCESSOR_FLAGS.items() if words & flags)


def _ask_driver() -> str:
    import subprocess  # plans for a named card do without

    try:
        found = subprocess.run(
            _ASK, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return found.stdout if found.returncode == 0 else ""


def _row(line: str) -> tuple[str, int] | None:
    name, _, num_mib = line.rpartition(",")
    digits = num_mib.strip()
    return (name.strip(), int(digits)) if name and digits.isdecimal() else None


def _card(name: str, num_mib: int) -> GpuSpec:
    """Return the table's row of a card, or one with its memory alone."""
    try:
        return find_gpu(name)
    except NanoserveError:
        spec = custom_gpu(round(num_mib * MIB * _CUDA_SHARE))
        return _renamed(spec, name, "worked out from the driver's figure")


def _renamed(spec: GpuSpec, name: str, evidence: str) -> GpuSpec:
    return replace(spec, name=name, evidence=evidence)
