"""Schemathesis on the OpenAPI document, with all its checks but one.

`positive_data_acceptance` wants every body that the document allows to be served. What this
server refuses besides depends on the model (ids within the vocabulary, lengths within the
context, a template that knows tools), and no schema can say that.
"""

import json
import re
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

MIN_CASES = 2000
MIN_ANSWERS = 200  # a document that lets through what is refused tests nothing but refusals
MAX_EXAMPLES = 60  # of an operation and phase: over MIN_CASES in all, in two minutes
SEED = 1


def count_answers(url: str) -> int:
    """Return how many requests the engine has completed."""
    with urllib.request.urlopen(f"{url}/metrics") as response:
        page = response.read().decode()
    counts = re.findall(r"request_success_total{.*(?:stop|length).*} ([\d.]+)", page)
    return sum(int(float(count)) for count in counts)


def test_document(url: str, tmp_path: Path, record_property: Any) -> None:
    """No server error, no answer outside the document, no broken body accepted."""
    report_path = tmp_path / "report.json"
    command: list[str | Path] = [
        Path(sys.executable).with_name("schemathesis"),
        "run",
        f"{url}/openapi.json",
    ]
    command += ["--exclude-checks", "positive_data_acceptance", "--continue-on-failure"]
    command += ["--max-examples", str(MAX_EXAMPLES), "--seed", str(SEED), "--no-color"]
    command += ["--report", "json", "--report-json-path", report_path]
    finished = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)

    report = json.loads(report_path.read_text())
    cases = report["test_cases"]
    num_answers = count_answers(url)
    record_property(
        "note",
        f"{cases['generated']:,} cases on {report['operations']['tested']} operations, "
        f"{num_answers} answers generated",
    )
    assert finished.returncode == 0, finished.stdout
    assert cases["generated"] >= MIN_CASES
    assert num_answers >= MIN_ANSWERS
    assert (cases["with_failures"], cases["errored"]) == (0, 0)
