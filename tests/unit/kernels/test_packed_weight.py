"""A packed weight loses nothing that its format keeps, and has the bytes that were planned."""

import mmap
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nanoserve.errors import KernelError
from nanoserve.kernels.packed_weight import (
    activation_group_size,
    gather_rows,
    pack,
    pack_int4,
    pack_int8,
    quantize_int4,
    quantize_int8,
    scratch_bytes,
    unpack,
)
from nanoserve.kernels.panel_layout import PANEL_OUTPUTS, PanelMemory, WeightFormat, packed_bytes
from tests.native_kernels import native_kernels, needs_kernels
from tests.packed_weights import DENSE, FORMATS, random_packed

out_sizes = st.sampled_from([1, 31, 32, 33, 96, 100])
in_sizes = st.sampled_from([1, 3, 8, 30, 64, 97])


@settings(max_examples=40, deadline=None)
@given(out_size=out_sizes, in_size=in_sizes, format=st.sampled_from(DENSE))
def test_a_dense_weight_comes_back_bit_for_bit(
    out_size: int, in_size: int, format: WeightFormat
) -> None:
    """Whatever lies beyond the last output or input."""
    weight = torch.randn(out_size, in_size).to(getattr(torch, format))

    packed = pack(weight)

    assert torch.equal(unpack(packed), weight.float())
    assert packed.dtype == weight.dtype


@settings(max_examples=40, deadline=None)
@given(
    out_size=out_sizes,
    groups=st.sampled_from([(1, 1), (1, 30), (1, 97), (2, 32), (3, 64), (1, 96)]),
    seed=st.integers(0, 99),
)
def test_integers_and_scales_come_back_exactly(
    out_size: int, groups: tuple[int, int], seed: int
) -> None:
    """Bits that a file brings mean the same afterwards, -128 and float16's smallest included."""
    torch.manual_seed(seed)
    num_groups, group_size = groups
    shape = (out_size, num_groups, group_size)
    scales = (torch.randn(out_size, num_groups) * 1e-3).half()
    minimums = torch.randn(out_size, num_groups).half()
    eight = torch.randint(-128, 128, shape, dtype=torch.int8)
    four = torch.randint(0, 16, shape, dtype=torch.uint8)

    int8 = unpack(pack_int8(eight.flatten(1), scales))
    int4 = unpack(pack_int4(four.flatten(1), scales, minimums))

    by_group = scales[:, :, None].float()
    assert torch.equal(int8, (eight * by_group).flatten(1))
    assert torch.equal(int4, (four * by_group + minimums[:, :, None].float()).flatten(1))


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("shape", [(1, 1, 1), (33, 7, 7), (40, 96, 32), (64, 576, 64)])
def test_the_bytes_are_those_that_were_planned(
    format: WeightFormat, shape: tuple[int, int, int]
) -> None:
    """Padding and scales included, in memory of its own or taken from a piece."""
    out_size, in_size, group_size = shape
    expected = packed_bytes(out_size, in_size, format, group_size)
    group = group_size if format in ("int8", "int4") else in_size
    packed = random_packed(format, out_size, in_size, group)

    assert packed.num_bytes == expected
    assert packed.group_size == group


def test_bytes_of_a_known_shape() -> None:
    """33 outputs of 64 inputs take two panels; a group of 32 has two bytes of scale."""
    assert packed_bytes(33, 64, "bfloat16", 64) == 64 * 64 * 2
    assert packed_bytes(33, 64, "int8", 64) == 64 * (64 + 2)
    assert packed_bytes(33, 64, "int4", 32) == 64 * (32 + 2 * 4)


@settings(max_examples=30, deadline=None)
@given(group_size=st.sampled_from([32, 64, 96]), scale=st.sampled_from([1e-9, 1e-3, 1.0, 1e3]))
def test_eight_bits_err_by_half_a_step(group_size: int, scale: float) -> None:
    """And by what float16 makes of a tiny scale."""
    weight = torch.randn(40, 192) * scale

    error = (unpack(quantize_int8(weight, group_size)) - weight).abs()

    most = weight.view(40, -1, group_size).abs().amax(dim=2, keepdim=True)
    bound = (most / 127 * 0.51 + 127 * most / 127 * 2**-11 + 2.0**-17).expand(-1, -1, group_size)
    assert (error <= bound.flatten(1)).all()


