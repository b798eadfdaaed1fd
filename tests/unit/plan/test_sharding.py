"""How ranks and stages divide a model, and which numbers of ranks do not."""

from dataclasses import replace
from typing import Any

import pytest

from nanoserve.errors import OptionError
from nanoserve.plan.sharding import (
    check_tp,
    groups_on_rank,
    kv_heads_on_rank,
    params_on_rank,
    plan_stages,
    valid_tp,
)
from nanoserve.spec.model_shape import Weight
from nanoserve.spec.param_count import count_parameters
from tests.shape_cases import LATENT, tiny_shape


@pytest.mark.parametrize(("tp", "heads"), [(1, 8), (2, 4), (8, 1), (16, 1)])
def test_kv_heads_are_replicated_past_one_per_rank(tp: int, heads: int) -> None:
    """8 KV heads divide until each rank has one."""
    assert kv_heads_on_rank(8, tp) == heads


@pytest.mark.parametrize(("groups", "tp", "on_rank"), [(8, 4, 2), (1, 4, 1), (3, 2, 1)])
def test_groups_are_replicated_where_they_do_not_divide(groups: int, tp: int, on_rank: int) -> None:
    """Groups of a Mamba-2 are made up to the ranks."""
    assert groups_on_rank(groups, tp) == on_rank


@pytest.mark.parametrize(
    ("changes", "tp", "match"),
    [
        ({}, 0, "at least 1"),
        ({}, 3, "vocabulary of 128"),
        ({"vocab_size": 192}, 3, "4 query heads"),
        ({"num_attention_heads": 8, "num_key_value_heads": 4, "vocab_size": 384}, 6, "query heads"),
        ({"vocab_size": 384, "num_attention_heads": 12, "num_key_value_heads": 4,
          "head_dim": 8}, 6, "4 KV heads"),
        ({"intermediate_size": 98}, 4, "98 wide"),
    ],
)  # fmt: skip
def test_ranks_that_do_not_divide_are_refused(changes: dict[str, Any], tp: int, match: str) -> None:
    """The message says what is odd to the number, and which numbers do."""
    with pytest.raises(OptionError, match=match):
        check_tp(tiny_shape(**changes), tp)


def test_recurrent_heads_must_divide_too() -> None:
    """A Mamba-2 of 6 heads cannot be on 4 ranks."""
    shape = tiny_shape("mamba2", num_heads=6, head_dim=16, expand=2)

    with pytest.raises(OptionError, match="6 heads"):
        check_tp(shape, 4)


def test_the_valid_numbers_are_named() -> None:
    """Every number that is offered is accepted."""
    shape = tiny_shape()

    assert valid_tp(shape, 8) == (1, 2, 4)
    for tp in valid_tp(shape):
        check_tp(shape, tp)


def test_a_latent_does_not_limit_the_ranks() -> None:
    """Its one shared key is on every rank; the query heads divide."""
    assert valid_tp(tiny_shape("deepseek_v2", **LATENT, num_experts=4, num_experts_per_tok=1,
                               moe_intermediate_size=32), 8) == (1, 2, 4)  # fmt: skip


@pytest.mark.parametrize(
    ("weight", "tp", "num_params"),
    [
        (Weight("norms", 64), 4, 64),
        (Weight("mlp", 96, 64, split="even"), 4, 24 * 64),
        (Weight("attention", 32, 64, split="kv"), 2, 16 * 64),
        (Weight("attention", 32, 64, split="kv"), 4, 16 * 64),
        (Weight("embedding", 100, 64, split="vocab"), 2, 64 * 64),
    ],
)
def test_a_rank_holds_its_part(weight: Weight, tp: int, num_params: int) -> None:
    """Norms are whole, projections divide, K and V with their 2 heads, rows are padded to 64."""
    assert params_on_rank(weight, num_kv_heads=2, tp=tp) == num_params


def test_one_stage_holds_the_model() -> None:
    """Without stages or ranks the parameters are all there."""
    shape = tiny_shape()
    (stage,) = plan_stages(shape, pp=1)

    assert (stage.first_layer, stage.num_layers) == (0, 4)
    assert stage.num_params == count_parameters(shape).total


def test_stages_hold_the_model_between_them() -> None:
    """Untied, nothing is on two stages; the embedding is on the first, the head on the last."""
    shape = tiny_shape()
    first, last = plan_stages(shape, pp=2)

    assert first.num_params + last.num_params == count_parameters(shape).total
    assert last.num_params - first.num_params == 64  # the last norm


def test_a_tied_head_is_a_second_copy() -> None:
    """The last stage cannot read the first one's embedding."""
    shape = tiny_shape(tie_word_embeddings=True)
    stages = plan_stages(shape, pp=2)

    total = sum(stage.num_params for stage in stages)
    assert total == count_parameters(shape).total + 128 * 64


def test_layers_left_over_go_before_the_last_stage() -> None:
    """The last stage has the head to carry."""
    layers = tiny_shape().layers[:1] * 7
    stages = plan_stages(replace(tiny_shape(), layers=layers), pp=3)

    assert [stage.num_layers for stage in stages] == [2, 3, 2]
    assert [stage.first_layer for stage in stages] == [0, 2, 5]


def test_layers_without_attention_are_divided_too() -> None:
    """A recurrent layer has no KV heads to divide by."""
    shape = tiny_shape("mamba2", num_heads=8, head_dim=16)
    (stage,) = plan_stages(shape, pp=1, tp=2)

    assert stage.num_params < count_parameters(shape).total


@pytest.mark.parametrize("pp", [0, 5])
def test_a_stage_has_a_layer(pp: int) -> None:
    """There are from one stage to one per layer."""
    with pytest.raises(OptionError, match=f"--pp {pp} .* 4 layers"):
        plan_stages(tiny_shape(), pp)
