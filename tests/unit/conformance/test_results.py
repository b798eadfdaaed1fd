"""What a suite came to, and the page that says so."""

from pathlib import Path

import pytest
from conformance.page import conformance_page
from conformance.results import Result, load_results, read_junit
from conformance.suites import SUITES

PAGE = Path(__file__).parents[3] / "docs" / "conformance.md"
JUNIT = """\
<testsuites><testsuite>
<testcase name="good"><properties><property name="note" value="7 cases"/></properties></testcase>
<testcase name="bad"><failure message="assert 1 == 2&#10;and more">trace</failure></testcase>
<testcase name="broken"><error message="no server"/></testcase>
<testcase name="weak"><skipped type="pytest.xfail" message="too small a model"/></testcase>
<testcase name="absent"><skipped type="pytest.skip" message="no images"/></testcase>
</testsuite></testsuites>
"""


@pytest.fixture
def result(tmp_path: Path) -> Result:
    path = tmp_path / "junit.xml"
    path.write_text(JUNIT)
    return read_junit(path, SUITES[0].name, "tool 1.0", "2026-01-02")


def test_outcomes_are_counted_with_their_reasons(result: Result) -> None:
    """Errors are failures; expected failures and skips are neither."""
    assert (result.passed, result.failed, result.xfailed, result.skipped) == (1, 2, 1, 1)
    assert result.notes == ["7 cases"]
    assert result.reasons == [
        "failed: bad: assert 1 == 2",
        "failed: broken: no server",
        "xfailed: weak: too small a model",
        "skipped: absent: no images",
    ]


def test_suite_that_never_ended_has_failed(tmp_path: Path) -> None:
    """No file is one failure, not none."""
    result = read_junit(tmp_path / "none.xml", "suite", "", "")

    assert (result.passed, result.failed) == (0, 1)


def test_saved_result_comes_back(result: Result, tmp_path: Path) -> None:
    """A page can be made of suites that ran on different days."""
    result.save(tmp_path)

    assert load_results(tmp_path) == {result.suite: result}


def test_page_has_numbers_and_reasons(result: Result) -> None:
    """A row for a suite that ran, and a section with what it says."""
    page = conformance_page(SUITES, {result.suite: result})

    assert f"| {result.suite} | tool 1.0 | 1 | 2 | 1 | 1 | 2026-01-02 |" in page
    assert "- 7 cases.\n" in page
    assert f"## {SUITES[0].name}\n" in page
    assert f"## {SUITES[1].name}\n" not in page


def test_written_page_has_every_suite() -> None:
    """docs/conformance.md has the result of each suite, and none failed."""
    rows = [line.split(" | ") for line in PAGE.read_text().splitlines() if line.startswith("| ")]

    failed = {row[0].removeprefix("| "): row[3] for row in rows[1:]}
    assert failed == {suite.name: "0" for suite in SUITES}
