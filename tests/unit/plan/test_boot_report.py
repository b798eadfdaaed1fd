"""A boot's stages as lines and as a sum."""

import pytest

from nanoserve.plan.boot_report import BootReport, BudgetLine, StageReport, format_residual
from nanoserve.units import GIB, MIB


def test_a_stage_without_bytes_is_seconds_and_detail() -> None:
    """A stage that holds nothing prints no size."""
    assert StageReport("read", 0.52, "a file").describe() == "read       0.5 s   a file"


def test_bytes_as_planned_are_printed_once() -> None:
    """Measured bytes that equal the plan stand alone."""
    stage = StageReport("pool", 1.0, "64 blocks", 3 * MIB, 3 * MIB)

    assert stage.describe() == "pool       1.0 s   3.0 MiB, 64 blocks"


def test_a_difference_shows_the_plan() -> None:
    """Measured bytes off the plan stand beside it, and by how much."""
    stage = StageReport("weights", 1.0, "9 tensors", planned_bytes=3 * MIB, measured_bytes=4 * MIB)

    assert stage.describe() == "weights    1.0 s   4.0 MiB (planned 3.0 MiB, +1.0 MiB), 9 tensors"


def test_a_residual_keeps_its_sign() -> None:
    """More than planned is marked, less than planned is negative, nothing is plain."""
    assert format_residual(3 * MIB) == "+3.0 MiB"
    assert format_residual(-2 * GIB) == "-2.00 GiB"
    assert format_residual(0) == "0.0 MiB"
    assert format_residual(-7) == "0.0 MiB"


def test_a_budget_line_without_a_measurement_has_no_residual() -> None:
    """What nobody measured is not off by its whole size."""
    assert BudgetLine("weights", 5, 7).residual_bytes == 2
    assert BudgetLine("weights", 5).residual_bytes is None


def test_a_report_adds_up_its_stages() -> None:
    """The boot took what its stages took."""
    report = BootReport((StageReport("read", 0.5, ""), StageReport("plan", 0.25, "")))

    assert report.seconds == pytest.approx(0.75)
