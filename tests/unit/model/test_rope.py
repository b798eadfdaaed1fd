"""Rotary frequencies are transformers' own, and the rotation is a rotation."""

from typing import Any

import pytest
import torch
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

from nanoserve.model.rope import RotaryTable, rotary_frequencies
from nanoserve.spec.model_spec import RopeScaling
from tests.tiny_models import CPU, tiny_spec

YARN = {"factor": 8.0, "original_max_position_embeddings": 4096}
SCALINGS: dict[str, tuple[str, dict[str, Any]]] = {
    "linear": ("linear", {"factor": 3.0}),
    "llama3": (
        "llama3",
        {
            "factor": 32.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        },
    ),
    "yarn": ("yarn", YARN),
    "yarn, attention factor": ("yarn", YARN | {"attention_factor": 0.7}),
    "yarn, mscale": ("yarn", YARN | {"mscale": 0.9, "mscale_all_dim": 0.6}),
    "yarn, betas": ("yarn", YARN | {"beta_fast": 16.0, "beta_slow": 2.0}),
    "yarn, no truncation": ("yarn", YARN | {"truncate": False}),
    "yarn, no stretching": ("yarn", YARN | {"factor": 1.0}),
}


@pytest.mark.parametrize("name", SCALINGS)
def test_scaled_frequencies_are_those_of_transformers(name: str) -> None:
    """Every scaling gives transformers' frequencies and attention factor."""
    kind, fields = SCALINGS[name]
    config = LlamaConfig(
        hidden_size=256,
        num_attention_heads=2,
        head_dim=128,
        max_position_embeddings=32768,
        rope_parameters={"rope_type": kind, "rope_theta": 500000.0, **fields},
    )
    expected, expected_factor = ROPE_INIT_FUNCTIONS[kind](config)
    scaling = RopeScaling(kind=kind, **fields)  # type: ignore[arg-type]

    inv_freq, factor = rotary_frequencies(
        tiny_spec(head_dim=128, rope_theta=500000.0, rope_scaling=scaling)
    )

    torch.testing.assert_close(inv_freq, expected, rtol=1e-7, atol=0)
    assert factor == pytest.approx(expected_factor, rel=1e-12)


def test_frequency_factors_divide_the_frequencies() -> None:
    """The divisors of a GGUF file apply one by one."""
    plain, _ = rotary_frequencies(tiny_spec())

    divided, _ = rotary_frequencies(tiny_spec(rope_freq_factors=(1.0, 2.0, 4.0, 8.0)))

    torch.testing.assert_close(divided * torch.tensor([1.0, 2.0, 4.0, 8.0]), plain)


def test_the_attention_factor_multiplies_the_rotated_heads() -> None:
    """With yarn, cos and sin carry the attention factor."""
    scaling = RopeScaling(
        kind="yarn", factor=4.0, original_max_position_embeddings=32, attention_factor=2.0
    )
    heads = torch.ones(1, 1, 8)
    table = RotaryTable(tiny_spec(rope_scaling=scaling), 4, CPU, torch.float32)

    rotated = table.rotation(torch.tensor([0])).apply(heads)

    torch.testing.assert_close(rotated, 2 * heads)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_rotation_is_that_of_transformers(dtype: torch.dtype) -> None:
    """Halves of a head rotate against each other, as in Hugging Face checkpoints."""
    torch.manual_seed(0)
    heads = torch.randn(5, 3, 8).to(dtype)
    positions = torch.tensor([0, 1, 7, 30, 99])
    inv_freq, _ = rotary_frequencies(tiny_spec())
    angles = positions[:, None].float() * torch.cat((inv_freq, inv_freq))
    expected, _ = apply_rotary_pos_emb(heads, heads, angles.cos().to(dtype), angles.sin().to(dtype))

    rotated = RotaryTable(tiny_spec(), 100, CPU, dtype).rotation(positions).apply(heads)

    assert rotated.dtype == dtype
    torch.testing.assert_close(
        rotated,
        expected,
        rtol=1.6e-2 if dtype != torch.float32 else 1e-6,
        atol=2e-2 if dtype != torch.float32 else 1e-6,
    )


def test_a_table_made_while_meta_is_the_default_device_is_real() -> None:
    """The table does not follow a default device set for the parameters."""
    with torch.device("meta"):
        table = RotaryTable(tiny_spec(), 6, CPU, torch.float32)

    assert table.max_positions == 6
    assert table.rotation(torch.tensor([5])).cos.device == CPU
