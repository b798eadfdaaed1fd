"""`uniform` is a fixed function of seed and position that looks random."""

import statistics

import pytest

from nanoserve.runner.uniform import uniform


def test_the_same_seed_and_position_give_the_same_number() -> None:
    """The value is pinned: a recorded answer can be drawn again by a later version."""
    assert uniform(1, 2) == uniform(1, 2)
    assert uniform(1, 2) == pytest.approx(0.3806944699843844, abs=0)


@pytest.mark.parametrize("seed", [-(2**63), -1, 0, 2**63 - 1, 2**70 + 3])
def test_every_seed_gives_a_number_from_0_to_below_1(seed: int) -> None:
    """Negative seeds and those past 64 bits are taken modulo 2**64."""
    assert 0.0 <= uniform(seed, 0) < 1.0
    assert uniform(seed, 0) == uniform(seed % 2**64, 0)


def test_numbers_spread_evenly() -> None:
    """Neighbouring seeds and positions are independent: mean, spread and no repeats."""
    numbers = [uniform(seed, position) for seed in range(100) for position in range(100)]

    assert len(set(numbers)) == len(numbers)
    assert statistics.fmean(numbers) == pytest.approx(0.5, abs=0.01)
    assert statistics.pvariance(numbers) == pytest.approx(1 / 12, abs=0.003)
