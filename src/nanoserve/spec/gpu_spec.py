"""What a GPU is: memory as CUDA reports it, bandwidth, arithmetic rates, link.

Owns the packaged table `data/gpus.csv`. Finding a row by a spelling people use is
`gpu_names`; how memory is divided is `plan`.
"""

import csv
from dataclasses import dataclass, replace
from functools import cache

from nanoserve.errors import OptionError
from nanoserve.spec.data_file import data_file
from nanoserve.units import GIB

GIGA = 10**9  # vendors' bandwidths count bytes in powers of ten
TERA = 10**12
_FP16_ONLY_FLOPS = {  # cards with fp16 tensor cores and no bf16: the data sheets' dense rates
    "T4": 65 * TERA,
    "V100 16GB SXM2": 125 * TERA,
    "V100 32GB SXM2": 125 * TERA,
}
_FP8_CUDA_CAPABILITY = 8.9
_FP8_AMD_TARGETS = ("gfx942", "gfx950")


@dataclass(frozen=True, slots=True)
class GpuSpec:
    """One kind of GPU.

    Attributes:
        name: As people call it, e.g. `H100 SXM`.
        driver_name: As the driver calls it; empty where nobody noted it.
        compute_capability: `9.0` for CUDA, `gfx942` for ROCm; `host` for a machine's memory;
            empty for a custom device.
        memory_bytes: Total as CUDA (or HIP) reports it, below what the box says.
        bandwidth: Bytes per second of device memory; None where unknown.
        half_flops: Dense FLOP/s in bf16, or in fp16 on a card without bf16; None if unknown.
        fp8_flops: Dense FLOP/s in fp8; None where it has no such units or nobody says.
        int8_ops: Dense operations per second in int8; None likewise.
        fp4_flops: Dense FLOP/s in fp4; None likewise.
        link: Bytes per second to the other GPUs, both directions; 0 without NVLink or the like.
        is_unified: Whether the memory is the host's.
        evidence: How the memory figure is known: `mib+cuda` and `cuda` were logged by a
            framework, `mib` by the driver's tool, `est` is estimated, `stated` by the user.
        source: Where the figures come from.
        nominal_gb: What the box says; 0 for what has none.
        host_has: Of a machine: `bf16` where its processor multiplies bfloat16, `amx` where it
            has a matrix unit, `native` where our native operators run, built or to be built.
    """

    name: str
    driver_name: str
    compute_capability: str
    memory_bytes: int
    bandwidth: float | None
    half_flops: float | None
    fp8_flops: float | None
    int8_ops: float | None
    fp4_flops: float | None
    link: float
    is_unified: bool
    evidence: str
    source: str
    nominal_gb: int = 0
    host_has: frozenset[str] = frozenset()

    @property
    def is_host(self) -> bool:
        """Whether it is a machine's memory rather than a GPU's."""
        return self.compute_capability == "host"

    @property
    def has_fp8_units(self) -> bool:
        """Whether fp8 weights are also multiplied in fp8, rather than widened first."""
        try:
            return float(self.compute_capability) >= _FP8_CUDA_CAPABILITY
        except ValueError:
            return self.compute_capability in _FP8_AMD_TARGETS

    def prefill_flops(self, weight_bits: float) -> float | None:
        """Return the dense FLOP/s at which weights of that width are multiplied.

        Weights of 4 bits are widened to 16 by the kernels in use, so only 8-bit weights on a
        card with fp8 units gain over 16-bit ones.

        Args:
            weight_bits: Bits of one value, scales apart.
        """
        is_eight_bit = 6 < weight_bits <= 8
        return self.fp8_flops if is_eight_bit and self.has_fp8_units else self.half_flops


@cache
def gpu_table() -> tuple[GpuSpec, ...]:
    """Return every GPU of the packaged table, in its order."""
    path = data_file("gpus.csv")
    with path.open(encoding="utf-8") as lines:
        return tuple(_read_row(row) for row in csv.DictReader(lines))


def override_gpu(
    gpu: GpuSpec,
    memory_bytes: int | None = None,
    bandwidth_gbps: float | None = None,
    tflops: float | None = None,
) -> GpuSpec:
    """Return `gpu` with what the user knows better.

    Args:
        gpu: The row to start from.
        memory_bytes: Total memory.
        bandwidth_gbps: Memory bandwidth in GB/s (10^9 bytes).
        tflops: Dense 16-bit TFLOP/s; rates of narrower types scale with it.

    Raises:
        OptionError: A figure is not positive; the message names the flag.
    """
    _check_positive("--gpu-mem", memory_bytes)
    _check_positive("--bandwidth", bandwidth_gbps)
    _check_positive("--tflops", tflops)
    changed = gpu
    if memory_bytes is not None:
        changed = replace(changed, memory_bytes=memory_bytes, evidence="stated")
    if bandwidth_gbps is not None:
        changed = replace(changed, bandwidth=bandwidth_gbps * GIGA)
    return changed if tflops is None else _with_half_flops(changed, tflops * TERA)


def custom_gpu(
    memory_bytes: int, bandwidth_gbps: float | None = None, tflops: float | None = None
) -> GpuSpec:
    """Return a device nobody listed, from what the user states of it.

    Raises:
        OptionError: A figure is not positive; the message names the flag.
    """
    blank = GpuSpec(
        name="custom GPU",
        driver_name="",
        compute_capability="",
        memory_bytes=memory_bytes,
        bandwidth=None,
        half_flops=None,
        fp8_flops=None,
        int8_ops=None,
        fp4_flops=None,
        link=0,
        is_unified=False,
        evidence="stated",
        source="stated",
    )
    return override_gpu(blank, memory_bytes, bandwidth_gbps, tflops)


def _with_half_flops(gpu: GpuSpec, half_flops: float) -> GpuSpec:
    if not gpu.half_flops:
        return replace(gpu, half_flops=half_flops)
    ratio = half_flops / gpu.half_flops
    return replace(
        gpu,
        half_flops=half_flops,
        fp8_flops=gpu.fp8_flops and gpu.fp8_flops * ratio,
        int8_ops=gpu.int8_ops and gpu.int8_ops * ratio,
        fp4_flops=gpu.fp4_flops and gpu.fp4_flops * ratio,
    )


def _check_positive(flag: str, value: float | None) -> None:
    if value is not None and not 0 < value < float("inf"):
        message = f"{flag} must be a positive number, not {value}"
        raise OptionError(message)


def _read_row(row: dict[str, str]) -> GpuSpec:
    return GpuSpec(
        name=row["name"],
        driver_name=row["driver_name"],
        compute_capability=row["compute_cap"],
        memory_bytes=round(float(row["cuda_total_gib"]) * GIB),
        bandwidth=_scaled(row["mem_bw_GBps"], GIGA),
        half_flops=_scaled(row["bf16_dense_tflops"], TERA) or _FP16_ONLY_FLOPS.get(row["name"]),
        fp8_flops=_scaled(row["fp8_dense_tflops"], TERA),
        int8_ops=_scaled(row["int8_dense_tops"], TERA),
        fp4_flops=_scaled(row["fp4_dense_tflops"], TERA),
        link=_scaled(row["nvlink_or_if_total_GBps_per_gpu"], GIGA) or 0.0,
        is_unified=row["unified_memory"] == "yes",
        evidence=row["memory_evidence"],
        source=row["source"],
        nominal_gb=int(row["nominal_gb"]),
    )


def _scaled(text: str, unit: int) -> float | None:
    return float(text) * unit if text else None
