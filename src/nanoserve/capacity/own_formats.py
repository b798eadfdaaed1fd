"""What our own server offers of weights, keys and values on a device, in the planner's words.

Owns names and refusals; bytes are the boot's own (`plan.weight_plan`, `plan.kv_plan`).
"""

from dataclasses import replace

from nanoserve.errors import OptionError
from nanoserve.options import KVCacheDType, Quantization
from nanoserve.plan.boot_choices import DTYPE_BYTES
from nanoserve.plan.weight_plan import GROUP_SIZE, SCALE_BYTES
from nanoserve.spec.gpu_spec import GpuSpec
from nanoserve.spec.kv_format import KVFormat, find_kv_format, pool_format
from nanoserve.spec.quant_spec import (
    FULL_FLOAT,
    FULL_PRECISION,
    LINEAR_GROUPS,
    WeightFormat,
    weight_formats,
)

_BF16_SINCE = 8.0  # compute capability
_SCALE_BITS = 8 * SCALE_BYTES
_PACKED = LINEAR_GROUPS | {"head"}
_INT8 = WeightFormat(
    "int8",
    8,
    "plan.weight_plan: a float16 scale for each group",
    group_size=GROUP_SIZE,
    group_bits=_SCALE_BITS,
    quantised=_PACKED,
)
_INT4 = WeightFormat(
    "int4",
    4,
    "plan.weight_plan: a float16 scale and minimum for each group; the head in int8",
    group_size=GROUP_SIZE,
    group_bits=2 * _SCALE_BITS,
    quantised=_PACKED,
    head_bits=_INT8.bits_per_weight(),
)
OWN_WEIGHTS = {"int8": _INT8, "int4": _INT4}  # most bits first
_OWN_KV = ("int8", "fp8")
_AUTO = ("auto", "")
_DTYPE_FORMATS = {"bfloat16": FULL_PRECISION, "float32": FULL_FLOAT}


def own_dtype(gpu: GpuSpec) -> str:
    """Return what a boot computes in: bfloat16 where the device multiplies it, else float32.

    A card nobody listed is taken for a recent one.
    """
    if gpu.is_host:
        return "bfloat16" if "bf16" in gpu.host_has else "float32"
    try:
        is_recent = float(gpu.compute_capability) >= _BF16_SINCE
    except ValueError:
        is_recent = True
    return "bfloat16" if is_recent else "float32"


def has_native_ops(gpu: GpuSpec) -> bool:
    """Whether the CPU's native operators run: they read quantised weights and pools."""
    return "native" in gpu.host_has


def find_own_format(name: str) -> WeightFormat | None:
    """Return the weights that `--quantization` names; None for those of the compute dtype.

    A dtype's name is taken too, and refused on a device that computes in another.

    Raises:
        OptionError: Our server has none of that name.
    """
    key = name.strip().casefold()
    if key == "none":
        return None
    if key in OWN_WEIGHTS:
        return OWN_WEIGHTS[key]
    named = weight_formats().get(key)
    if named in _DTYPE_FORMATS.values():
        return named
    raise _no_such_weights(name)


def own_weight_names(gpu: GpuSpec) -> tuple[str, ...]:
    """Return the formats coarser than the compute dtype, most bits first."""
    return tuple(OWN_WEIGHTS) if has_native_ops(gpu) else ()


def own_kv_names(gpu: GpuSpec) -> tuple[str, ...]:
    """Return the formats of keys and values coarser than the compute dtype."""
    return _OWN_KV if has_native_ops(gpu) else ()


def own_quantization(stored: WeightFormat | None, gpu: GpuSpec) -> Quantization:
    """Return the server's flag for weights that are asked for.

    Raises:
        OptionError: Nothing on the device reads them.
    """
    if stored is None or stored == _DTYPE_FORMATS[own_dtype(gpu)]:
        return "none"
    if stored not in OWN_WEIGHTS.values():
        raise _no_such_weights(stored.name, own_dtype(gpu))
    if not has_native_ops(gpu):
        message = _not_native(f"--quantization {stored.name}", gpu)
        raise OptionError(message)
    return "int8" if stored == _INT8 else "int4"


def own_weight_format(stored: WeightFormat | None, gpu: GpuSpec) -> WeightFormat:
    """Return how weights lie in memory.

    Raises:
        OptionError: As `own_quantization`.
    """
    quantization = own_quantization(stored, gpu)
    return OWN_WEIGHTS.get(quantization, _DTYPE_FORMATS[own_dtype(gpu)])


def own_kv_cache_dtype(asked: str, gpu: GpuSpec) -> KVCacheDType:
    """Return the server's flag for keys and values that are asked for; its dtype's name is auto.

    Raises:
        OptionError: Our server stores none so, or not on this device.
    """
    key = asked.strip().casefold()
    if key in _AUTO:
        return "auto"
    if key not in _OWN_KV:
        if find_kv_format(asked).name == _dtype_kv_name(gpu):
            return "auto"
        message = (
            f"--kv-cache-dtype {asked[:40]!r}: nanoserve stores no keys and values so here. It "
            f"has auto ({own_dtype(gpu)}){', int8, fp8' if has_native_ops(gpu) else ''}."
        )
        raise OptionError(message)
    if not has_native_ops(gpu):
        message = _not_native(f"--kv-cache-dtype {key}", gpu)
        raise OptionError(message)
    return "int8" if key == "int8" else "fp8"


def own_kv_format(asked: str, gpu: GpuSpec) -> KVFormat:
    """Return how keys and values are stored.

    Raises:
        OptionError: As `own_kv_cache_dtype`.
    """
    name = own_kv_cache_dtype(asked, gpu)
    if name == "auto":
        return find_kv_format(_dtype_kv_name(gpu))
    return replace(pool_format(name, DTYPE_BYTES[own_dtype(gpu)]), name=name)


def _dtype_kv_name(gpu: GpuSpec) -> str:
    return "bf16" if own_dtype(gpu) == "bfloat16" else "fp32"


def _no_such_weights(name: str, dtype: str = "the dtype it computes in") -> OptionError:
    known = ", ".join(OWN_WEIGHTS)
    message = (
        f"--quantization {name[:40]!r}: nanoserve keeps no weights so. It has none ({dtype}), "
        f"{known}: a checkpoint in another format is widened or packed as it loads."
    )
    return OptionError(message)


def _not_native(flag: str, gpu: GpuSpec) -> str:
    if gpu.is_host:
        return (
            f"{flag} needs the CPU's native operators, and there is no C++ compiler here that "
            "would build them. Install one (on Debian: apt-get install g++), or leave it out."
        )
    return (
        f"{flag}: nanoserve has it on a CPU alone, and {gpu.name} is a GPU. Plan it with --gpu "
        "cpu, or leave it out."
    )