@settings(max_examples=20, deadline=None)
@given(
    offset=st.sampled_from([-3.0, 0.0, 0.5]),
    scale=st.sampled_from([0.01, 1.0]),
    seed=st.integers(0, 9),
)
def test_four_bits_do_better_than_the_range(offset: float, scale: float, seed: int) -> None:
    """Fitted scale and minimum err less, in the square, than smallest and largest weight."""
    torch.manual_seed(seed)
    weight = (torch.randn(16, 128) + offset) * scale
    groups = weight.view(16, 4, 32)
    low, high = groups.amin(2, keepdim=True), groups.amax(2, keepdim=True)
    step = (high - low) / 15
    of_range = ((groups - low) / step).round() * step + low

    error = (unpack(quantize_int4(weight)) - weight).square().sum()

    assert error < 0.95 * (of_range - groups).square().sum()


@pytest.mark.parametrize("quantize", [quantize_int8, quantize_int4])
@pytest.mark.parametrize("value", [0.0, 1.0, -2.5])
def test_equal_weights_stay_equal(quantize: Any, value: float) -> None:
    """A group without a range, all zeros included, is itself to within float16."""
    weight = torch.full((3, 64), value)

    torch.testing.assert_close(unpack(quantize(weight, 32)), weight, atol=0, rtol=1e-3)


def test_rows_are_gathered_by_their_numbers() -> None:
    """In any order, and twice."""
    packed = random_packed("int4", 100, 64, 32)
    ids = torch.tensor([99, 0, 33, 33])

    assert torch.equal(gather_rows(packed, ids), unpack(packed)[ids])


@pytest.mark.parametrize("group_size", [16, 48, 40, 128])
def test_groups_that_no_kernel_has_are_refused(group_size: int) -> None:
    """They divide the inputs in multiples of 32, or are all of them."""
    weight = torch.randn(4, 96)
    for quantize in (quantize_int8, quantize_int4):
        with pytest.raises(KernelError, match=f"Groups of {group_size} cannot.*96 inputs"):
            quantize(weight, group_size)


def test_scales_that_make_no_groups_are_refused() -> None:
    """As are those of a file."""
    with pytest.raises(KernelError, match="5 scales for 96 inputs"):
        pack_int8(torch.zeros(2, 96, dtype=torch.int8), torch.ones(2, 5))


def test_a_dtype_that_is_no_weight_s_is_refused() -> None:
    """The error names it."""
    with pytest.raises(KernelError, match="float64 cannot be packed"):
        pack(torch.zeros(2, 2, dtype=torch.float64))


@pytest.mark.parametrize(
    ("group_size", "expected"), [(32, 32), (64, 64), (96, 96), (576, 96), (1536, 128), (97, 97)]
)
def test_activations_share_scales_in_whole_items(group_size: int, expected: int) -> None:
    """Their groups divide those of the weight, up to 128 inputs."""
    assert activation_group_size(group_size) == expected


def test_quantized_activations_need_scratch() -> None:
    """A byte for each input, rounded up to a cache line, and 12 for each group."""
    assert scratch_bytes(random_packed("bfloat16", 32, 96, 96), 5) == 0
    assert scratch_bytes(random_packed("int8", 32, 96, 96), 5) == 5 * (128 + 12)
    assert scratch_bytes(random_packed("int4", 32, 96, 32), 5) == 5 * (128 + 3 * 12)


def test_one_piece_of_memory_serves_many_weights() -> None:
    """They lie at cache lines, do not overlap, and what is not left is refused."""
    first, second = torch.randn(40, 24), torch.randn(33, 7).bfloat16()
    num_bytes = packed_bytes(40, 24, "float32", 24)
    memory = PanelMemory(num_bytes + packed_bytes(33, 7, "bfloat16", 7))

    packed = pack(first, memory), pack(second, memory)

    assert torch.equal(unpack(packed[0]), first)
    assert torch.equal(unpack(packed[1]), second.float())
    assert all(weight.data.data_ptr() % 64 == 0 for weight in packed)
    with pytest.raises(KernelError, match="1 bytes of weights do not fit the 0 left"):
        memory.take(1)


def test_weights_lie_in_small_pages_where_there_are_no_huge_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A kernel built without them refuses the advice."""
    unknown = 12345
    monkeypatch.setattr(mmap, "MADV_HUGEPAGE", unknown, raising=False)

    assert len(PanelMemory(100).take(100)) == 100


@needs_kernels
def test_the_operators_have_the_same_panels() -> None:
    """Both sides of the layout name the same number of outputs."""
    assert native_kernels().panel_outputs == PANEL_OUTPUTS
