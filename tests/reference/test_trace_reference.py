"""The reference trace of continuous batching, on real weights."""

import pytest
import torch

from nanoserve.bench.tracebench import run_trace
from tests.trace_shape import check_shape

pytestmark = pytest.mark.slow


def test_smollm2_shows_the_shape() -> None:
    """One prefill step, 63 decode steps, ends from the shortest to the longest."""
    threads = torch.get_num_threads()  # one where test workers share the cores
    report = run_trace("smollm2", {"device": "cpu", "threads": threads})

    check_shape(report)
