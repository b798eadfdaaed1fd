"""What a config means here is what it means to transformers."""

from typing import Any

import pytest
import torch
from transformers import LlamaConfig, MistralConfig, Qwen2Config, Qwen3Config
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from nanoserve.spec.hf_config import spec_from_hf_config

SIZES = {
    "hidden_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 96,
    "vocab_size": 100,
}
FAMILIES = {
    "LlamaForCausalLM": LlamaConfig,
    "MistralForCausalLM": MistralConfig,
    "Qwen2ForCausalLM": Qwen2Config,
    "Qwen3ForCausalLM": Qwen3Config,
}


@pytest.mark.parametrize("architecture", FAMILIES)
@pytest.mark.parametrize("num_kv_heads", [4, 2])
def test_defaults_are_those_of_transformers(architecture: str, num_kv_heads: int) -> None:
    """A config with every default written out, as transformers 5 writes it, gives its values."""
    config = FAMILIES[architecture](**SIZES, num_key_value_heads=num_kv_heads)
    written = config.to_dict() | {"architectures": [architecture]}

    spec = spec_from_hf_config(written, "config.json")

    assert spec.num_kv_heads == config.num_key_value_heads
    assert spec.head_dim == getattr(config, "head_dim", 16)
    assert spec.rms_norm_eps == config.rms_norm_eps
    assert spec.rope_theta == config.rope_parameters["rope_theta"]
    assert spec.tie_word_embeddings == config.tie_word_embeddings
    assert spec.max_position_embeddings == config.max_position_embeddings
    assert spec.sliding_window == getattr(config, "sliding_window", None)


@pytest.mark.parametrize("architecture", FAMILIES)
def test_absent_keys_take_the_defaults_of_transformers(architecture: str) -> None:
    """A config that leaves optional keys out means what transformers makes of it."""
    sizes = SIZES | {"num_attention_heads": 64, "hidden_size": 2048}
    config = FAMILIES[architecture](**sizes)
    short = sizes | {"architectures": [architecture], "max_position_embeddings": 128}

    spec = spec_from_hf_config(short, "config.json")

    assert spec.num_kv_heads == config.num_key_value_heads
    assert spec.rms_norm_eps == config.rms_norm_eps
    assert spec.sliding_window == getattr(config, "sliding_window", None)
    assert spec.tie_word_embeddings == config.tie_word_embeddings


@pytest.mark.parametrize(
    "settings",
    [
        {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512},
        {"rope_type": "yarn", "factor": 4.0},
        {
            "rope_type": "yarn",
            "factor": 40.0,
            "original_max_position_embeddings": 512,
            "beta_fast": 16.0,
            "mscale": 0.7,
            "mscale_all_dim": 0.9,
            "truncate": False,
        },
        {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 512,
        },
        {"rope_type": "linear", "factor": 2.0},
    ],
)
def test_scaling_read_from_either_spelling_gives_the_same_frequencies(
    settings: dict[str, Any],
) -> None:
    """Frequencies transformers makes from the settings as read equal those from the file."""
    old = SIZES | {"max_position_embeddings": 2048, "rope_theta": 5e5, "rope_scaling": settings}
    new = {key: value for key, value in old.items() if not key.startswith("rope_")}
    new["rope_parameters"] = settings | {"rope_theta": 5e5}
    specs = [
        spec_from_hf_config(config | {"architectures": ["LlamaForCausalLM"]}, "config.json")
        for config in (old, new)
    ]
    scaling = specs[0].rope_scaling
    assert scaling is not None

    as_read = {
        name: getattr(scaling, name)
        for name in scaling.__dataclass_fields__
        if name != "kind" and (name in settings or name == "original_max_position_embeddings")
    }
    as_read |= {"rope_type": scaling.kind, "rope_theta": specs[0].rope_theta}
    expected = frequencies(settings | {"rope_theta": 5e5})
    found = frequencies(as_read)

    assert specs[0] == specs[1]
    assert torch.equal(found[0], expected[0])
    assert found[1] == expected[1]


def frequencies(rope_parameters: dict[str, Any]) -> tuple[torch.Tensor, float]:
    config = LlamaConfig(
        **SIZES, max_position_embeddings=2048, rope_parameters=dict(rope_parameters)
    )
    inv_freq, attention_factor = ROPE_INIT_FUNCTIONS[rope_parameters["rope_type"]](config, "cpu")
    return inv_freq, attention_factor
