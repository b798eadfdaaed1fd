"""The metadata of a GGUF file to `ModelSpec`.

Mistral files say `llama`: the two differ by name alone. Reads at most one small tensor,
`rope_freqs.weight`, in which llama.cpp stores what llama3 RoPE scaling comes to.

Source: llama.cpp's convert_hf_to_gguf.py and src/llama-model.cpp, which write and read
these keys.
"""

import math
from collections import Counter

from nanoserve.errors import UnsupportedModelError
from nanoserve.spec.config_fields import (
    MAX_CONTEXT_TOKENS,
    MAX_LAYERS,
    MAX_VOCAB,
    MAX_WIDTH,
    ConfigFields,
)
from nanoserve.spec.gguf_fields import architecture_fields
from nanoserve.spec.gguf_file import GGUFFile, read_gguf_floats
from nanoserve.spec.model_spec import ModelSpec, RopeScaling
from nanoserve.spec.rope_fields import stretched_context

ARCHITECTURES = ("llama", "qwen2", "qwen3")
ROPE_FREQS = "rope_freqs.weight"
_EMBEDDING = "token_embd.weight"
_DTYPES = {"F16": "float16", "BF16": "bfloat16"}
_CHANGES_ARITHMETIC = (
    "expert_count",
    "attention.clamp_kqv",
    "attention.max_alibi_bias",
    "attention.scale",
    "attn_logit_softcapping",
    "final_logit_softcapping",
    "logit_scale",
    "residual_scale",
    "embedding_scale",
)


def spec_from_gguf(file: GGUFFile) -> ModelSpec:
    """Read the shape of a model from the header of its GGUF file.

    Raises:
        UnsupportedModelError: An unknown architecture, or a key whose value asks for
            arithmetic that is not implemented; the key is named.
        CorruptFileError: A key is missing, of the wrong type, or out of bounds.
    """
    architecture, fields = architecture_fields(
        file, ARCHITECTURES, _CHANGES_ARITHMETIC, "this is not implemented."
    )
    return _spec(file, fields, architecture)


def _spec(file: GGUFFile, fields: ConfigFields, architecture: str) -> ModelSpec:
    hidden_size = fields.size("embedding_length", MAX_WIDTH)
    num_heads = _same_in_all_layers(fields, "attention.head_count")
    num_kv_heads = _same_in_all_layers(fields, "attention.head_count_kv", num_heads)
    if num_heads % num_kv_heads:
        problem = f"head_count {num_heads} is not a multiple of head_count_kv {num_kv_heads}."
        fields.fail_corrupt(problem)
    head_dim = _head_dim(fields, hidden_size, num_heads)
    scaling = _rope_scaling(fields)
    declared = fields.size("context_length", MAX_CONTEXT_TOKENS)
    return ModelSpec(
        architecture=architecture,
        num_layers=fields.size("block_count", MAX_LAYERS),
        hidden_size=hidden_size,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        intermediate_size=_same_in_all_layers(fields, "feed_forward_length"),
        vocab_size=_vocab_size(file, fields),
        max_position_embeddings=stretched_context(declared, scaling),
        rms_norm_eps=fields.positive("attention.layer_norm_rms_epsilon"),
        rope_theta=fields.positive("rope.freq_base", 10000.0),
        rope_scaling=scaling,
        rope_freq_factors=_rope_freq_factors(file, fields, head_dim, scaling),
        has_qkv_bias=architecture == "qwen2" or "blk.0.attn_q.bias" in file.tensors,
        has_output_bias="blk.0.attn_output.bias" in file.tensors,
        has_mlp_bias="blk.0.ffn_down.bias" in file.tensors,
        has_qk_norm=architecture == "qwen3",
        tie_word_embeddings="output.weight" not in file.tensors,
        sliding_window=fields.size("attention.sliding_window", MAX_CONTEXT_TOKENS, 0, low=0)
        or None,
        torch_dtype=_dtype(file),
    )


def _same_in_all_layers(fields: ConfigFields, key: str, default: int | None = None) -> int:
    """Return a size; newer files may state it per layer, which must then be the same."""
    value = fields.raw(key)
    if not isinstance(value, list):
        return fields.size(key, MAX_WIDTH, default)
    if any(item != value[0] for item in value):
        fields.fail_unsupported(key, "layers that differ are not supported.")
    return ConfigFields({key: value[0] if value else None}, fields.path).size(key, MAX_WIDTH)


