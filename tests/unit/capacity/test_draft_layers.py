"""Layers that guess ahead: parameters and bytes beside a plan that does not count them."""

from dataclasses import replace

import pytest

from nanoserve.capacity.draft_layers import draft_layers
from nanoserve.capacity.plan_choices import choose_plan
from nanoserve.capacity.plan_json import plan_as_dict
from nanoserve.spec.read_model import planned_model_of
from tests.planner import planned, query
from tests.shape_cases import TINY


def test_deepseek_v3_has_one() -> None:
    """Attention, 257 experts, a router, a projection of two inputs: 11.6 B, on 8 ranks."""
    asked = query("deepseek-v3", "8x h200")
    drafts = draft_layers(asked, choose_plan(asked))

    assert drafts is not None
    attention = 7168 * 1536 + 1536 * 128 * 192 + 7168 * 576 + 512 * 128 * 256 + 128 * 128 * 7168
    experts = 257 * 3 * 7168 * 2048 + 7168 * 256
    assert drafts.num_layers == 1
    expected = attention + experts + 2 * 7168 * 7168
    assert drafts.num_params == pytest.approx(expected, abs=60_000)  # norms and biases
    projection = 2 * 2 * 7168 * 7168  # whole on every rank, in 16 bits; the rest a byte each
    assert drafts.device_bytes == pytest.approx((attention + experts) / 8 + projection, rel=0.02)


def test_the_plan_says_them_and_does_not_count_them() -> None:
    """They are a note, and a group of their own in JSON."""
    plan = planned("deepseek-v3", "8x h200")
    found = plan_as_dict(plan)

    note = next(note for note in plan.notes if "multi-token" in note)
    assert note.startswith("not counted: 1 layer of multi-token prediction")
    assert "11.61 B parameters, 1.55 GiB of each GPU" in note
    assert found["draft_layers"]["num_params"] + found["parameters"] == pytest.approx(
        682.6e9, rel=0.001
    )


def test_other_models_have_none() -> None:
    """Without the key there is no note."""
    plan = planned("llama-3.1-8b")

    assert plan_as_dict(plan)["draft_layers"] is None
    assert not any("multi-token" in note for note in plan.notes)


def test_a_family_whose_layers_are_not_known_is_named_without_bytes() -> None:
    """The count is the config's; no size is made up."""
    model = planned_model_of("tiny", TINY | {"num_nextn_predict_layers": 3}, "config.json")
    asked = replace(query(), model=model)
    drafts = draft_layers(asked, choose_plan(asked))

    assert drafts is not None
    assert (drafts.num_layers, drafts.num_params, drafts.device_bytes) == (3, None, None)
    assert drafts.words == (
        "not counted: 3 layers of multi-token prediction, loaded only to guess ahead"
    )
