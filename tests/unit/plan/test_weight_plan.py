"""Bytes of weights and rotary table, from a shape."""

from typing import cast

import pytest

from nanoserve.errors import OptionError
from nanoserve.kernels.panel_layout import WeightFormat, packed_bytes
from nanoserve.options import Quantization
from nanoserve.plan.weight_plan import (
    LinearFormat,
    choose_formats,
    plan_rope_bytes,
    plan_weights,
)
from nanoserve.units import MIB
from tests.plan_cases import SMOLLM2
from tests.tiny_models import tiny_spec

FORMATS = [
    LinearFormat("float32"),
    LinearFormat("bfloat16"),
    LinearFormat("float16"),
    LinearFormat("int8", 32),
    LinearFormat("int4", 32),
]


def test_tied_head_counts_once() -> None:
    """A head of its own adds an embedding's bytes."""
    tied, untied = (
        plan_weights(spec, "bfloat16", "none", is_packed=False).num_bytes
        for spec in (tiny_spec(tie_word_embeddings=True), tiny_spec())
    )

    assert untied - tied == 97 * 32 * 2


@pytest.mark.parametrize("one", FORMATS, ids=lambda one: one.name)
@pytest.mark.parametrize("shape", [(32, 64), (33, 64), (1, 32), (49152, 576), (100, 96)])
def test_the_kernels_pack_into_as_many_bytes(one: LinearFormat, shape: tuple[int, int]) -> None:
    """The plan and the packing count alike, rows that fill a panel up included."""
    form = cast("WeightFormat", one.name)

    assert one.num_bytes(*shape) == packed_bytes(*shape, form, one.group_size or shape[1])


def test_odd_inputs_fill_an_item_up() -> None:
    """Two inputs lie together in bfloat16, so five take the room of six."""
    assert LinearFormat("bfloat16").num_bytes(32, 5) == 32 * 6 * 2
    assert LinearFormat("float32").num_bytes(32, 5) == 32 * 5 * 4


def test_packing_adds_nothing_to_whole_panels() -> None:
    """Where every layer has a multiple of 32 outputs, packed weights take what plain ones do."""
    plain, packed = (
        plan_weights(SMOLLM2, "bfloat16", "none", is_packed=is_packed).num_bytes
        for is_packed in (False, True)
    )

    assert packed == plain == 269_030_016


@pytest.mark.parametrize(
    ("quantization", "layers", "head"),
    [("none", "bfloat16", "bfloat16"), ("int8", "int8", "int8"), ("int4", "int4", "int8")],
)
def test_the_head_never_has_four_bits(quantization: Quantization, layers: str, head: str) -> None:
    """Layers have what was asked for; a head in 4 bits would cost too much."""
    formats = choose_formats(quantization, "bfloat16")

    assert (formats.layers.name, formats.head.name) == (layers, head)


def test_an_untied_embedding_stays_a_plain_table() -> None:
    """Its bytes, with those of norms, are the compute dtype's."""
    spec = tiny_spec(intermediate_size=64)
    parts = dict(plan_weights(spec, "float32", "int8", is_packed=True).parts)

    norms = (2 * spec.num_layers + 1) * 32
    assert parts["float32"] == (97 * 32 + norms) * 4


def test_a_layer_that_cannot_be_cut_into_groups_is_refused() -> None:
    """48 inputs are no multiple of 32; the layer is named, and dense weights are packed."""
    spec = tiny_spec(intermediate_size=48)

    with pytest.raises(OptionError, match=r"48 inputs of down_proj leave 16 over"):
        plan_weights(spec, "float32", "int4", is_packed=True)
    assert plan_weights(spec, "float32", "none", is_packed=True).num_bytes > 0


def test_rotary_table_grows_with_the_context() -> None:
    """131,072 positions of 64 numbers, cos and sin, take 32 MiB in two bytes each."""
    assert plan_rope_bytes(tiny_spec(head_dim=64), 131072, 2) == 32 * MIB
