"""The native fit to 4 bits: as good as torch's, whatever the rows."""

import pytest
import torch
from torch import Tensor

from nanoserve.kernels.row_quantizer import QuantizedRows, quantize_int4_rows
from tests.native_kernels import native_kernels, needs_kernels

pytestmark = needs_kernels
GROUP = 32


def native_fit(rows: Tensor, importance: Tensor | None = None) -> QuantizedRows:
    return quantize_int4_rows(rows, GROUP, importance, native_kernels())


def group_losses(fit: QuantizedRows, rows: Tensor, importance: Tensor) -> Tensor:
    """Return the weighted squared error of each group, [rows, groups]."""
    values, scales, minimums = (part.double() for part in fit)
    groups = values.view(len(rows), -1, GROUP) * scales[..., None] + minimums[..., None]
    errors = (groups.flatten(1) - rows.double()).square() * importance
    return errors.view(groups.shape).sum(2)


def plain_fit(rows: Tensor) -> QuantizedRows:
    """Spread the 16 values evenly over each group's range."""
    groups = rows.float().view(len(rows), -1, GROUP)
    minimums = groups.amin(2).half()
    scales = ((groups.amax(2) - groups.amin(2)) / 15).half()
    steps = (groups - minimums.float()[..., None]) / scales.float()[..., None]
    return steps.round().clamp(0, 15).to(torch.uint8).flatten(1), scales, minimums


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("num_rows", [1, 15, 16, 17, 70])
@pytest.mark.parametrize("num_inputs", [32, 160])
def test_no_group_loses_more_than_by_its_range(
    dtype: torch.dtype, num_rows: int, num_inputs: int
) -> None:
    """The whole range is the first try, and a later one is taken only if it loses less."""
    generator = torch.Generator().manual_seed(num_rows + num_inputs)
    rows = (torch.randn(num_rows, num_inputs, generator=generator) * 0.02).to(dtype)
    rows[0, :3] *= 20  # outliers, for which ends are cut off
    importance = torch.rand(num_inputs, generator=generator) + 0.01

    losses = group_losses(native_fit(rows, importance), rows, importance)

    assert (losses <= 1.001 * group_losses(plain_fit(rows), rows, importance)).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_it_loses_what_torch_loses(dtype: torch.dtype) -> None:
    """Sums in another order end in another fit here and there, and lose as little in all."""
    generator = torch.Generator().manual_seed(0)
    rows = (torch.randn(256, 256, generator=generator) * 0.02).to(dtype)
    importance = torch.rand(256, generator=generator) + 0.01

    native = group_losses(native_fit(rows, importance), rows, importance)

    torch_losses = group_losses(quantize_int4_rows(rows, GROUP, importance), rows, importance)
    assert abs(native.sum() / torch_losses.sum() - 1) <= 1e-3
    is_alike = (native - torch_losses).abs() <= 1e-4 * torch_losses
    assert is_alike.float().mean() >= 0.95


def test_importance_is_asked() -> None:
    """Its loss by importance is less than that of a fit that knows of none."""
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(64, 256, generator=generator)
    importance = torch.logspace(0, 3, 256)[torch.randperm(256, generator=generator)]

    known = group_losses(native_fit(rows, importance), rows, importance)

    assert known.sum() < 0.9 * group_losses(native_fit(rows), rows, importance).sum()


def test_a_row_depends_on_no_other() -> None:
    """A row's bits are the same alone and wherever it stands among others."""
    rows = torch.randn(37, 96, generator=torch.Generator().manual_seed(1))

    together = native_fit(rows)

    for row in (0, 15, 16, 36):
        for part, alone in zip(together, native_fit(rows[row : row + 1]), strict=True):
            assert torch.equal(part[row : row + 1], alone)


@pytest.mark.parametrize("value", [0.0, 0.25, -3.0])
def test_a_group_of_one_value_is_kept(value: float) -> None:
    """Such a group has no range, and float16 holds these values."""
    values, scales, minimums = native_fit(torch.full((3, 64), value))

    restored = values.view(3, 2, GROUP) * scales[..., None] + minimums[..., None]
    assert (restored == value).all()


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 3e38])
def test_no_value_spoils_other_groups(value: float) -> None:
    """What is no number that float16 holds stays in its group; integers stay below 16."""
    rows = torch.randn(20, 96, generator=torch.Generator().manual_seed(2))
    spoilt = rows.clone()
    spoilt[5, 40] = value

    fits = native_fit(rows), native_fit(spoilt)

    assert fits[1][0].max() <= 15
    for sound, beside in zip(*fits, strict=True):
        sound_groups, beside_groups = sound.view(20, 3, -1), beside.view(20, 3, -1)
        assert torch.equal(sound_groups[:5], beside_groups[:5])
        assert torch.equal(sound_groups[5, ::2], beside_groups[5, ::2])
        assert torch.equal(sound_groups[6:], beside_groups[6:])


def test_other_groups_are_torchs() -> None:
    """The operator knows groups of 32 alone; others are fitted as without it."""
    rows = torch.randn(4, 128, generator=torch.Generator().manual_seed(3))

    fits = (quantize_int4_rows(rows, 64, None, found) for found in (native_kernels(), None))

    for native, plain in zip(*fits, strict=True):
        assert torch.equal(native, plain)
