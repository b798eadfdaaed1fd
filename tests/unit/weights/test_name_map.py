"""Checkpoint names lead to rows of parameters."""

from dataclasses import replace

from nanoserve.weights.name_map import Target, gguf_targets, hf_targets, is_ignorable
from tests.unit.weights.stand_in import TINY_LLAMA, random_tensors

EVERYTHING = replace(
    TINY_LLAMA,
    architecture="qwen3",
    has_qkv_bias=True,
    has_output_bias=True,
    has_mlp_bias=True,
    has_qk_norm=True,
)


def test_hf_targets_are_the_tensors_of_a_checkpoint() -> None:
    """Every tensor a checkpoint has is a target with the same shape, biases and norms included."""
    for spec in (TINY_LLAMA, EVERYTHING, replace(TINY_LLAMA, tie_word_embeddings=True)):
        shapes = {name: tuple(tensor.shape) for name, tensor in random_tensors(spec).items()}

        assert {name: target.shape for name, target in hf_targets(spec).items()} == shapes


def test_q_k_and_v_fill_one_parameter_in_that_order() -> None:
    """q, k and v rows follow each other in qkv_proj."""
    targets = hf_targets(TINY_LLAMA)
    prefix = "model.layers.1.self_attn"

    q, k, v = (targets[f"{prefix}.{part}_proj.weight"] for part in "qkv")

    assert q == Target("layers.1.self_attn.qkv_proj.weight", 0, (64, 64))
    assert k == Target("layers.1.self_attn.qkv_proj.weight", 64, (32, 64))
    assert v == Target("layers.1.self_attn.qkv_proj.weight", 96, (32, 64))


def test_gate_comes_before_up() -> None:
    """Up rows begin where gate rows end."""
    targets = hf_targets(TINY_LLAMA)

    assert targets["model.layers.0.mlp.gate_proj.weight"].row_start == 0
    assert targets["model.layers.0.mlp.up_proj.weight"].row_start == 96


def test_gguf_names_lead_to_the_same_rows() -> None:
    """Both formats fill the same rows of the same parameters."""

    def rows(targets: dict[str, Target]) -> set[tuple[str, int, tuple[int, ...]]]:
        return {(t.parameter, t.row_start, t.shape) for t in targets.values()}

    assert rows(gguf_targets(EVERYTHING)) == rows(hf_targets(EVERYTHING))
    assert "blk.1.attn_q_norm.weight" in gguf_targets(EVERYTHING)
    assert "blk.1.ffn_down.bias" in gguf_targets(EVERYTHING)


def test_only_llama_ggufs_hold_interleaved_rows() -> None:
    """Q and k of llama are interleaved by head; v is not, and no other architecture's are."""
    llama, qwen = gguf_targets(TINY_LLAMA), gguf_targets(EVERYTHING)

    assert llama["blk.0.attn_q.weight"].interleaved_heads == 4
    assert llama["blk.0.attn_k.weight"].interleaved_heads == 2
    assert llama["blk.0.attn_v.weight"].interleaved_heads == 0
    assert all(target.interleaved_heads == 0 for target in qwen.values())
    assert all(target.interleaved_heads == 0 for target in hf_targets(TINY_LLAMA).values())


def test_left_overs_are_named_one_by_one() -> None:
    """Rotary tables may stay; a stored head may stay only where the head is tied."""
    tied = replace(TINY_LLAMA, tie_word_embeddings=True)

    assert is_ignorable("model.layers.0.self_attn.rotary_emb.inv_freq", TINY_LLAMA)
    assert is_ignorable("rope_freqs.weight", TINY_LLAMA)
    assert is_ignorable("lm_head.weight", tied)
    assert not is_ignorable("lm_head.weight", TINY_LLAMA)
    assert not is_ignorable("model.layers.0.self_attn.q_proj.bias", tied)
