"""Threads that lose their cores are not waited for, and change no bit of what is computed."""

import os
import select
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.native_kernels import needs_kernels

pytestmark = needs_kernels

ROOT = Path(__file__).parents[3]
TIMEOUT_S = 100.0  # for a sign of life: a lost wake-up would take forever


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="needs Linux's affinity")
@pytest.mark.parametrize(("num_cores", "num_runs"), [(2, 1000), (1, 600)])
def test_a_neighbour_on_a_core_changes_no_bit(num_cores: int, num_runs: int) -> None:
    """Whoever computes a portion, twice or not; nobody sleeps forever, also at the end, and forks do no harm."""
    with subprocess.Popen(
        [sys.executable, "-m", "tests.team_stress", str(num_cores), str(num_runs)],
        cwd=ROOT,
        env={**os.environ, "OMP_WAIT_POLICY": "passive"},
        stdout=subprocess.PIPE,
    ) as process:
        try:
            said = "".join(pieces_of(process))
        finally:
            process.kill()

    assert said.lstrip(".") == f"0 of {num_runs} differ\n"


def pieces_of(process: subprocess.Popen[bytes]) -> Iterator[str]:
    """Yield what a process says until its end; fail when it says nothing for long."""
    assert process.stdout is not None
    pipe = process.stdout.fileno()
    while True:
        assert select.select([pipe], [], [], TIMEOUT_S)[0], "nobody works any more"
        piece = os.read(pipe, 4096)
        if not piece:
            return
        yield piece.decode()
