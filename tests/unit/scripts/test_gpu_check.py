"""`scripts/gpu_check.py`: its equality checks and its tables, on the CPU."""

import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[3] / "scripts" / "gpu_check.py"


def test_tiny_check_passes_on_the_cpu() -> None:
    """Every mode serves the same tokens, and each prints its budget and its gaps."""
    arguments = [sys.executable, str(SCRIPT), "--device", "cpu", "--tiny"]

    result = subprocess.run(arguments, capture_output=True, text=True, timeout=120)

    assert result.returncode == 0, result.stderr
    assert "three modes" in result.stdout
    assert result.stdout.count("between tokens: p50") == 2
    assert "kv pool" in result.stdout
