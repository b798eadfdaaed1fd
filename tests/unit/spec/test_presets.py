"""Models known by name: what is packaged, and which spellings lead to it."""

import json
from pathlib import Path

import pytest

from nanoserve.spec.presets import find_preset, nearest_presets, preset_names, presets
from nanoserve.spec.read_model import read_planned_model
from tests.golden.recipes.presets import ROWS, SOURCE_ROWS

GOLDEN = Path(__file__).parents[2] / "golden"


@pytest.mark.parametrize(
    "name",
    [
        "llama-3.1-8b",
        "Llama-3.1-8B",
        "llama3.1 8b",
        "Llama-3.1-8B-Instruct",
        "meta-llama/Llama-3.1-8B-Instruct",
        "LLAMA_3.1_8B_INSTRUCT",
    ],
)
def test_spellings(name: str) -> None:
    """Case, dashes, dots and the organisation are forgiven."""
    found = find_preset(name)

    assert found is not None
    assert found.model == "meta-llama/Llama-3.1-8B-Instruct"


def test_names_lead_to_one_model_each() -> None:
    """No two presets answer to the same spelling."""
    for preset in presets():
        for name in (preset.model, *preset.names):
            found = find_preset(name)
            assert found is not None
            assert found.model == preset.model, name


def test_about_sixty_models_and_more() -> None:
    """Every preset is read without a file."""
    assert len(preset_names()) >= 60
    for name in preset_names():
        assert read_planned_model(name).shape.layers, name


def test_packaged_configs_are_the_pinned_ones() -> None:
    """The file is what its recipe makes of the configs whose parameters are tested."""
    lines = (GOLDEN / "planner_configs.jsonl").read_text().splitlines()
    configs = {row["model"]: row["config"] for row in map(json.loads, lines)}

    for preset in presets():
        assert preset.config == configs[SOURCE_ROWS.get(preset.model, preset.model)]
        assert preset.names == ROWS[preset.model]
    assert preset_names() == tuple(ROWS)


def test_nearest_names() -> None:
    """A misspelt name is answered with those alike."""
    assert "Qwen/Qwen3-8B" in nearest_presets("qwen3-8bb")
    assert find_preset("qwen3-8bb") is None


@pytest.mark.parametrize(
    ("name", "tokens"),
    [
        ("llama-2-7b", 4096),
        ("llama-2-13b", 4096),
        ("llama-2-70b", 4096),
        ("mistral-7b-v0.1", 32_768),
        ("llama-3.1-8b", 131_072),
    ],
)
def test_lengths_are_those_of_the_published_configs(name: str, tokens: int) -> None:
    """Not those that other libraries ship for the same models: a block, or half the length."""
    preset = find_preset(name)

    assert preset is not None
    assert preset.config["max_position_embeddings"] == tokens
