"""Decoders over an encoder: Whisper, BART, T5, and Llama 3.2 Vision's cross-attention layers.

A cross-attention keeps one K and V per encoder token, made once per request.
Source: the modelling files of transformers 5.24.
"""

from collections.abc import Mapping
from dataclasses import replace

from nanoserve.spec.config_fields import MAX_CONTEXT_TOKENS, MAX_LAYERS, ConfigFields
from nanoserve.spec.family import Family, attention_shape, dense_mlp
from nanoserve.spec.model_shape import LayerShape, Weight
from nanoserve.spec.shape_fields import hidden_size, layer_numbers, num_layers, width
from nanoserve.spec.weight_parts import (
    AttentionExtras,
    attention_layer,
    join,
    mlp_layer,
    norm,
    norm_layer,
)


def _as_encoder(layer: LayerShape, num_layers_of_encoder: int) -> tuple[Weight, ...]:
    """Return a layer's weights as the encoder's, of which `num_layers_of_encoder` are alike."""
    return tuple(
        replace(weight, group="encoder", copies=weight.copies * num_layers_of_encoder)
        for weight in layer.weights
    )


def _attention(fields: ConfigFields, num_key_biases: int) -> LayerShape:
    """Return an attention with bias on q, v and the output, and on k where there is one."""
    shape, size = attention_shape(fields, "full"), hidden_size(fields)
    plain = attention_layer(shape, size, AttentionExtras(has_output_bias=True))
    inner = shape.num_heads * shape.head_dim
    return join(plain, LayerShape(weights=(Weight("attention", inner * (2 + num_key_biases)),)))


def _crossed(own: LayerShape) -> LayerShape:
    """Return a self-attention and, beside it, one of the same widths over the encoder."""
    cross = replace(own.attention, kind="cross") if own.attention else None
    return LayerShape(attention=own.attention, cross=cross, weights=own.weights * 2)


def _whisper_mixers(fields: ConfigFields) -> list[LayerShape]:
    return [_crossed(_attention(fields, num_key_biases=0))] * num_layers(fields)


def _bart_mixers(fields: ConfigFields) -> list[LayerShape]:
    return [_crossed(_attention(fields, num_key_biases=1))] * num_layers(fields)


def _plain_mlps(fields: ConfigFields) -> list[LayerShape]:
    size = hidden_size(fields)
    inner = width(fields, "intermediate_size")
    return [mlp_layer(inner, size, is_gated=False, has_bias=True)] * num_layers(fields)


def _encoder_layers(fields: ConfigFields, num_key_biases: int) -> tuple[Weight, ...]:
    size = hidden_size(fields)
    heads = width(fields, "encoder_attention_heads")
    if size % heads:
        fields.fail_corrupt(f"d_model is not a multiple of encoder_attention_heads {heads}.")
    own = _attention(fields, num_key_biases)
    mlp = mlp_layer(width(fields, "encoder_ffn_dim"), size, is_gated=False, has_bias=True)
    norms = norm_layer(size, has_bias=True, copies=2)
    return _as_encoder(join(own, mlp, norms), fields.size("encoder_layers", MAX_LAYERS))


def _whisper_extra(fields: ConfigFields) -> tuple[Weight, ...]:
    size = hidden_size(fields)
    positions = fields.size("max_position_embeddings", MAX_CONTEXT_TOKENS, 448)
    sources = fields.size("max_source_positions", MAX_CONTEXT_TOKENS, 1500)
    convolutions = size * (3 * width(fields, "num_mel_bins", 80) + 1) + size * (3 * size + 1)
    return (
        *_encoder_layers(fields, num_key_biases=0),
        Weight("encoder", convolutions),
        Weight("encoder", sources, size),
        Weight("encoder", 2 * size),  # the encoder's last norm
        Weight("embedding", positions, size),
    )


def _bart_extra(fields: ConfigFields) -> tuple[Weight, ...]:
    """Return the encoder, positions of both sides two rows longer, and norms on embeddings."""
    size = hidden_size(fields)
    positions = fields.size("max_position_embeddings", MAX_CONTEXT_TOKENS, 1024) + 2
    return (
        *_encoder_layers(fields, num_key_biases=1),
        Weight("encoder", positions, size),
        Weight("encoder", 2 * size),
        Weight("embedding", positions, size),
        norm(size, has_bias=True),
    )


def _t5_parts(fields: ConfigFields) -> tuple[LayerShape, LayerShape]:
    shape, size = attention_shape(fields, "full"), hidden_size(fields)
    is_gated = fields.text("feed_forward_proj", "relu").startswith("gated-")
    own = attention_layer(shape, size, AttentionExtras())
    return own, mlp_layer(width(fields, "intermediate_size"), size, is_gated)


def _t5_mixers(fields: ConfigFields) -> list[LayerShape]:
    return [_crossed(_t5_parts(fields)[0])] * num_layers(fields)


def _t5_mlps(fields: ConfigFields) -> list[LayerShape]:
    return [_t5_parts(fields)[1]] * num_layers(fields)


def _t5_extra(fields: ConfigFields) -> tuple[Weight, ...]:
    own, mlp = _t5_parts(fields)
    size = hidden_size(fields)
    num_encoder_layers = fields.size("num_layers", MAX_LAYERS)
    buckets = width(fields, "relative_attention_num_buckets", 32)
    norms = norm_layer(size, copies=2)
    return (
        *_as_encoder(join(own, mlp, norms), num_encoder_layers),
        Weight("encoder", size),
        Weight("embedding", buckets, width(fields, "num_attention_heads"), copies=2),
    )


def _mllama_mixers(fields: ConfigFields) -> list[LayerShape]:
    """Return self-attention, and in the listed layers cross-attention instead, with its gates."""
    size = hidden_size(fields)
    own = attention_layer(attention_shape(fields, "full"), size, AttentionExtras())
    shape = attention_shape(fields, "cross")
    cross = attention_layer(shape, size, AttentionExtras(num_norm_params=2 * shape.head_dim))
    gated = join(cross, LayerShape(weights=(Weight("attention", 2),)))
    listed = layer_numbers(fields, "cross_attention_layers")
    return [gated if i in listed else own for i in range(num_layers(fields))]


def _mllama_extra(fields: ConfigFields) -> tuple[Weight, ...]:
    """Return the eight image tokens that stand in the embedding and not in the head."""
    return (Weight("embedding", 8, hidden_size(fields)),)


_TIED = {"tie_word_embeddings": True}

ENCODER_FAMILIES: Mapping[str, Family] = {
    "whisper": Family(
        _whisper_mixers,
        _plain_mlps,
        num_norms=3,
        has_norm_bias=True,
        extra=_whisper_extra,
        defaults={"max_position_embeddings": 448} | _TIED,
    ),
    "bart": Family(
        _bart_mixers,
        _plain_mlps,
        num_norms=3,
        has_norm_bias=True,
        has_final_norm=False,
        extra=_bart_extra,
        defaults=_TIED,
    ),
    "t5": Family(_t5_mixers, _t5_mlps, num_norms=3, extra=_t5_extra, defaults=_TIED),
    "mllama_text_model": Family(
        _mllama_mixers,
        dense_mlp(),
        extra=_mllama_extra,
        defaults={
            "num_key_value_heads": 8,
            "cross_attention_layers": [3, 8, 13, 18, 23, 28, 33, 38],
        },
    ),
}
