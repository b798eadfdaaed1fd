"""Reads that every family shares: old key names, heads, which layer attends how.

Owns the order in which keys are looked for. Knows no weights: see the family modules.
"""

from collections.abc import Collection, Mapping
from typing import Any

from nanoserve.spec.config_fields import (
    MAX_CONTEXT_TOKENS,
    MAX_LAYERS,
    MAX_WIDTH,
    ConfigFields,
)

MAX_EXPERTS = 1 << 16
_SPELLINGS = {  # our name to those it is looked for under; the first that is present counts
    "hidden_size": ("hidden_size", "n_embd", "d_model"),
    "num_hidden_layers": (
        "decoder_layers",
        "num_decoder_layers",
        "num_hidden_layers",
        "n_layer",
        "n_layers",
        "num_layers",
    ),
    "num_attention_heads": (
        "decoder_attention_heads",
        "num_attention_heads",
        "n_head",
        "n_heads",
        "num_heads",
    ),
    "num_key_value_heads": (
        "num_key_value_heads",
        "n_head_kv",
        "num_kv_heads",
        "multi_query_group_num",
        "num_attention_groups",
    ),
    "head_dim": ("head_dim", "hidden_size_per_head", "kv_channels", "d_kv"),
    "intermediate_size": (
        "decoder_ffn_dim",
        "intermediate_size",
        "n_inner",
        "ffn_dim",
        "d_ff",
        "ffn_hidden_size",
    ),
    "max_position_embeddings": (
        "max_position_embeddings",
        "n_positions",
        "max_seq_len",
        "seq_length",
        "model_max_length",
        "max_target_positions",
    ),
    "num_experts": ("num_experts", "n_routed_experts", "num_local_experts", "moe_num_experts"),
    "num_experts_per_tok": (
        "num_experts_per_tok",
        "moe_topk",
        "moe_top_k",
        "moe_k",
        "num_experts_per_token",
        "top_k_experts",
    ),
    "n_shared_experts": ("n_shared_experts", "num_shared_experts", "moe_num_shared_experts"),
    "moe_intermediate_size": ("moe_intermediate_size", "expert_ffn_hidden_size"),
    "vocab_size": ("padded_vocab_size", "vocab_size"),
    "dtype": ("dtype", "torch_dtype"),
}
_KINDS = {
    "full_attention": "full",
    "attention": "full",
    "hybrid": "full",
    "indexed_attention": "full",
    "sliding_attention": "sliding",
    "chunked_attention": "chunked",
    "linear_attention": "linear",
    "mamba": "linear",
}
_STATE_DTYPES = ("float32", "float16", "bfloat16")
Pattern = int | str


def shape_fields(
    config: Mapping[str, Any], path: str, defaults: Mapping[str, Any] | None = None
) -> ConfigFields:
    """Return a config under one set of names, with a family's defaults for absent keys.

    A key that is present and null hides the default: null says "none" in config.json.
    """
    values = {**(defaults or {}), **config}
    spellings = {}
    for name, known in _SPELLINGS.items():
        present = next((key for key in known if config.get(key) is not None), name)
        if present != name:
            values[name] = config[present]
            spellings[name] = present
    return ConfigFields(values, path, spellings=spellings)


def num_layers(fields: ConfigFields) -> int:
    """Return the decoder's layers."""
    return fields.size("num_hidden_layers", MAX_LAYERS)


def hidden_size(fields: ConfigFields) -> int:
    """Return the width of the residual stream."""
    return fields.size("hidden_size", MAX_WIDTH)


def width(fields: ConfigFields, key: str, default: int | None = None) -> int:
    """Return a width of at least 1; without a default the key is required."""
    return fields.size(key, MAX_WIDTH, default)


def optional_width(fields: ConfigFields, key: str) -> int:
    """Return a width, 0 where the key is absent, null or 0."""
    return fields.size(key, MAX_WIDTH, 0, low=0)


def head_counts(fields: ConfigFields) -> tuple[int, int]:
    """Return query heads and KV heads; one KV head per query head where none is stated."""
    num_heads = width(fields, "num_attention_heads")
    num_kv_heads = width(fields, "num_key_value_heads", num_heads)
    if num_heads % num_kv_heads:
        fields.fail_corrupt(
            f"{fields.spelled('num_attention_heads')} {num_heads} is not a multiple of "
            f"{fields.spelled('num_key_value_heads')} {num_kv_heads}."
        )
    return num_heads, num_kv_heads


