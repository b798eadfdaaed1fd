"""Which rows of which parameter each checkpoint tensor fills.

The only module that spells checkpoint names. Both formats come from one table, so a name
known in one is known in the other. q, k and v lie one below the other in `qkv_proj`, gate
and up in `gate_up_proj`:

```
qkv_proj rows   [0 ........ q_size)[q_size ... +kv_size)[... +kv_size)
                 q_proj             k_proj               v_proj
```
"""

from collections.abc import Iterator
from dataclasses import dataclass

from nanoserve.spec.model_spec import ModelSpec

_HF_HEAD = "lm_head.weight"


@dataclass(frozen=True, slots=True)
class Target:
    """Where one checkpoint tensor goes.

    Attributes:
        parameter: Name of the model's parameter.
        row_start: First row it fills there.
        shape: Shape the checkpoint tensor must have; its first size is the rows it fills.
        interleaved_heads: Heads whose rows the file holds in llama.cpp's order, in which the
            two rows that RoPE rotates together are neighbours; 0 where they are in order.
    """

    parameter: str
    row_start: int
    shape: tuple[int, ...]
    interleaved_heads: int = 0


@dataclass(frozen=True, slots=True)
class _Names:
    """One tensor's name in each place; inside a layer, without the layer's prefix."""

    hf: str
    gguf: str
    parameter: str


def hf_targets(spec: ModelSpec) -> dict[str, Target]:
    """Return the target of every tensor a safetensors checkpoint of this model has."""
    targets = {names.hf: target for names, target in _outer_targets(spec)}
    for layer in range(spec.num_layers):
        for names, target in _layer_targets(spec, layer):
            targets[f"model.layers.{layer}.{names.hf}"] = target
    return targets


def gguf_targets(spec: ModelSpec) -> dict[str, Target]:
    """Return the target of every tensor a GGUF file of this model has."""
    targets = {names.gguf: target for names, target in _outer_targets(spec)}
    for layer in range(spec.num_layers):
        for names, target in _layer_targets(spec, layer, is_gguf=True):
            targets[f"blk.{layer}.{names.gguf}"] = target
    return targets


def is_ignorable(name: str, spec: ModelSpec) -> bool:
    """Whether a tensor that fills nothing may stay in the file.

    Rotary frequencies are computed, or were read with the spec (`rope_freqs.weight`); a head
    stored although it is tied is the embedding again.
    """
    is_rotary = name.endswith("rotary_emb.inv_freq") or name == "rope_freqs.weight"
    return is_rotary or (name == _HF_HEAD and spec.tie_word_embeddings)


def _outer_targets(spec: ModelSpec) -> Iterator[tuple[_Names, Target]]:
    rows = (spec.vocab_size, spec.hidden_size)
    embedding = _Names("model.embed_tokens.weight", "token_embd.weight", "embed_tokens.weight")
    norm = _Names("model.norm.weight", "output_norm.weight", "norm.weight")
    yield embedding, Target(embedding.parameter, 0, rows)
    yield norm, Target(norm.parameter, 0, (spec.hidden_size,))
    if not spec.tie_word_embeddings:
        head = _Names(_HF_HEAD, "output.weight", "lm_head.weight")
        yield head, Target(head.parameter, 0, rows)


def _layer_targets(
    spec: ModelSpec, layer: int, is_gguf: bool = False
) -> Iterator[tuple[_Names, Target]]:
    is_interleaved = is_gguf and spec.architecture == "llama"  # llama.cpp permutes no other
    for part in _projections(spec) + _norms(spec):
        heads = part.interleavable_heads if is_interleaved else 0
        parameter = f"layers.{layer}.{part.names.parameter}"
        yield part.names, Target(parameter, part.row_start, part.shape, heads)


@dataclass(frozen=True, slots=True)
class _Part:
    """One tensor of a layer."""

    names: _Names
    row_start: int
    shape: tuple[int, ...]
    interleavable_heads: int = 0


def _projections(spec: ModelSpec) -> list[_Part]:
    hidden, inter, q, kv = spec.hidden_size, spec.intermediate_size, spec.q_size, spec.kv_size
    qkv, gate_up = "self_attn.qkv_proj", "mlp.gate_up_proj"
    layout = (  # HF name, GGUF name, parameter, first row, rows, columns, has bias, rotated heads
        ("self_attn.q_proj", "attn_q", qkv, 0, q, hidden, spec.has_qkv_bias, spec.num_heads),
        ("self_attn.k_proj", "attn_k", qkv, q, kv, hidden, spec.has_qkv_bias, spec.num_kv_heads),
        ("self_attn.v_proj", "attn_v", qkv, q + kv, kv, hidden, spec.has_qkv_bias, 0),
        ("self_attn.o_proj", "attn_output", "self_attn.o_proj", 0, hidden, q, spec.has_output_bias, 0),
        ("mlp.gate_proj", "ffn_gate", gate_up, 0, inter, hidden, spec.has_mlp_bias, 0),
        ("mlp.up_proj", "ffn_up", gate_up, inter, inter, hidden, spec.has_mlp_bias, 0),
        ("mlp.down_proj", "ffn_down", "mlp.down_proj", 0, hidden, inter, spec.has_mlp_bias, 0),
    )  # fmt: skip
    parts = []
    for hf, gguf, parameter, row_start, rows, columns, has_bias, heads in layout:
        names = _Names(f"{hf}.weight", f"{gguf}.weight", f"{parameter}.weight")
        parts.append(_Part(names, row_start, (rows, columns), heads))
        if has_bias:
            names = _Names(f"{hf}.bias", f"{gguf}.bias", f"{parameter}.bias")
            parts.append(_Part(names, row_start, (rows,), heads))
    return parts


def _norms(spec: ModelSpec) -> list[_Part]:
    layout = [
        ("input_layernorm.weight", "attn_norm.weight", spec.hidden_size),
        ("post_attention_layernorm.weight", "ffn_norm.weight", spec.hidden_size),
    ]
    if spec.has_qk_norm:
        layout += [
            ("self_attn.q_norm.weight", "attn_q_norm.weight", spec.head_dim),
            ("self_attn.k_norm.weight", "attn_k_norm.weight", spec.head_dim),
        ]
    return [_Part(_Names(hf, gguf, hf), 0, (size,)) for hf, gguf, size in layout]
