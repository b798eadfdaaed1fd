"""Storage formats of the KV cache: bytes of one head's key or value, scales included.

Knows no model and no block: heads, layers and tokens are multiplied in `plan`.
"""

from collections.abc import Callable
from dataclasses import dataclass

from nanoserve.errors import OptionError
from nanoserve.spec.ggml_types import GGML_TYPES
from nanoserve.units import ceil_div

_FP8_LATENT_TILE = 128  # values of a latent that share an fp32 scale in fp8_ds_mla
_NVFP4_BLOCK = 16


@dataclass(frozen=True, slots=True)
class KVFormat:
    """How keys and values are stored.

    Attributes:
        name: As engines spell it, e.g. `fp8_e4m3`.
        head_bytes: From a head's size in values to the bytes of its key (or its value) of one
            token.
        latent_bytes: From the ranks of a compressed latent and of its rotary part to the bytes
            of one token in one layer.
        source: Where the layout is defined.
    """

    name: str
    head_bytes: Callable[[int], int]
    latent_bytes: Callable[[int, int], int]
    source: str

    def bits_per_value(self, head_dim: int) -> float:
        """Return the bits of one value of a head of that size."""
        return 8 * self.head_bytes(head_dim) / head_dim


def find_kv_format(name: str, model_bytes: int = 2) -> KVFormat:
    """Return a format by an engine's spelling; `auto` is the model's own type.

    Args:
        name: E.g. `auto`, `bfloat16`, `fp8`, `fp8_e5m2`, `q8_0`.
        model_bytes: Bytes of a value in the model's dtype, for `auto`.

    Raises:
        OptionError: No engine here stores keys and values so; the known ones are listed.
    """
    key = name.strip().casefold().replace("-", "_")
    if key in ("auto", ""):
        return _plain(f"auto ({8 * model_bytes} bits)", model_bytes)
    found = KV_FORMATS.get(_ALIASES.get(key, key))
    if found is not None:
        return found
    known = ", ".join(sorted(KV_FORMATS))
    message = f"--kv-cache-dtype {name[:80]!r} is not known. Known: auto, {known}."
    raise OptionError(message)


def pool_format(name: str, model_bytes: int) -> KVFormat:
    """Return how our own pool stores keys and values under a value of `--kv-cache-dtype`.

    int8 has a float32 scale for each head of each token, so that no calibration is needed;
    fp8 (e4m3) has the range to do without.

    Args:
        name: `auto`, `int8` or `fp8`.
        model_bytes: Bytes of a value in the compute dtype, for `auto`.

    Example: a head of 64 takes 68 bytes as int8, 64 as fp8, 128 in bfloat16.
    """
    return find_kv_format("int8_per_token_head" if name == "int8" else name, model_bytes)


def _plain(name: str, value_bytes: int, source: str = "") -> KVFormat:
    return KVFormat(
        name,
        lambda head_dim: head_dim * value_bytes,
        lambda rank, rope_dim: (rank + rope_dim) * value_bytes,
        source or "one value after another",
    )


def _scaled_heads(name: str, value_bytes: int) -> KVFormat:
    """Return a format with an fp32 scale for each head of each token."""
    return KVFormat(
        name,
        lambda head_dim: head_dim * value_bytes + 4,
        lambda rank, rope_dim: (rank + rope_dim) * value_bytes + 4,
        "vLLM v1/kv_cache_interface.py",
    )


def _blocks(name: str) -> KVFormat:
    """Return a llama.cpp format: blocks of values with their scale."""
    kind = next(one for one in GGML_TYPES.values() if one.name.casefold() == name)

    def packed(num_values: int) -> int:
        return ceil_div(num_values * kind.block_bytes, kind.block_values)

    return KVFormat(
        name,
        packed,
        lambda rank, rope_dim: packed(rank + rope_dim),
        "ggml-common.h block structs",
    )


def _nvfp4_head(num_values: int) -> int:
    return ceil_div(num_values, 2) + ceil_div(num_values, _NVFP4_BLOCK)


def _fp8_latent(rank: int, rope_dim: int) -> int:
    """Return the bytes of fp8_ds_mla: fp8 latent, fp32 scale a tile, rotary part in 16 bits.

    Example: DeepSeek-V3 (512, 64) takes 512 + 4 * 4 + 64 * 2 = 656.
    """
    return rank + 4 * ceil_div(rank, _FP8_LATENT_TILE) + 2 * rope_dim


KV_FORMATS = {
    one.name: one
    for one in (
        _plain("fp32", 4),
        _plain("bf16", 2),
        _plain("fp8", 1, "two fp32 scales a layer: nothing"),
        _plain("int8", 1, "two fp32 scales a layer: nothing"),
        _scaled_heads("fp8_per_token_head", 1),
        _scaled_heads("int8_per_token_head", 1),
        KVFormat(
            "nvfp4",
            _nvfp4_head,
            lambda rank, rope_dim: _nvfp4_head(rank + rope_dim),
            "vLLM torch_utils.nvfp4_kv_cache_full_dim",
        ),
        KVFormat(
            "fp8_ds_mla",
            lambda head_dim: head_dim,
            _fp8_latent,
            "vLLM model_executor/layers/attention/mla_attention.py",
        ),
        KVFormat(
            "nvfp4_ds_mla",
            _nvfp4_head,
            lambda rank, rope_dim: _nvfp4_head(rank) + rope_dim,
            "vLLM model_executor/layers/attention/mla_attention.py: 352 bytes of 576 values",
        ),
        *(_blocks(name) for name in ("q8_0", "q5_0", "q5_1", "q4_0", "q4_1", "iq4_nl")),
    )
}
_ALIASES = {
    "bfloat16": "bf16",
    "float16": "bf16",
    "fp16": "bf16",
    "f16": "bf16",
    "half": "bf16",
    "float32": "fp32",
    "float": "fp32",
    "f32": "fp32",
    "fp8_e4m3": "fp8",
    "fp8_e5m2": "fp8",
    "fp8_inc": "fp8",
}
