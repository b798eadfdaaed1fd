"""The longest context a config stands for, stretched or not."""

from typing import Any

import pytest

from nanoserve.errors import CorruptFileError
from nanoserve.spec.read_shape import read_model_shape
from tests.shape_cases import TINY

LENGTH = 32_768


def longest(**changes: Any) -> int | None:
    config = TINY | {"max_position_embeddings": LENGTH} | changes
    return read_model_shape(config, "config.json").max_position_embeddings


@pytest.mark.parametrize(
    ("scaling", "tokens"),
    [
        (None, LENGTH),
        ({"type": "yarn", "factor": 4.0, "original_max_position_embeddings": LENGTH}, 4 * LENGTH),
        ({"rope_type": "yarn", "factor": 8, "original_max_position_embeddings": 4096}, LENGTH),
        ({"rope_type": "yarn", "factor": 2, "original_max_position_embeddings": 4096}, LENGTH),
        ({"rope_type": "yarn", "factor": 4.0}, 4 * LENGTH),
        ({"type": "linear", "factor": 2.0}, 2 * LENGTH),
        ({"type": "dynamic", "factor": 2.0}, 2 * LENGTH),
        ({"rope_type": "llama3", "factor": 8.0, "original_max_position_embeddings": 8192}, LENGTH),
        ({"type": "longrope", "factor": 32.0}, LENGTH),
        ({"type": "mrope", "mrope_section": [16, 24, 24]}, LENGTH),
    ],
)
def test_scaling(scaling: dict[str, Any] | None, tokens: int) -> None:
    """Yarn multiplies the original length, linear and dynamic the declared; the others declare it."""
    assert longest(rope_scaling=scaling) == tokens


def test_parameters_by_kind_of_layer() -> None:
    """Transformers 5 nests them; the longest decides."""
    nested = {
        "sliding_attention": {"rope_type": "default", "rope_theta": 10_000.0},
        "full_attention": {"rope_type": "linear", "factor": 4.0},
    }

    assert longest(rope_parameters=nested) == 4 * LENGTH


def test_an_impossible_factor_is_refused() -> None:
    """The key is named."""
    with pytest.raises(CorruptFileError, match="factor"):
        longest(rope_scaling={"type": "linear", "factor": -2.0})


def test_gemma_3_keeps_a_rotary_table_for_each_kind_of_layer() -> None:
    """Windows have the declared length; full layers as many positions as the factor says."""
    config = TINY | {"model_type": "gemma3_text", "max_position_embeddings": LENGTH}
    scaled = config | {"rope_scaling": {"rope_type": "linear", "factor": 8.0}}

    assert read_model_shape(config, "config.json").rotary_positions == 2 * LENGTH
    assert read_model_shape(scaled, "config.json").rotary_positions == 9 * LENGTH
    assert read_model_shape(scaled, "config.json").max_position_embeddings == LENGTH
    assert read_model_shape(TINY, "config.json").rotary_positions is None