def _head_dim(fields: ConfigFields, hidden_size: int, num_heads: int) -> int:
    """Return the width of a head: stated, or what is rotated, or derived."""
    if fields.has("attention.key_length"):
        head_dim = fields.size("attention.key_length", MAX_WIDTH)
    elif fields.has("rope.dimension_count"):
        head_dim = fields.size("rope.dimension_count", MAX_WIDTH)
    else:
        head_dim = hidden_size // num_heads
        if head_dim * num_heads != hidden_size:
            problem = f"embedding_length {hidden_size} is not a multiple of head_count {num_heads}."
            fields.fail_corrupt(problem)
    for key in ("attention.value_length", "rope.dimension_count"):
        if fields.size(key, MAX_WIDTH, head_dim) != head_dim:
            fields.fail_unsupported(key, f"it must be the head's width, {head_dim}.")
    if head_dim % 2:
        fields.fail_corrupt(f"the head's width {head_dim} is odd; RoPE rotates pairs.")
    return head_dim


def _vocab_size(file: GGUFFile, fields: ConfigFields) -> int:
    """Return the rows of the embedding; the metadata key is often absent."""
    embedding = file.tensors.get(_EMBEDDING)
    if embedding is None:
        fields.fail_corrupt(f"there is no tensor {_EMBEDDING}.")
    vocab_size = embedding.shape[0]
    if vocab_size > MAX_VOCAB or fields.size("vocab_size", MAX_VOCAB, vocab_size) != vocab_size:
        problem = (
            f"{_EMBEDDING} has {vocab_size:,} rows and vocab_size is {fields.raw('vocab_size')}."
        )
        fields.fail_corrupt(problem)
    return vocab_size


def _rope_scaling(fields: ConfigFields) -> RopeScaling | None:
    kind = fields.text("rope.scaling.type", "none")
    if kind not in ("none", "linear", "yarn"):
        fields.fail_unsupported("rope.scaling.type", "known here: none, linear, yarn.")
    if kind == "yarn":
        return _yarn(fields)
    if kind == "linear":
        return RopeScaling(kind="linear", factor=fields.positive("rope.scaling.factor"))
    if fields.has("rope.scale_linear"):  # older files
        return RopeScaling(kind="linear", factor=fields.positive("rope.scale_linear"))
    return None


def _yarn(fields: ConfigFields) -> RopeScaling:
    """Read yarn. llama.cpp multiplies its attn_factor by the factor every engine derives."""
    factor = fields.positive("rope.scaling.factor")
    context = fields.size("context_length", MAX_CONTEXT_TOKENS)
    multiplier = fields.positive("rope.scaling.attn_factor", 1.0)
    derived = 0.1 * math.log(factor) + 1.0 if factor > 1.0 else 1.0
    return RopeScaling(
        kind="yarn",
        factor=factor,
        original_max_position_embeddings=fields.size(
            "rope.scaling.original_context_length", MAX_CONTEXT_TOKENS, context
        ),
        beta_fast=fields.positive("rope.scaling.yarn_beta_fast", 32.0),
        beta_slow=fields.positive("rope.scaling.yarn_beta_slow", 1.0),
        attention_factor=None if multiplier == 1.0 else multiplier * derived,
    )


def _rope_freq_factors(
    file: GGUFFile, fields: ConfigFields, head_dim: int, scaling: RopeScaling | None
) -> tuple[float, ...] | None:
    tensor = file.tensors.get(ROPE_FREQS)
    if tensor is None:
        return None
    if scaling is not None:
        message = f"{file.path} has both {ROPE_FREQS} and rope.scaling keys."
        raise UnsupportedModelError(message)
    if tensor.shape != (head_dim // 2,):
        fields.fail_corrupt(f"{ROPE_FREQS} has shape {tensor.shape}, not ({head_dim // 2},).")
    factors = read_gguf_floats(file, ROPE_FREQS)
    if not all(0.0 < factor < math.inf for factor in factors):
        fields.fail_corrupt(f"{ROPE_FREQS} holds a value that is not a positive number.")
    return factors


def _dtype(file: GGUFFile) -> str:
    """Return the dtype most bytes are in; quantised tensors dequantise to float32."""
    num_bytes: Counter[str] = Counter()
    for tensor in file.tensors.values():
        num_bytes[tensor.type_name] += tensor.num_bytes
    return _DTYPES.get(num_bytes.most_common(1)[0][0], "float32")
