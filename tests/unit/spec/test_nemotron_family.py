"""Nemotron-H: one mixer a layer, as letters or names say."""

from typing import Any

import pytest

from nanoserve.errors import CorruptFileError, UnsupportedModelError
from nanoserve.spec.param_count import count_parameters
from tests.shape_cases import EXPERTS, kinds_of, num_experts_of, tiny_shape

MAMBA = {"mamba_num_heads": 8, "mamba_head_dim": 16, "ssm_state_size": 4, "n_groups": 2}


def test_letters_say_what_each_layer_is() -> None:
    """M is Mamba, * attention, - an MLP, E a mixture; their number is the number of layers."""
    shape = tiny_shape("nemotron_h", **MAMBA, **EXPERTS, hybrid_override_pattern="M*-E")

    assert kinds_of(shape) == ["mamba2", "full", "none", "none"]
    assert num_experts_of(shape) == [0, 0, 0, 8]


def test_names_say_it_too() -> None:
    """Newer configs list names."""
    names = ["mamba", "full_attention", "mlp", "moe"]
    by_name = tiny_shape("nemotron_h", **MAMBA, **EXPERTS, layers_block_type=names)

    assert by_name == tiny_shape("nemotron_h", **MAMBA, **EXPERTS, hybrid_override_pattern="M*-E")


def test_the_state_is_float32_unless_said_otherwise() -> None:
    """The recurrence is kept in float32 whatever the model's dtype."""
    state = tiny_shape("nemotron_h", **MAMBA, hybrid_override_pattern="M").layers[0].state

    assert state is not None
    assert state.dtype == "float32"


def test_experts_may_work_in_a_latent() -> None:
    """A narrower width inside the experts, with a projection down and up for all of them."""
    keys = {**MAMBA, **EXPERTS, "hybrid_override_pattern": "E"}
    count = count_parameters(tiny_shape("nemotron_h", **keys, moe_latent_size=16))

    assert count.experts == 8 * 2 * 16 * 32
    assert count.mlp == 2 * 64 * 16 + 2 * 64 * 7688


@pytest.mark.parametrize("pattern", ["MX", ["mamba", 3]])
def test_unknown_layers_are_refused(pattern: Any) -> None:
    """A letter that means nothing here is named with its key."""
    with pytest.raises(UnsupportedModelError, match="hybrid_override_pattern"):
        tiny_shape("nemotron_h", **MAMBA, hybrid_override_pattern=pattern)


@pytest.mark.parametrize("pattern", ["", 4, {"M": 1}])
def test_a_pattern_is_a_text_or_a_list(pattern: Any) -> None:
    """Anything else, and an empty one, is damaged."""
    with pytest.raises(CorruptFileError, match="hybrid_override_pattern"):
        tiny_shape("nemotron_h", **MAMBA, hybrid_override_pattern=pattern)
