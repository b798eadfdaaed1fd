"""`Decoder` has the promised parameters and can be built without memory."""

import pytest
import torch

from nanoserve.attention.select import select_backend
from nanoserve.errors import InvariantError
from nanoserve.model.decoder import Decoder
from nanoserve.runner.input_buffers import build_step_inputs
from nanoserve.runner.kv_pool import KVPool
from nanoserve.sched.batch_layout import BatchLayout
from nanoserve.sched.step import StepPlan
from tests.tiny_models import BLOCK_SIZE, CPU, random_decoder, scheduled, tiny_spec


def test_parameters_have_the_documented_names_and_shapes() -> None:
    """Names follow the checkpoints, with q, k, v and gate, up fused by rows."""
    spec = tiny_spec(
        num_layers=1,
        has_qkv_bias=True,
        has_output_bias=True,
        has_mlp_bias=True,
        has_qk_norm=True,
    )
    with torch.device("meta"):
        decoder = Decoder(spec, select_backend(spec, CPU))

    shapes = {name: tuple(parameter.shape) for name, parameter in decoder.named_parameters()}

    assert shapes == {
        "embed_tokens.weight": (97, 32),
        "layers.0.input_layernorm.weight": (32,),
        "layers.0.self_attn.qkv_proj.weight": (64, 32),
        "layers.0.self_attn.qkv_proj.bias": (64,),
        "layers.0.self_attn.o_proj.weight": (32, 32),
        "layers.0.self_attn.o_proj.bias": (32,),
        "layers.0.self_attn.q_norm.weight": (8,),
        "layers.0.self_attn.k_norm.weight": (8,),
        "layers.0.post_attention_layernorm.weight": (32,),
        "layers.0.mlp.gate_up_proj.weight": (96, 32),
        "layers.0.mlp.gate_up_proj.bias": (96,),
        "layers.0.mlp.down_proj.weight": (32, 48),
        "layers.0.mlp.down_proj.bias": (32,),
        "norm.weight": (32,),
        "lm_head.weight": (97, 32),
    }


def test_a_decoder_on_meta_takes_no_memory() -> None:
    """Every parameter of a decoder built on the meta device is a meta tensor."""
    spec = tiny_spec()

    with torch.device("meta"):
        decoder = Decoder(spec, select_backend(spec, CPU))

    assert all(parameter.is_meta for parameter in decoder.parameters())


def test_a_tied_head_is_the_embedding_s_parameter() -> None:
    """Tied weights are one parameter under two names; untied ones are two."""
    tied = random_decoder(tiny_spec(tie_word_embeddings=True))
    untied = random_decoder(tiny_spec())

    assert tied.lm_head.weight is tied.embed_tokens.weight
    assert untied.lm_head.weight is not untied.embed_tokens.weight


def test_a_step_before_the_rotary_table_is_refused() -> None:
    """A forward without `build_rope` says what is missing."""
    spec = tiny_spec()
    decoder = Decoder(spec, select_backend(spec, CPU))
    pool = KVPool(spec, 2, BLOCK_SIZE, torch.float32, CPU)
    inputs = build_step_inputs(
        BatchLayout.from_step(StepPlan(0, (scheduled([1], [0]),)), BLOCK_SIZE), CPU
    )

    with pytest.raises(InvariantError, match="build_rope"):
        decoder.hidden_states(inputs.token_ids, inputs.positions, pool.layers, inputs.attention)
