"""guidellm's load generator, run to its end."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

SECONDS = 15
STREAMS = 2


def test_benchmark_ends(url: str, model_folder: Path, tmp_path: Path, record_property: Any) -> None:
    """Requests complete, none fails, and the report has their tokens."""
    report_path = tmp_path / "report.json"
    command: list[str | Path] = [Path(sys.executable).with_name("guidellm"), "run"]
    command += ["--backend", f"kind=openai_http,target={url}"]
    command += ["--profile", f"kind=concurrent,streams={STREAMS}"]
    command += ["--constraint", f"kind=max_duration,seconds={SECONDS}"]
    command += ["--tokenizer", f"kind=hf_auto,model={model_folder}"]
    command += ["--data", "kind=synthetic_text,prompt_tokens=32,output_tokens=8"]
    command += ["--output", f"kind=json,path={report_path}"]
    environment = os.environ | {"HF_HUB_OFFLINE": "1"}
    finished = subprocess.run(
        command, capture_output=True, text=True, cwd=tmp_path, env=environment
    )

    assert finished.returncode == 0, finished.stdout[-3000:] + finished.stderr[-3000:]
    (benchmark,) = json.loads(report_path.read_text())["benchmarks"]
    totals = benchmark["metrics"]["request_totals"]
    record_property("note", f"{totals['successful']} requests in {SECONDS} s, none failed")
    assert totals["successful"] > 0
    assert totals["errored"] == 0
