"""Bytes of weights and rotary table, from a shape."""

from nanoserve.plan.weight_plan import plan_rope_bytes, plan_weight_bytes
from nanoserve.units import MIB
from tests.tiny_models import tiny_spec


def test_tied_head_counts_once() -> None:
    """A head of its own adds an embedding's bytes."""
    tied, untied = tiny_spec(tie_word_embeddings=True), tiny_spec()

    assert plan_weight_bytes(untied, 2) - plan_weight_bytes(tied, 2) == 97 * 32 * 2


def test_rotary_table_grows_with_the_context() -> None:
    """131,072 positions of 64 numbers, cos and sin, take 32 MiB in two bytes each."""
    assert plan_rope_bytes(tiny_spec(head_dim=64), 131072, 2) == 32 * MIB
