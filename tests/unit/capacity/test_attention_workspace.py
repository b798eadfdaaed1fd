"""Workspaces of latent attention."""

from nanoserve.bench.boot_errors import read_configs
from nanoserve.capacity.attention_workspace import AttentionWorkspace, attention_workspace
from nanoserve.spec.model_shape import ModelShape
from nanoserve.spec.read_shape import read_model_shape
from nanoserve.units import GIB, MIB

CONFIGS = read_configs()


def shape_of(model: str) -> ModelShape:
    return read_model_shape(CONFIGS[model], "config.json")


def test_a_context_is_projected_up_to_the_heads_of_a_rank() -> None:
    """65,536 tokens of DeepSeek-V3: 72 MiB of latents, 256 values for each of 16 heads."""
    workspace = attention_workspace(shape_of("deepseek-ai/DeepSeek-V3"), 163_840, 256, tp=8)

    assert workspace == AttentionWorkspace(72 * MIB, GIB // 2)


def test_short_contexts_take_less() -> None:
    """Eight requests of the longest length, or four pages a slot."""
    shape = shape_of("deepseek-ai/DeepSeek-V3")

    assert attention_workspace(shape, 1024, 16).kept_bytes == 8 * 1024 * 1152
    assert attention_workspace(shape, 128, 256).kept_bytes == 4 * 256 * 16 * 1152


def test_an_index_has_a_buffer_and_no_projection() -> None:
    """DeepSeek-V3.2 keeps five requests of the longest length: 900 MiB."""
    workspace = attention_workspace(shape_of("deepseek-ai/DeepSeek-V3.2"), 163_840, 256)

    assert workspace == AttentionWorkspace(900 * MIB)


def test_other_attention_has_none() -> None:
    """Grouped-query attention reads its cache as it lies."""
    shape = shape_of("Qwen/Qwen3-8B")

    assert attention_workspace(shape, 40_960, 256) == AttentionWorkspace()
