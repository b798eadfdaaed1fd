"""What vLLM caches of each layer, by version."""

from dataclasses import replace

import pytest

from nanoserve.bench.boot_errors import read_configs
from nanoserve.capacity.vllm_layers import states_per_request
from nanoserve.spec.read_shape import read_model_shape

CONFIGS = read_configs()


@pytest.mark.parametrize(
    ("model", "version", "num_states"),
    [
        ("Qwen/Qwen3.6-35B-A3B", (0, 24), 2),
        ("Qwen/Qwen3.6-35B-A3B", (0, 20), 1),
        ("nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", None, 2),
        ("nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", (0, 28), 2),
        ("nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", (0, 27, 1), 1),
        ("meta-llama/Llama-3.1-8B-Instruct", None, 1),
    ],
)
def test_states_of_a_request(model: str, version: tuple[int, ...] | None, num_states: int) -> None:
    """Two with prefix caching: for hybrids by default since 0.28, in delta nets' boots since 0.21."""
    shape = read_model_shape(CONFIGS[model], "config.json")

    assert states_per_request(shape, version) == num_states


def test_a_model_without_attention_is_no_hybrid() -> None:
    """Its states are not aligned with blocks of keys and values: there are none."""
    hybrid = read_model_shape(CONFIGS["nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16"], "config.json")
    states = tuple(layer for layer in hybrid.layers if layer.state is not None)

    assert states_per_request(replace(hybrid, layers=states), None) == 1
