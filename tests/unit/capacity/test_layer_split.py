"""llama.cpp's division of layers: by its own formula, nothing twice and nothing lost."""

from collections import Counter

import pytest

from nanoserve.capacity.layer_split import split_layers
from nanoserve.capacity.plan_answer import answer
from nanoserve.errors import OptionError
from nanoserve.spec.model_shape import ModelShape
from nanoserve.spec.quant_spec import find_weight_format
from nanoserve.spec.read_model import read_planned_model
from tests.planner import planned, query

Q4 = find_weight_format("Q4_K_M")


def shape_of(model: str) -> ModelShape:
    return read_planned_model(model).shape


@pytest.mark.parametrize(
    ("num_gpus", "layers"),
    [(1, [32]), (2, [17, 15]), (3, [11, 11, 10]), (4, [9, 8, 8, 7]), (8, [5, 4, 4, 4, 4, 4, 4, 3])],
)
def test_the_output_counts_as_a_layer(num_gpus: int, layers: list[int]) -> None:
    """Layer i of 32 lies on the first GPU whose share of 33 ends past it."""
    parts = split_layers(shape_of("llama-3.1-8b"), num_gpus)

    assert [part.num_layers for part in parts] == layers
    assert [part.first_layer for part in parts] == [sum(layers[:n]) for n in range(num_gpus)]


@pytest.mark.parametrize("model", ["llama-3.1-8b", "llama-3.2-1b", "gemma-3-27b"])
@pytest.mark.parametrize("num_gpus", [1, 2, 5])
def test_all_but_the_embedding_is_on_some_gpu(model: str, num_gpus: int) -> None:
    """It stays with the host; a tied head has a copy on the last GPU."""
    shape = shape_of(model)
    held = Counter(weight for part in split_layers(shape, num_gpus) for weight in part.outside)
    on_host = {w for w in shape.weights if w.group == "embedding"}
    expected = Counter(shape.weights)
    if not shape.tie_word_embeddings:
        expected -= Counter(on_host)

    assert held == expected
    assert Counter(split_layers(shape, 1, on_host=True)[0].outside) == Counter(shape.weights)


def test_more_gpus_than_layers_are_refused() -> None:
    """Each holds a layer at least."""
    with pytest.raises(OptionError, match="whole layers of the 16"):
        split_layers(shape_of("llama-3.2-1b"), 17)


def test_cards_hold_layers_and_their_keys() -> None:
    """A quarter of the layers' cache on each of four, and no share of each layer."""
    plan = planned("llama-3.1-70b", "4x rtx 4090", engine="llama.cpp", weight_format=Q4)

    assert (plan.choices.tp, plan.choices.pp, len(plan.stages)) == (1, 4, 4)
    assert [stage.weights.num_layers for stage in plan.stages] == [21, 20, 20, 19]
    assert plan.kv_facts.token_bytes == plan.stage.weights.num_layers * 8 * 128 * 2 * 2
    assert "--split-mode layer --tensor-split 1,1,1,1" in (plan.command or "")
    lone = planned("llama-3.1-70b", "b300", engine="llama.cpp", weight_format=Q4)
    assert "--split-mode" not in (lone.command or "")
    together = sum(stage.weights.num_params for stage in plan.stages)
    assert together == lone.stage.weights.num_params == plan.num_params - 128256 * 8192


def test_the_fattest_card_decides() -> None:
    """A head of 262,144 words makes the last of two cards the tight one."""
    plan = planned("gemma-3-27b", "2x rtx 4090", engine="llama.cpp", weight_format=Q4)
    weights = [stage.weights.weight_bytes.mid for stage in plan.stages]

    assert plan.binding == min(range(2), key=lambda n: plan.stages[n].pool.mid)
    assert max(weights) < 1.2 * min(weights)


def test_ranks_of_a_layer_are_refused_by_name() -> None:
    """Modes row and tensor are not planned; one rank each are copies, --pp says how many share."""
    with pytest.raises(OptionError, match="row and tensor are not planned"):
        query("llama-3.1-8b", "2x h100", engine="llama.cpp", tp=2)

    copies = query("llama-3.1-8b", "4x h100", engine="llama.cpp", tp=1)
    pairs = query("llama-3.1-8b", "4x h100", engine="llama.cpp", pp=2)
    assert (copies.num_stages, copies.num_replicas) == (1, 4)
    assert (pairs.num_stages, pairs.num_replicas) == (2, 2)
    assert len(answer(pairs).stages) == 2
