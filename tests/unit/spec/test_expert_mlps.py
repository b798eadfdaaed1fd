"""Which layers have experts, by each rule, and what the experts are."""

from typing import Any

import pytest

from nanoserve.errors import CorruptFileError
from nanoserve.spec.param_count import count_active_parameters, count_parameters
from tests.shape_cases import EXPERTS, LATENT, num_experts_of, tiny_shape

JAMBA = {"attn_layer_period": 2, "attn_layer_offset": 1, "expert_layer_period": 2}


@pytest.mark.parametrize(
    ("model_type", "changes", "experts"),
    [
        ("mixtral", {}, [8, 8, 8, 8]),
        ("glm4_moe", {"first_k_dense_replace": 3}, [0, 0, 0, 8]),
        ("deepseek_v2", LATENT | {"moe_layer_freq": 2}, [8, 0, 8, 0]),
        ("qwen3_moe", {"decoder_sparse_step": 2}, [0, 8, 0, 8]),
        ("qwen3_moe", {"mlp_only_layers": [0, 3]}, [0, 8, 8, 0]),
        ("llama4_text", {"interleave_moe_layer_step": 2}, [0, 8, 0, 8]),
        ("llama4_text", {"moe_layers": [2]}, [0, 0, 8, 0]),
        ("jamba", JAMBA | {"expert_layer_offset": 0}, [8, 0, 8, 0]),
        ("jamba", JAMBA | {"num_experts": 1, "num_experts_per_tok": 1}, [0, 0, 0, 0]),
        ("ernie4_5_moe", {}, [0, 8, 8, 8]),
        ("ernie4_5_moe", {"moe_layer_start_index": 0, "moe_layer_end_index": 1}, [8, 8, 0, 0]),
        ("step3p5", {}, [0, 0, 0, 8]),
        ("step3p5", {"moe_layers_enum": "1, 2"}, [0, 8, 8, 0]),
        ("glm4_moe", {"mlp_layer_types": ["sparse", "dense"] * 2}, [8, 0, 8, 0]),
        ("mimo_v2_flash", {"moe_layer_freq": [0, 1, 1, 0], "sliding_window": 8}, [0, 8, 8, 0]),
    ],
)
def test_each_rule_says_which_layers_have_experts(
    model_type: str, changes: dict[str, Any], experts: list[int]
) -> None:
    """By count, by step, by list, by period and by range; lists count first."""
    assert num_experts_of(tiny_shape(model_type, **{**EXPERTS, **changes})) == experts


@pytest.mark.parametrize(
    ("model_type", "changes", "match"),
    [
        ("glm4_moe", {"moe_layer_freq": [1, 2, 0, 0]}, "moe_layer_freq"),
        ("glm4_moe", {"moe_layer_freq": [1]}, "moe_layer_freq"),
        ("step3p5", {"moe_layers_enum": "1-2"}, "moe_layers_enum"),
        ("mixtral", {"num_experts_per_tok": 9}, "num_experts_per_tok"),
    ],
)
def test_odd_lists_and_counts_are_refused(
    model_type: str, changes: dict[str, Any], match: str
) -> None:
    """A list of other than a 0 or 1 per layer, and more experts than there are."""
    with pytest.raises(CorruptFileError, match=match):
        tiny_shape(model_type, **{**EXPERTS, **changes})


def test_one_token_reads_the_experts_chosen_for_it() -> None:
    """Memory follows the total, reading the active parameters: 2 of 8 experts."""
    shape = tiny_shape("mixtral", **EXPERTS)

    experts = count_parameters(shape).experts
    assert experts == 4 * 8 * 3 * 64 * 96
    assert count_active_parameters(shape).experts == experts // 4


def test_a_shared_expert_is_dense_and_may_have_a_gate() -> None:
    """Qwen2-MoE's shared expert has its own width and a gate of one row."""
    shared = {"shared_expert_intermediate_size": 40}
    count = count_parameters(tiny_shape("qwen2_moe", **EXPERTS, **shared))

    assert count.mlp == 4 * 3 * 64 * 40
    assert count.router == 4 * (8 + 1) * 64
