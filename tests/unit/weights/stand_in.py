"""A module with the decoder's parameter names and no forward pass, and files that fill it."""

from collections.abc import Iterator

import torch
from torch import Tensor, nn

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


def build_stand_in(spec: ModelSpec) -> nn.Module:
    """Return a model on the meta device with the parameters the decoder of this spec has."""
    model = nn.Module()
    for name, shape in _shapes(spec):
        *path, leaf = name.split(".")
        module = model
        for part in path:
            if part not in dict(module.named_children()):
                module.add_module(part, nn.Module())
            module = module.get_submodule(part)
        module.register_parameter(leaf, nn.Parameter(torch.empty(shape, device="meta")))
    if spec.tie_word_embeddings:
        embedding = model.get_parameter("embed_tokens.weight")
        model.get_submodule("lm_head").register_parameter("weight", embedding)
    return model


def random_tensors(spec: ModelSpec, seed: int = 0) -> dict[str, Tensor]:
    """Return random values under the names a Hugging Face checkpoint of this spec has."""
    hidden, inter = spec.hidden_size, spec.intermediate_size
    generator = torch.Generator().manual_seed(seed)
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (spec.vocab_size, hidden),
        "model.norm.weight": (hidden,),
    }
    if not spec.tie_word_embeddings:
        shapes["lm_head.weight"] = (spec.vocab_size, hidden)
    for layer in range(spec.num_layers):
        prefix = f"model.layers.{layer}"
        for name, rows, columns, has_bias in (
            ("self_attn.q_proj", spec.q_size, hidden, spec.has_qkv_bias),
            ("self_attn.k_proj", spec.kv_size, hidden, spec.has_qkv_bias),
            ("self_attn.v_proj", spec.kv_size, hidden, spec.has_qkv_bias),
            ("self_attn.o_proj", hidden, spec.q_size, spec.has_output_bias),
            ("mlp.gate_proj", inter, hidden, spec.has_mlp_bias),
            ("mlp.up_proj", inter, hidden, spec.has_mlp_bias),
            ("mlp.down_proj", hidden, inter, spec.has_mlp_bias),
        ):
            shapes[f"{prefix}.{name}.weight"] = (rows, columns)
            if has_bias:
                shapes[f"{prefix}.{name}.bias"] = (rows,)
        shapes[f"{prefix}.input_layernorm.weight"] = (hidden,)
        shapes[f"{prefix}.post_attention_layernorm.weight"] = (hidden,)
        if spec.has_qk_norm:
            shapes[f"{prefix}.self_attn.q_norm.weight"] = (spec.head_dim,)
            shapes[f"{prefix}.self_attn.k_norm.weight"] = (spec.head_dim,)
    return {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}


def fused(spec: ModelSpec, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return what each parameter must hold, made by concatenation from checkpoint tensors."""
    values = {
        "embed_tokens.weight": tensors["model.embed_tokens.weight"],
        "norm.weight": tensors["model.norm.weight"],
        "lm_head.weight": tensors.get("lm_head.weight", tensors["model.embed_tokens.weight"]),
    }
    merged = {
        "self_attn.qkv_proj": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
        "mlp.gate_up_proj": ("mlp.gate_proj", "mlp.up_proj"),
    }
    for name, _ in _shapes(spec):
        if not name.startswith("layers."):
            continue
        _, layer, *middle, leaf = name.split(".")
        module = ".".join(middle)
        parts = merged.get(module, (module,))
        values[name] = torch.cat([tensors[f"model.layers.{layer}.{p}.{leaf}"] for p in parts])
    return values


def _shapes(spec: ModelSpec) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield the decoder's parameter names and shapes."""
    hidden, inter, qkv = spec.hidden_size, spec.intermediate_size, spec.q_size + 2 * spec.kv_size
    yield "embed_tokens.weight", (spec.vocab_size, hidden)
    yield "norm.weight", (hidden,)
    yield "lm_head.weight", (spec.vocab_size, hidden)
    for layer in range(spec.num_layers):
        prefix = f"layers.{layer}"
        yield f"{prefix}.input_layernorm.weight", (hidden,)
        yield f"{prefix}.post_attention_layernorm.weight", (hidden,)
        if spec.has_qk_norm:
            yield f"{prefix}.self_attn.q_norm.weight", (spec.head_dim,)
            yield f"{prefix}.self_attn.k_norm.weight", (spec.head_dim,)
        for name, rows, columns, has_bias in (
            ("self_attn.qkv_proj", qkv, hidden, spec.has_qkv_bias),
            ("self_attn.o_proj", hidden, spec.q_size, spec.has_output_bias),
            ("mlp.gate_up_proj", 2 * inter, hidden, spec.has_mlp_bias),
            ("mlp.down_proj", hidden, inter, spec.has_mlp_bias),
        ):
            yield f"{prefix}.{name}.weight", (rows, columns)
            if has_bias:
                yield f"{prefix}.{name}.bias", (rows,)
