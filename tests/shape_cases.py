"""Small configs for tests of the planner's families."""

from typing import Any

from nanoserve.spec.model_shape import ModelShape
from nanoserve.spec.read_shape import read_model_shape

TINY: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 96,
    "vocab_size": 128,
    "max_position_embeddings": 512,
}
EXPERTS: dict[str, Any] = {
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
}
DELTA: dict[str, Any] = {
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 16,
    "head_dim": 16,
}
LATENT: dict[str, Any] = {
    "q_lora_rank": 24,
    "kv_lora_rank": 32,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 16,
}


def tiny_shape(model_type: str = "llama", **changes: Any) -> ModelShape:
    """Read the tiny config of a family with some keys changed."""
    return read_model_shape({**TINY, "model_type": model_type, **changes}, "config.json")


def kinds_of(shape: ModelShape) -> list[str]:
    """Return how each layer mixes tokens: its attention's kind, its state's, or `none`."""
    parts = [layer.attention or layer.state for layer in shape.layers]
    return ["none" if part is None else part.kind for part in parts]


def num_experts_of(shape: ModelShape) -> list[int]:
    """Return the routed experts of each layer."""
    return [0 if layer.mlp is None else layer.mlp.num_experts for layer in shape.layers]
