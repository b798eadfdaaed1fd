"""One small reader for each way config.json states how weights are stored.

`quant_config` decides which reads; a reader sees its keys through `ConfigFields`, so a
value that is refused is refused by its key.
"""

from collections.abc import Callable, Mapping

from nanoserve.spec.config_fields import ConfigFields
from nanoserve.spec.quant_spec import (
    EXPERT_GROUPS,
    LINEAR_GROUPS,
    WeightFormat,
    file_bits_format,
    find_weight_format,
    gptq_format,
    grouped_format,
)

_MAX_BITS = 16
_MAX_GROUP = 1 << 20
_FP8_SCALE_BITS = 32


def _gptq(config: ConfigFields) -> WeightFormat:
    bits = config.size("bits", _MAX_BITS, default=4)
    return gptq_format(bits, _group_size(config), has_order=True)


def _awq(config: ConfigFields) -> WeightFormat:
    bits = config.size("bits" if config.has("bits") else "w_bit", _MAX_BITS, default=4)
    key = "group_size" if config.has("group_size") else "q_group_size"
    return grouped_format("awq", bits, _group_size(config, key), zero_bits=bits)


def _auto_round(config: ConfigFields) -> WeightFormat:
    if "awq" in config.text("packing_format", ""):
        return _awq(config)
    return gptq_format(
        config.size("bits", _MAX_BITS, default=4), _group_size(config), has_order=False
    )


def _fp8(config: ConfigFields) -> WeightFormat:
    block = config.raw("weight_block_size")
    if block is None:
        return find_weight_format("fp8")
    rows, columns = _block_sides(config, "weight_block_size")
    return WeightFormat(
        f"fp8-block-{rows}x{columns}",
        8,
        "vLLM fp8.py BlockQuantScaleParameter",
        group_size=rows * columns,
        group_bits=_FP8_SCALE_BITS,
    )


def _fbgemm(config: ConfigFields) -> WeightFormat:
    del config
    return find_weight_format("fp8-channel")


def _bitsandbytes(config: ConfigFields) -> WeightFormat:
    if config.flag("load_in_8bit"):
        return find_weight_format("bnb-int8")
    if not config.flag("load_in_4bit", default=True):
        config.fail_unsupported("load_in_4bit", "neither 4 nor 8 bits are asked for.")
    is_double = config.flag("bnb_4bit_use_double_quant")
    return find_weight_format("bnb-4bit-double" if is_double else "bnb-4bit")


def _mxfp4(config: ConfigFields) -> WeightFormat:
    del config  # gpt-oss: experts alone, whatever it lists
    return find_weight_format("mxfp4").leave(LINEAR_GROUPS - EXPERT_GROUPS)


def _hqq(config: ConfigFields) -> WeightFormat:
    params = config.section("weight_quant_params") or config
    bits = params.size("nbits", _MAX_BITS, default=4)
    return grouped_format("hqq", bits, _group_size(params), zero_bits=16)


def _exl(config: ConfigFields) -> WeightFormat:
    bits = config.positive("bits")
    head_bits = config.positive("head_bits", default=bits)
    return file_bits_format(f"exl-{bits:g}bpw", bits, head_bits)


_MODELOPT_FORMATS = {
    "FP8": "fp8",
    "FP8_PB_WO": "fp8-block-128",
    "FP8_PER_CHANNEL_PER_TOKEN": "fp8-channel",
    "NVFP4": "nvfp4",
    "NVFP4_AWQ": "nvfp4",
    "W4A16_AWQ": "awq",
    "W4A8_AWQ": "awq",
    "W8A8_SQ_PER_CHANNEL": "int8-channel",
    "W8A16": "int8-channel",
    "MXFP8": "mxfp8",
}


def _modelopt(config: ConfigFields) -> WeightFormat:
    holder = config.section("quantization") or config
    algorithm = holder.text("quant_algo", "").upper()
    if algorithm not in _MODELOPT_FORMATS:
        holder.fail_unsupported(
            "quant_algo",
            f"it is not one of {', '.join(_MODELOPT_FORMATS)}; where layers differ, the "
            "checkpoint's own tensors say what they take.",
        )
    return find_weight_format(_MODELOPT_FORMATS[algorithm])


def _nvfp4(config: ConfigFields) -> WeightFormat:
    del config
    return find_weight_format("nvfp4")


