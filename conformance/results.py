"""What a suite came to, read from pytest's JUnit file."""

import json
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from xml.etree import ElementTree

_MAX_REASON_CHARS = 200


@dataclass(frozen=True, slots=True)
class Result:
    """What a suite came to.

    Attributes:
        suite: Its name.
        versions: Of its packages.
        date: Day it ended, in ISO's form.
        passed: Number of tests.
        failed: Number of tests, broken ones included.
        xfailed: Number of tests that fail as they must, with a reason each.
        skipped: Number of tests.
        notes: What tests say of themselves.
        reasons: Why tests failed, were expected to, or were skipped.
    """

    suite: str
    versions: str
    date: str
    passed: int
    failed: int
    xfailed: int
    skipped: int
    notes: list[str]
    reasons: list[str]

    def save(self, folder: Path) -> None:
        """Keep it for the page."""
        (folder / f"{self.suite}.json").write_text(json.dumps(asdict(self), indent=1))


def load_results(folder: Path) -> dict[str, Result]:
    """Return the last result of each suite that ever ran here."""
    found = (Result(**json.loads(path.read_text())) for path in folder.glob("*.json"))
    return {result.suite: result for result in found}


def read_junit(path: Path, suite: str, versions: str, date: str) -> Result:
    """Return the result that a JUnit file holds; a missing file is one failure."""
    if not path.exists():
        reason = "failed: it did not end within its time limit"
        return Result(suite, versions, date, 0, 1, 0, 0, [], [reason])
    counts: Counter[str] = Counter()
    notes: list[str] = []
    reasons: list[str] = []
    for case in ElementTree.parse(path).getroot().iter("testcase"):
        outcome, reason = _outcome_of(case)
        counts[outcome] += 1
        notes += [found.get("value", "") for found in case.iter("property")]
        if outcome != "passed":
            reasons.append(f"{outcome}: {case.get('name')}: {reason[:_MAX_REASON_CHARS]}")
    return Result(
        suite,
        versions,
        date,
        counts["passed"],
        counts["failed"],
        counts["xfailed"],
        counts["skipped"],
        notes,
        reasons,
    )


def _outcome_of(case: ElementTree.Element) -> tuple[str, str]:
    for kind in ("failure", "error"):
        found = case.find(kind)
        if found is not None:
            return "failed", _first_line(found)
    skipped = case.find("skipped")
    if skipped is None:
        return "passed", ""
    is_expected = skipped.get("type") == "pytest.xfail"
    return ("xfailed" if is_expected else "skipped"), _first_line(skipped)


def _first_line(element: ElementTree.Element) -> str:
    return (element.get("message") or "").strip().split("\n")[0]