def head_dim(fields: ConfigFields, num_heads: int) -> int:
    """Return the width of a head: stated, or derived where it is absent."""
    if fields.has("head_dim"):
        return width(fields, "head_dim")
    derived, rest = divmod(hidden_size(fields), num_heads)
    if rest:
        fields.fail_corrupt(
            f"{fields.spelled('hidden_size')} is not a multiple of "
            f"{fields.spelled('num_attention_heads')} {num_heads}, and there is no head_dim."
        )
    return derived


def stated_flag(fields: ConfigFields, stated: bool | str) -> bool:
    """Return what a family always has, or what the key of that name says."""
    return fields.flag(stated) if isinstance(stated, str) else stated


def names_of_layers(fields: ConfigFields, key: str, known: Collection[str]) -> list[str] | None:
    """Return one name per layer; None where the key is absent.

    Names of layers that only guess ahead may follow those of the decoder.
    """
    if not fields.has(key):
        return None
    names, count = fields.raw(key), num_layers(fields)
    num_ahead = fields.size("num_nextn_predict_layers", MAX_LAYERS, 0, low=0)
    if not isinstance(names, list | str) or len(names) not in (count, count + num_ahead):
        fields.fail_corrupt(f"{fields.spelled(key)} is not a list of {count} names.")
    if any(not isinstance(name, str) or name not in known for name in names):
        fields.fail_unsupported(key, f"names known here: {', '.join(known)}.")
    return list(names[:count])


def layer_numbers(fields: ConfigFields, key: str) -> frozenset[int]:
    """Return a set of layer numbers; none where the key is absent."""
    numbers = fields.raw(key) or []
    is_list = isinstance(numbers, list)
    if not is_list or any(type(n) is not int or not 0 <= n < MAX_LAYERS for n in numbers):
        fields.fail_corrupt(f"{fields.spelled(key)} is not a list of layer numbers.")
    return frozenset(numbers)


def layer_kinds(fields: ConfigFields, pattern: Pattern) -> list[str]:
    """Return how each layer attends: `full`, `sliding`, `chunked` or `linear`.

    `layer_types` says it in newer configs; else the family's pattern does: an interval (every
    n-th layer is full), `all`, `qwen` (from `max_window_layers` on) or `none`.
    """
    names = names_of_layers(fields, "layer_types", _KINDS)
    if names is not None:
        return [_KINDS[name] for name in names]
    count = num_layers(fields)
    if pattern == "none" or not fields.has("sliding_window"):
        return ["full"] * count
    if pattern == "all":
        return ["sliding"] * count
    if pattern == "qwen":
        if not fields.flag("use_sliding_window"):
            return ["full"] * count
        num_full = min(fields.size("max_window_layers", MAX_LAYERS, 28, low=0), count)
        return ["full"] * num_full + ["sliding"] * (count - num_full)
    return _by_interval(fields, pattern, count)


def _by_interval(fields: ConfigFields, pattern: Pattern, count: int) -> list[str]:
    """Return the kinds where every n-th layer is full, or as the letters L and G repeat."""
    stated = fields.raw("sliding_window_pattern")
    if isinstance(stated, str) and stated and set(stated) <= {"L", "G"}:
        kinds = ["full" if stated[i % len(stated)] == "G" else "sliding" for i in range(count)]
        return [*kinds[:-1], "full"]
    interval = fields.size("sliding_window_pattern", MAX_LAYERS, int(pattern))
    return ["sliding" if (i + 1) % interval else "full" for i in range(count)]


def span_of(fields: ConfigFields, kind: str) -> int | None:
    """Return the tokens a layer of this kind keeps; None for all."""
    if kind == "sliding":
        return fields.size("sliding_window", MAX_CONTEXT_TOKENS)
    if kind == "chunked":
        return fields.size("attention_chunk_size", MAX_CONTEXT_TOKENS)
    return None


def state_dtype(fields: ConfigFields, key: str, default: str | None = None) -> str | None:
    """Return the dtype a state is kept in; None where the model's own is."""
    name = fields.text(key) if fields.has(key) else default
    if name in (None, "auto"):
        return None
    if name not in _STATE_DTYPES:
        fields.fail_unsupported(key, f"dtypes known here: {', '.join(_STATE_DTYPES)}.")
    return name
