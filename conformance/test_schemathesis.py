"""Schemathesis on the OpenAPI document, with all its checks but one.

`positive_data_acceptance` wants every body that the document allows to be served. What this
server refuses besides depends on the model (ids within the vocabulary, lengths within the
context, a template that knows tools), and no schema can say that.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

MIN_CASES = 2000
MAX_EXAMPLES = 60  # of an operation and phase: over MIN_CASES in all, in half a minute
SEED = 1


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
    record_property(
        "note", f"{cases['generated']:,} cases on {report['operations']['tested']} operations"
    )
    assert finished.returncode == 0, finished.stdout
    assert cases["generated"] >= MIN_CASES
    assert (cases["with_failures"], cases["errored"]) == (0, 0)
