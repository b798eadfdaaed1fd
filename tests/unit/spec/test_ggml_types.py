"""Our table of storage formats is gguf's."""

from gguf.constants import GGML_QUANT_SIZES

from nanoserve.spec.ggml_types import BLOCK_BYTES, GGML_TYPES


def test_every_row_equals_the_packages() -> None:
    """Names, values and bytes of each block are those of the gguf package, and none is missing."""
    theirs = {int(kind): (kind.name, *sizes) for kind, sizes in GGML_QUANT_SIZES.items()}

    assert {type_id: tuple(kind) for type_id, kind in GGML_TYPES.items()} == theirs


def test_a_block_of_q4_1() -> None:
    """Q4_1 keeps 32 values in 20 bytes: fp16 scale and minimum, and 16 bytes of halves."""
    assert BLOCK_BYTES["Q4_1"] == 20
