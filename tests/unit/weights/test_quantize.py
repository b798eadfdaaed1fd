"""Rows to 8 and 4 bits, and stored blocks whose bits are kept."""

import gguf
import pytest
import torch
from torch import Tensor

from nanoserve.kernels.row_quantizer import QuantizedRows
from nanoserve.plan.weight_plan import LinearFormat
from nanoserve.weights.quantize import can_keep, quantize_rows, split_blocks

INT8, INT4 = LinearFormat("int8", 32), LinearFormat("int4", 32)


def restored(rows: QuantizedRows) -> Tensor:
    values, scales, *minimums = (part.float() for part in rows)
    grouped = values.view(*scales.shape, -1) * scales[..., None]
    return (grouped + minimums[0][..., None] if minimums else grouped).flatten(1)


def random_rows(seed: int = 0) -> Tensor:
    return torch.randn(6, 96, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("type_name", ["Q8_0", "Q4_0", "Q4_1"])
def test_stored_blocks_are_taken_apart_without_a_change_of_value(type_name: str) -> None:
    """Values, scales and minimums give what the gguf package dequantises, bit for bit."""
    kind = gguf.GGMLQuantizationType[type_name]
    stored = gguf.quants.quantize(random_rows().numpy(), kind)

    rows = split_blocks(torch.from_numpy(stored).flatten(), type_name, (6, 96))

    expected = torch.from_numpy(gguf.quants.dequantize(stored, kind))
    assert torch.equal(restored(rows), expected)
    assert {part.dtype for part in rows[1:]} == {torch.float16}


def test_only_a_format_s_own_blocks_are_kept() -> None:
    """8-bit blocks for int8, 4-bit ones for int4, and only in groups as long as a block."""
    kept = [
        [can_keep(type_name, one) for type_name in ("Q8_0", "Q4_0", "Q4_1", "Q4_K", "F16")]
        for one in (INT8, INT4, LinearFormat("int8", 64), LinearFormat("bfloat16"))
    ]

    assert kept == [
        [True, False, False, False, False],
        [False, True, True, False, False],
        [False] * 5,
        [False] * 5,
    ]


def test_int8_rounds_to_the_nearest_of_255_steps() -> None:
    """No value is further off than half a step; the largest of a group is 127 of them."""
    rows = random_rows()

    values, scales = quantize_rows(rows, INT8)

    steps = scales.float().repeat_interleave(32, dim=1)
    assert (restored((values, scales)) - rows).abs().le(0.502 * steps).all()  # scales are rounded
    assert values.view(6, 3, 32).abs().amax(2).eq(127).all()


def test_int4_loses_no_more_than_an_even_spread() -> None:
    """The range of each group is cut where that makes the squared error smaller, never larger."""
    rows = random_rows()
    low, high = rows.view(6, 3, 32).amin(2), rows.view(6, 3, 32).amax(2)
    steps = (high - low)[..., None] / 15
    even = ((rows.view(6, 3, 32) - low[..., None]) / steps).round() * steps + low[..., None]

    chosen = restored(quantize_rows(rows, INT4)).view(6, 3, 32)

    def loss(candidate: Tensor) -> Tensor:
        return (candidate - rows.view(6, 3, 32)).square().sum(2)

    assert loss(chosen).le(loss(even) * 1.01).all()  # the even spread is not rounded to float16
    assert loss(chosen).sum() < 0.95 * loss(even).sum()


def weighted_loss(chosen: Tensor, rows: Tensor, importance: Tensor) -> Tensor:
    """Return the loss of each group, [rows, groups]."""
    return ((chosen - rows).square() * importance).view(len(rows), -1, 32).sum(2)


def uneven_importance() -> Tensor:
    return torch.rand(96, generator=torch.Generator().manual_seed(1)) ** 4


def test_int4_loses_least_where_it_matters() -> None:
    """By the importance of inputs the loss falls well below that of a fit that knows of none."""
    rows, importance = random_rows(), uneven_importance()

    known = weighted_loss(restored(quantize_rows(rows, INT4, importance)), rows, importance)

    unknown = weighted_loss(restored(quantize_rows(rows, INT4)), rows, importance)
    assert known.sum() < 0.8 * unknown.sum()


def test_int4_keeps_the_one_input_that_matters() -> None:
    """Its weights come back nearly as they were, whatever that costs the others."""
    rows, importance = random_rows(), torch.full((96,), 1e-3)
    importance[40] = 1000.0

    error = (restored(quantize_rows(rows, INT4, importance)) - rows).abs()

    assert error[:, 40].max() < 0.1 * error[:, 32:64].mean()


def test_only_the_ratios_of_importance_count() -> None:
    """On any scale the same values are chosen; all alike, or all 0, is as if none were known."""
    rows, importance = random_rows(), uneven_importance()

    by_scale = [
        restored(quantize_rows(rows, INT4, scale * importance))
        for scale in (2.0**-40, 1.0, 2.0**40)
    ]
    unknown = [
        restored(quantize_rows(rows, INT4, same))
        for same in (None, torch.zeros(96), torch.full((96,), 7.0))
    ]

    assert torch.equal(by_scale[0], by_scale[1])
    assert torch.equal(by_scale[1], by_scale[2])
    torch.testing.assert_close(unknown[1], unknown[0])
    torch.testing.assert_close(unknown[2], unknown[0])


def test_rows_are_quantised_each_on_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many are fitted at once."""
    rows, importance = random_rows(), uneven_importance()
    together = restored(quantize_rows(rows, INT4, importance))

    monkeypatch.setattr("nanoserve.kernels.row_quantizer._PIECE_VALUES", 96)

    torch.testing.assert_close(restored(quantize_rows(rows, INT4, importance)), together)


@pytest.mark.parametrize("one", [INT8, INT4], ids=["int8", "int4"])
def test_a_group_that_is_all_the_same_is_exact(one: LinearFormat) -> None:
    """Zeros stay zeros and a constant stays itself: nothing is divided by nothing."""
    rows = torch.zeros(2, 64)
    rows[1] = 0.5

    back = restored(quantize_rows(rows, one))

    torch.testing.assert_close(back, rows, rtol=1e-3, atol=0)
    assert back[0].eq(0).all()


def test_what_was_in_four_bits_is_found_again() -> None:
    """Values on a 4-bit grid are quantised to that grid."""
    kind = gguf.GGMLQuantizationType.Q4_1
    on_grid = torch.from_numpy(
        gguf.quants.dequantize(gguf.quants.quantize(random_rows().numpy(), kind), kind)
    )

    torch.testing.assert_close(restored(quantize_rows(on_grid, INT4)), on_grid, rtol=0, atol=2e-3)
