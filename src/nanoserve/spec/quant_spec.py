"""Storage formats of weights: true bits of a weight, scales and zero points included.

Owns what one weight of a format costs and which groups of parameters a format leaves in
16 bits. Knows no model: parameters by group are handed in. Reading a format out of a
config.json is `quant_config`, the KV cache's formats are `kv_format`.

Groups are `embedding`, `head`, `attention`, `mlp`, `experts`, `shared_experts`, `router`,
`norms`, `vision` and `other`; formats of linear layers store `LINEAR_GROUPS`, formats of a file (GGUF, EXL) all.
"""

import csv
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache

from nanoserve.errors import UnsupportedModelError
from nanoserve.spec.data_file import data_file
from nanoserve.spec.ggml_types import GGML_TYPES

FULL_BITS = 16  # what is left alone stays in bf16 or fp16
LINEAR_GROUPS = frozenset({"attention", "mlp", "experts", "shared_experts"})
ALL_GROUPS = LINEAR_GROUPS | {"embedding", "head", "router", "norms", "vision", "other"}
EXPERT_GROUPS = frozenset({"experts"})
TYPICAL_FEATURES = 4096  # sides of a linear layer where nobody said; matters in the third digit


@dataclass(frozen=True, slots=True)
class WeightFormat:
    """How a linear layer's weights are stored.

    A layer of `in` x `out` weights costs `value_bits` for each weight, `group_bits` for each
    run of `group_size` weights (scale, zero point), `row_bits` for each of the `out` outputs
    and `column_bits` for each of the `in` inputs.

    Attributes:
        name: Unique, e.g. `awq-int4-g128`.
        value_bits: Bits of a stored value.
        source: Where the layout is defined.
        group_size: Weights that share a scale; 0 where none do.
        group_bits: Bits that such a run costs beside its values.
        row_bits: Bits for each output, e.g. a scale per channel.
        column_bits: Bits for each input, e.g. the order of act-order GPTQ.
        quantised: Groups that are stored so; the others keep `FULL_BITS`.
        head_bits: Bits of a weight of the output head where it differs; None: as `quantised`.
        is_estimate: Whether `value_bits` is a whole file's average, measured on one model.
    """

    name: str
    value_bits: float
    source: str
    group_size: int = 0
    group_bits: float = 0.0
    row_bits: float = 0.0
    column_bits: float = 0.0
    quantised: frozenset[str] = LINEAR_GROUPS
    head_bits: float | None = None
    is_estimate: bool = False

    def bits_per_weight(
        self, in_features: int = TYPICAL_FEATURES, out_features: int = TYPICAL_FEATURES
    ) -> float:
        """Return the bits that one weight of a layer of that size costs.

        Example: AWQ in runs of 128 costs 4 + (16 + 4) / 128 = 4.15625.
        """
        per_group = self.group_bits / self.group_size if self.group_size else 0.0
        per_row = self.row_bits / in_features
        per_column = self.column_bits / out_features
        return self.value_bits + per_group + per_row + per_column

    def group_bits_per_weight(self, group: str) -> float:
        """Return the bits of one weight of a group of parameters."""
        if group == "head" and self.head_bits is not None:
            return self.head_bits
        return self.bits_per_weight() if group in self.quantised else FULL_BITS

    def leave(self, groups: frozenset[str]) -> "WeightFormat":
        """Return the format with those groups left in 16 bits as well."""
        return replace(self, quantised=self.quantised - groups)

    def weight_bytes(self, parameters: Mapping[str, int]) -> int:
        """Return the bytes of a model, whole bytes rounded up.

        Args:
            parameters: Parameters by group, all of the model's.
        """
        bits = sum(self.group_bits_per_weight(group) * n for group, n in parameters.items())
        return -int(-bits // 8)

    def effective_bits(self, parameters: Mapping[str, int]) -> float:
        """Return bits per parameter over a whole model; 16 for a model without parameters."""
        num_parameters = sum(parameters.values())
        if not num_parameters:
            return FULL_BITS
        bits = sum(self.group_bits_per_weight(group) * n for group, n in parameters.items())
        return bits / num_parameters


FULL_PRECISION = WeightFormat("bf16", FULL_BITS, "IEEE half and bfloat16", quantised=ALL_GROUPS)
FULL_FLOAT = WeightFormat("fp32", 32, "IEEE single", quantised=ALL_GROUPS)

_COMPRESSED = "vLLM compressed_tensors schemes"
_BITSANDBYTES = "bitsandbytes functional.py"
_FIXED = (
    FULL_PRECISION,
    FULL_FLOAT,
    WeightFormat("fp8", 8, "vLLM fp8.py: one fp32 scale for a tensor"),
    WeightFormat("fp8-channel", 8, f"{_COMPRESSED}: fp32 scale for each output", row_bits=32),
    WeightFormat(
        "fp8-block-128",
        8,
        "DeepSeek-V3 weight_scale_inv, fp32",
        group_size=128 * 128,
        group_bits=32,
    ),
    WeightFormat("int8-channel", 8, f"{_COMPRESSED}: 16-bit scale for each output", row_bits=16),
    WeightFormat("bnb-int8", 8, f"{_BITSANDBYTES}: fp32 absmax for each row", row_bits=32),
    WeightFormat("bnb-4bit", 4, f"{_BITSANDBYTES}: fp32 absmax", group_size=64, group_bits=32),
    WeightFormat(
        "bnb-4bit-double",
        4,
        "QLoRA (Dettmers et al. 2023), section 3: 8-bit absmax, fp32 for 256 of them",
        group_size=64,
        group_bits=8 + 32 / 256,
    ),
    WeightFormat("mxfp4", 4, "OCP MX: e8m0 scale", group_size=32, group_bits=8),
    WeightFormat("mxfp8", 8, "OCP MX: e8m0 scale", group_size=32, group_bits=8),
    WeightFormat(
        "nvfp4", 4, "NVIDIA: e4m3 scale, fp32 for the tensor", group_size=16, group_bits=8
    ),
)


def gptq_format(bits: int, group_size: int, has_order: bool = True) -> WeightFormat:
    """Return a GPTQ format: fp16 scales, packed zero points, an int32 input order.

    Args:
        bits: Of one value.
        group_size: Weights that share a scale; -1 for a scale per output.
        has_order: Whether `g_idx` is stored and kept, as files with groups do.

    Source: vLLM gptq layers: `scales` fp16, `qzeros` packed, `g_idx` int32 for each input.
    """
    scale_bits = 16 + bits
    if group_size <= 0:
        return WeightFormat(f"gptq-int{bits}", bits, "vLLM gptq", row_bits=scale_bits)
    return WeightFormat(
        f"gptq-int{bits}-g{group_size}",
        bits,
        "vLLM gptq",
        group_size=group_size,
        group_bits=scale_bits,
        column_bits=32 if has_order else 0,
    )


def grouped_format(
    family: str, bits: int, group_size: int, scale_bits: int = 16, zero_bits: int | None = None
) -> WeightFormat:
    """Return an integer format with a scale, and perhaps a zero point, for each group.

    Args:
        family: First part of the name, e.g. `awq`.
        bits: Of one value.
        group_size: Weights that share them; -1 for a scale per output.
        scale_bits: Of a scale.
        zero_bits: Of a zero point; None where there is none.

    Source: vLLM awq layers (`scales` fp16, `qzeros` packed) and `compressed_tensors_wNa16`.
    """
    extra_bits = scale_bits + (zero_bits or 0)
    if group_size <= 0:
        return WeightFormat(f"{family}-int{bits}", bits, f"vLLM {family}", row_bits=extra_bits)
    return WeightFormat(
        f"{family}-int{bits}-g{group_size}",
        bits,
        f"vLLM {family}",
        group_size=group_size,
        group_bits=extra_bits,
    )


def file_bits_format(name: str, bits: float, head_bits: float | None = None) -> WeightFormat:
    """Return a format whose bits are a whole file's, as EXL2, EXL3 and GGUF state them."""
    return WeightFormat(name, bits, "stated by the file", quantised=ALL_GROUPS, head_bits=head_bits)


@cache
def weight_formats() -> dict[str, WeightFormat]:
    """Return the formats that can be asked for by name, aliases included."""
    named = {one.name: one for one in _FIXED}
    for one in (
        grouped_format("awq", 4, 128, zero_bits=4),
        gptq_format(4, 128),
        gptq_format(8, 128, has_order=False),
        grouped_format("packed", 4, 128),
        grouped_format("hqq", 4, 64, zero_bits=16),
    ):
        named[one.name] = one
    aliases = {
        "fp16": "bf16",
        "float16": "bf16",
        "bfloat16": "bf16",
        "16": "bf16",
        "float32": "fp32",
        "int8": "int8-channel",
        "w8a8": "int8-channel",
        "fp8-block": "fp8-block-128",
        "awq": "awq-int4-g128",
        "gptq": "gptq-int4-g128",
        "gptq-int8": "gptq-int8-g128",
        "int4": "packed-int4-g128",
        "w4a16": "packed-int4-g128",
        "nf4": "bnb-4bit",
        "bnb": "bnb-4bit",
        "hqq": "hqq-int4-g64",
    }
    return named | {alias: named[name] for alias, name in aliases.items()}


def find_weight_format(name: str) -> WeightFormat:
    """Return a format by its name: `awq`, `fp8`, `int4`, `Q4_K_M`, ...

    Raises:
        UnsupportedModelError: There is none of that name; the known ones are listed.
    """
    key = name.strip().casefold().replace("_", "-")
    known = weight_formats()
    if key in known:
        return known[key]
    files_by_name = gguf_file_formats()
    file_key = name.strip().upper()
    if file_key in files_by_name:
        return files_by_name[file_key]
    what = f"No weight format is called {name[:80]!r}."
    raise UnsupportedModelError(what, (*sorted(known), *sorted(files_by_name)))


@cache
def gguf_file_formats() -> dict[str, WeightFormat]:
    """Return GGUF file types by name (`Q4_K_M`): average bits of a whole file.

    The k- and i-quant files mix block types; their averages were measured on Llama 3.1 8B
    and differ on other models by the weight of the embedding. Files of one block type
    (`Q4_0`, ...) are that type's bits, the head in Q6_K.

    Source: llama.cpp, tools/quantize/README.md; `llama_tensor_get_type` for the head.
    """
    prefix, suffix = "GGUF file ", " (Llama-3.1-8B measured)"
    blocks = {one.name: 8 * one.block_bytes / one.block_values for one in GGML_TYPES.values()}
    formats = {
        name: file_bits_format(name, blocks[name], blocks["Q6_K"])
        for name in ("Q4_0", "Q4_1", "Q5_0", "Q5_1")
    } | {name: file_bits_format(name, blocks[name]) for name in ("BF16", "F32", "TQ1_0", "TQ2_0")}
    for row in quant_rows():
        if row["format"].startswith(prefix):
            name = row["format"].removeprefix(prefix).removesuffix(suffix)
            one = file_bits_format(name, float(row["bits_per_weight"]))
            formats[name] = replace(one, source=row["source"], is_estimate=True)
    return formats


@cache
def quant_rows() -> tuple[dict[str, str], ...]:
    """Return the packaged table of formats, row by row as text."""
    path = data_file("quant_bits.csv")
    with path.open(encoding="utf-8") as lines:
        return tuple(csv.DictReader(lines))
