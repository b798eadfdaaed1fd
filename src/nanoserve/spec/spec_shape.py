"""A `ModelSpec`, which our decoder serves, as a `ModelShape`, which the planner reads.

So the parameters and the KV bytes of our own models come out of the formulas that serve every
other family.
"""

from nanoserve.spec.model_shape import AttentionShape, ModelShape, Weight
from nanoserve.spec.model_spec import ModelSpec
from nanoserve.spec.weight_parts import (
    AttentionExtras,
    attention_layer,
    join,
    linear,
    mlp_layer,
    norm_layer,
)


def shape_of_spec(spec: ModelSpec) -> ModelShape:
    """Return the shape of a model of ours."""
    attention = AttentionShape(
        kind="full" if spec.sliding_window is None else "sliding",
        num_heads=spec.num_heads,
        num_kv_heads=spec.num_kv_heads,
        head_dim=spec.head_dim,
        v_head_dim=spec.head_dim,
        span=spec.sliding_window,
    )
    extras = AttentionExtras(
        has_qkv_bias=spec.has_qkv_bias,
        has_output_bias=spec.has_output_bias,
        num_norm_params=2 * spec.head_dim if spec.has_qk_norm else 0,
    )
    layer = join(
        attention_layer(attention, spec.hidden_size, extras),
        mlp_layer(spec.intermediate_size, spec.hidden_size, has_bias=spec.has_mlp_bias),
        norm_layer(spec.hidden_size, copies=2),
    )
    table = Weight("embedding", spec.vocab_size, spec.hidden_size, split="vocab")
    head = () if spec.tie_word_embeddings else linear("head", table.rows, table.columns, "vocab")
    return ModelShape(
        model_type=spec.architecture,
        layers=(layer,) * spec.num_layers,
        hidden_size=spec.hidden_size,
        vocab_size=spec.vocab_size,
        max_position_embeddings=spec.max_position_embeddings,
        tie_word_embeddings=spec.tie_word_embeddings,
        dtype=spec.torch_dtype,
        weights=(table, *head, *norm_layer(spec.hidden_size).weights),
    )
