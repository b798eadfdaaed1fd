"""Decoders over an encoder: what both sides have, and what is kept of the other."""

from typing import Any

import pytest

from nanoserve.errors import CorruptFileError
from nanoserve.spec.param_count import count_parameters
from nanoserve.spec.read_shape import read_model_shape
from tests.shape_cases import kinds_of, tiny_shape

BART: dict[str, Any] = {
    "model_type": "bart",
    "d_model": 64,
    "decoder_layers": 2,
    "decoder_attention_heads": 4,
    "decoder_ffn_dim": 96,
    "encoder_layers": 3,
    "encoder_attention_heads": 4,
    "encoder_ffn_dim": 96,
    "vocab_size": 128,
    "max_position_embeddings": 512,
}
T5 = {"num_layers": 3, "num_decoder_layers": 2, "d_kv": 16}


def test_each_decoder_layer_has_two_attentions() -> None:
    """One over its own tokens, one over the encoder's; the encoder stands apart."""
    shape = read_model_shape(BART, "config.json")

    assert all(layer.attention and layer.cross for layer in shape.layers)
    attention = 4 * 64 * 64 + 4 * 64
    encoder_layer = attention + 2 * 64 * 96 + 96 + 64 + 2 * 2 * 64
    count = count_parameters(shape)
    assert count.attention == 2 * 2 * attention
    assert count.encoder == 3 * encoder_layer + 514 * 64 + 2 * 64


def test_whispers_encoder_has_a_length() -> None:
    """Its positions are what cross-attention keeps."""
    shape = read_model_shape(BART | {"model_type": "whisper", "max_source_positions": 1500}, "c")

    assert shape.max_encoder_tokens == 1500


def test_t5_counts_the_decoders_layers() -> None:
    """`num_layers` are the encoder's; the decoder has as many unless it says otherwise."""
    decoder = tiny_shape("t5", **T5, num_hidden_layers=None)
    same = tiny_shape("t5", **T5 | {"num_decoder_layers": None}, num_hidden_layers=None)

    assert (len(decoder.layers), len(same.layers)) == (2, 3)


def test_the_decoders_own_counts_come_first() -> None:
    """Whisper's files say `num_hidden_layers`, too, and mean the encoder's."""
    shape = read_model_shape(BART | {"num_hidden_layers": 3}, "config.json")

    assert len(shape.layers) == 2


def test_t5_may_have_a_gate() -> None:
    """Version 1.1 has gated MLPs on both sides."""
    plain = count_parameters(tiny_shape("t5", **T5, num_hidden_layers=None))
    gated = count_parameters(
        tiny_shape("t5", **T5, num_hidden_layers=None, feed_forward_proj="gated-gelu")
    )

    assert gated.mlp - plain.mlp == 2 * 64 * 96
    assert gated.encoder - plain.encoder == 3 * 64 * 96


def test_llama_3_2_vision_crosses_in_listed_layers() -> None:
    """There cross-attention stands in place of self-attention."""
    shape = tiny_shape("mllama_text_model", cross_attention_layers=[1, 3])

    assert kinds_of(shape) == ["full", "cross"] * 2


def test_encoder_heads_must_divide() -> None:
    """5 heads do not divide 64."""
    with pytest.raises(CorruptFileError, match="encoder_attention_heads 5"):
        read_model_shape(BART | {"encoder_attention_heads": 5}, "config.json")
