"""A module with the decoder's parameter names and no forward pass, and specs to build it from."""

import torch
from torch import nn

from nanoserve.spec.model_spec import ModelSpec

TINY_LLAMA = ModelSpec(
    architecture="llama",
    num_layers=2,
    hidden_size=64,
    num_heads=4,
    num_kv_heads=2,
    head_dim=16,
    intermediate_size=96,
    vocab_size=40,
    max_position_embeddings=128,
)


def build_stand_in(spec: ModelSpec, device: str = "meta") -> nn.Module:
    """Return a model with the parameters the decoder of this spec has."""
    with torch.device(device):
        model = nn.Module()
        model.embed_tokens = nn.Embedding(spec.vocab_size, spec.hidden_size)
        model.layers = nn.ModuleList(_layer(spec) for _ in range(spec.num_layers))
        model.norm = nn.RMSNorm(spec.hidden_size)
        model.lm_head = nn.Linear(spec.hidden_size, spec.vocab_size, bias=False)
    if spec.tie_word_embeddings:
        model.lm_head.weight = model.embed_tokens.weight
    return model


def _layer(spec: ModelSpec) -> nn.Module:
    layer = nn.Module()
    layer.input_layernorm = nn.RMSNorm(spec.hidden_size)
    layer.self_attn = nn.Module()
    layer.self_attn.qkv_proj = nn.Linear(
        spec.hidden_size, spec.q_size + 2 * spec.kv_size, bias=spec.has_qkv_bias
    )
    layer.self_attn.o_proj = nn.Linear(spec.q_size, spec.hidden_size, bias=spec.has_output_bias)
    if spec.has_qk_norm:
        layer.self_attn.q_norm = nn.RMSNorm(spec.head_dim)
        layer.self_attn.k_norm = nn.RMSNorm(spec.head_dim)
    layer.post_attention_layernorm = nn.RMSNorm(spec.hidden_size)
    layer.mlp = nn.Module()
    layer.mlp.gate_up_proj = nn.Linear(
        spec.hidden_size, 2 * spec.intermediate_size, bias=spec.has_mlp_bias
    )
    layer.mlp.down_proj = nn.Linear(
        spec.intermediate_size, spec.hidden_size, bias=spec.has_mlp_bias
    )
    return layer