def _compressed(config: ConfigFields) -> WeightFormat:
    groups = config.section("config_groups")
    if groups is None:
        name = config.text("format", "").casefold()
        if "int8" in name:
            return find_weight_format("int8-channel")
        config.fail_unsupported("format", "without config_groups its layout is not known.")
    formats = {
        _compressed_group(group, config.text("format", ""))
        for group in (groups.section(key) for key in _keys(config, "config_groups"))
        if group is not None
    }
    if len(formats) != 1:
        config.fail_unsupported(
            "config_groups",
            f"{len(formats)} layouts in one model; the checkpoint's own tensors say what they take.",
        )
    return formats.pop()


def _compressed_group(group: ConfigFields, layout: str) -> WeightFormat:
    weights = group.section("weights")
    if weights is None:
        group.fail_unsupported("weights", "a group without weights cannot be sized.")
    layout = group.text("format", layout)
    bits = weights.size("num_bits", _MAX_BITS)
    kind = weights.text("type", "int")
    if kind == "float":
        return _compressed_float(weights, layout, bits)
    if kind != "int":
        weights.fail_unsupported("type", "it is neither int nor float.")
    is_symmetric = weights.flag("symmetric", default=True)
    size = _group_size(weights, default=-1)
    if bits == 8 and size == -1:
        return find_weight_format("int8-channel")
    return grouped_format("packed", bits, size, zero_bits=None if is_symmetric else bits)


def _compressed_float(weights: ConfigFields, layout: str, bits: int) -> WeightFormat:
    size = _group_size(weights, default=-1)
    if bits == 4:
        is_mx = "mxfp4" in layout or size == 32
        return find_weight_format("mxfp4" if is_mx else "nvfp4")
    if bits != 8:
        weights.fail_unsupported("num_bits", "floats of 4 and 8 bits are known.")
    strategy = weights.text("strategy", "tensor")
    if strategy == "block":
        rows, columns = _block_sides(weights, "block_structure")
        return WeightFormat(
            f"fp8-block-{rows}x{columns}",
            8,
            "vLLM compressed_tensors_w8a8_fp8.py",
            group_size=rows * columns,
            group_bits=_FP8_SCALE_BITS,
        )
    if strategy == "group" and size == 32:
        return find_weight_format("mxfp8")
    names = {"tensor": "fp8", "channel": "fp8-channel"}
    if strategy not in names:
        weights.fail_unsupported("strategy", f"known: {', '.join(names)}, block.")
    return find_weight_format(names[strategy])


_QUARK_FORMATS = {"fp8_e4m3": "fp8", "fp8_e5m2": "fp8", "fp4": "mxfp4", "int8": "int8-channel"}


def _quark(config: ConfigFields) -> WeightFormat:
    whole = config.section("global_quant_config")
    weight = whole and whole.section("weight")
    if weight is None:
        config.fail_unsupported("global_quant_config", "it has no weight layout.")
    dtype = weight.text("dtype")
    if dtype in ("int4", "uint4"):
        return grouped_format("quark", 4, _group_size(weight), zero_bits=4)
    if dtype not in _QUARK_FORMATS:
        weight.fail_unsupported("dtype", f"known: int4, {', '.join(_QUARK_FORMATS)}.")
    if dtype.startswith("fp8") and weight.text("qscheme", "per_tensor") == "per_channel":
        return find_weight_format("fp8-channel")
    return find_weight_format(_QUARK_FORMATS[dtype])


_Reader = Callable[[ConfigFields], WeightFormat]
READERS: dict[str, _Reader] = {
    "gptq": _gptq,
    "gptq-marlin": _gptq,
    "awq": _awq,
    "awq-marlin": _awq,
    "auto-round": _auto_round,
    "intel/auto-round": _auto_round,
    "fp8": _fp8,
    "fbgemm-fp8": _fbgemm,
    "compressed-tensors": _compressed,
    "bitsandbytes": _bitsandbytes,
    "mxfp4": _mxfp4,
    "gpt-oss-mxfp4": _mxfp4,
    "hqq": _hqq,
    "exl2": _exl,
    "exl3": _exl,
    "modelopt": _modelopt,
    "modelopt-fp4": _modelopt,
    "nvfp4": _nvfp4,
    "quark": _quark,
}


def _group_size(config: ConfigFields, key: str = "group_size", default: int = 128) -> int:
    return config.size(key, _MAX_GROUP, default=default, low=-1)


def _block_sides(config: ConfigFields, key: str) -> tuple[int, int]:
    sides = config.raw(key)
    is_pair = isinstance(sides, list) and len(sides) == 2
    if not is_pair or not all(type(one) is int and 0 < one <= _MAX_GROUP for one in sides):
        config.fail_unsupported(key, "expected two positive sizes.")
    return sides[0], sides[1]


def _keys(config: ConfigFields, key: str) -> tuple[str, ...]:
    value = config.raw(key)
    return tuple(value) if isinstance(value, Mapping) else ()
