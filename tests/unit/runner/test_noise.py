"""`noise` is a fixed function of seed, position and index that looks random."""

import math

import pytest
import torch
from torch import Tensor

from nanoserve.runner.noise import exponential, stream_keys
from tests.sampling_reference import exponential as reference_exponential

CPU = torch.device("cpu")


def noise(seeds: list[int], positions: list[int], num_indices: int) -> Tensor:
    return exponential(stream_keys(seeds, positions, CPU), torch.arange(num_indices))


def chi_square(values: Tensor, num_bins: int = 100) -> float:
    """Return chi-square of exponential noise made uniform, in standard deviations."""
    bins = ((-values).exp() * num_bins).long().flatten()
    expected = values.numel() / num_bins
    statistic = float(((bins.bincount(minlength=num_bins) - expected) ** 2 / expected).sum())
    return (statistic - num_bins) / math.sqrt(2 * num_bins)


def test_known_values() -> None:
    """The values are pinned: a recorded answer can be drawn again by a later version."""
    found = noise([1, -7], [2, 300], 2).flatten().tolist()

    expected = [0.4771602058167766, 0.7124234032429968, 0.4276849299312179, 0.4868616641241098]
    assert found == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("seed", [-(2**63), -1, 0, 12345, 2**63 - 1])
def test_the_noise_is_splitmix64(seed: int) -> None:
    """Arithmetic on int64 gives the bits of the algorithm on unsigned numbers."""
    keys = stream_keys([seed], [777], CPU)
    indices = [0, 1, 63, 2**32 + 5, 2**40]

    found = exponential(keys, torch.tensor([indices]))[0].tolist()

    expected = [reference_exponential(seed, 777, index) for index in indices]
    assert found == pytest.approx(expected, rel=1e-12)


def test_noise_is_a_function_of_its_row_alone() -> None:
    """Neighbours and the number of indices change nothing, and a seed counts modulo 2**64."""
    crowd = noise([5, 6, 7], [1, 2, 3], 900)

    assert torch.equal(noise([6], [2], 900)[0], crowd[1])
    assert torch.equal(noise([6 - 2**64], [2], 40)[0], crowd[1, :40])


@pytest.mark.parametrize(
    ("seeds", "positions", "num_indices"),
    [
        ([11], [4], 200_000),
        (list(range(200_000)), [4] * 200_000, 1),
        ([11] * 200_000, list(range(200_000)), 1),
    ],
    ids=["index", "seed", "position"],
)
def test_noise_is_exponential_along_every_axis(
    seeds: list[int], positions: list[int], num_indices: int
) -> None:
    """Neighbouring seeds, positions and indices spread evenly and do not follow each other."""
    values = noise(seeds, positions, num_indices).flatten()

    assert abs(chi_square(values)) < 5
    assert float(values.min()) > 0.0
    assert float(values.max()) < 37.0
    assert len(set(values.tolist())) == len(values)
    assert abs(float(torch.corrcoef(torch.stack([values[1:], values[:-1]]))[0, 1])) < 0.012


def test_seeds_and_positions_do_not_share_streams() -> None:
    """The stream of the next seed is not this seed's at the next position."""
    keys = stream_keys([s for s in range(300) for _ in range(300)], [*range(300)] * 300, CPU)

    assert len(set(keys.tolist())) == 90_000
