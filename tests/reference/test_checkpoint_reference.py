"""Checkpoints as transformers writes them load to the weights transformers has."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from nanoserve.spec.checkpoint import read_checkpoint
from nanoserve.spec.model_dir import resolve_model
from nanoserve.spec.param_count import count_parameters
from nanoserve.weights.loader import load_weights
from nanoserve.weights.placement import place_weights
from tests.unit.weights.stand_in import build_stand_in, fused

SIZES = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 96,
    "vocab_size": 100,
    "max_position_embeddings": 128,
}
MODELS = {
    "llama": lambda: LlamaForCausalLM(LlamaConfig(**SIZES, attention_bias=True, mlp_bias=True)),
    "tied llama": lambda: LlamaForCausalLM(LlamaConfig(**SIZES, tie_word_embeddings=True)),
    "mistral": lambda: MistralForCausalLM(MistralConfig(**SIZES, head_dim=32)),
    "qwen2": lambda: Qwen2ForCausalLM(Qwen2Config(**SIZES)),
    "qwen3": lambda: Qwen3ForCausalLM(Qwen3Config(**SIZES, head_dim=32, attention_bias=True)),
}


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("max_shard_size", ["1GB", "50KB"])
def test_a_saved_model_loads_to_the_same_weights(
    tmp_path: Path, name: str, max_shard_size: str
) -> None:
    """Config, index and shards of each family are understood, and every value arrives."""
    reference: PreTrainedModel = MODELS[name]()
    for parameter in reference.parameters():
        torch.nn.init.normal_(parameter)
    reference.save_pretrained(tmp_path, max_shard_size=max_shard_size)

    checkpoint = read_checkpoint(resolve_model(str(tmp_path)))
    model = build_stand_in(checkpoint.spec)
    place_weights(model, "cpu", torch.float32)
    load_weights(model, checkpoint)

    expected = fused(checkpoint.spec, dict(reference.state_dict()))
    for parameter_name, parameter in model.named_parameters(remove_duplicate=False):
        assert torch.equal(parameter, expected[parameter_name]), parameter_name
    assert (len(checkpoint.shards) > 1) == (max_shard_size == "50KB")
    assert count_parameters(checkpoint.spec).total == reference.num_parameters()
    tied = replace(checkpoint.spec, tie_word_embeddings=True)
    assert (checkpoint.spec == tied) == (name == "tied llama")
