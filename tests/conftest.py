"""Fixtures of every test; imports no torch."""

import os
import tempfile
import threading
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from nanoserve.kernels.kernel_build import cache_folder

# Two workers on two cores: each gets one thread, set before torch is imported.
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # threads that spin starve other workers
os.environ.setdefault("HF_HUB_OFFLINE", "1")
# Servers of the tests are on this machine; a proxy that its environment names does not know them.
os.environ["NO_PROXY"] = os.environ["no_proxy"] = "127.0.0.1,localhost"

# How long drawing examples takes is the machine's speed, as a deadline's time is.
settings.register_profile("dev", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("ci", settings.get_profile("dev"), derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "dev")


def pytest_configure(config: pytest.Config) -> None:
    """Let tests find the operators that are built, but no weights that other runs packed."""
    kernels = cache_folder("kernels")
    kernels.mkdir(parents=True, exist_ok=True)
    folder = tempfile.TemporaryDirectory(prefix="nanoserve-cache-")
    config.add_cleanup(folder.cleanup)
    config.add_cleanup(_join_keepers)  # first: the last one added
    (Path(folder.name) / "kernels").symlink_to(kernels.resolve())
    os.environ["NANOSERVE_CACHE"] = folder.name


def _join_keepers() -> None:
    """Wait for threads that still write weights: a folder that is written cannot be removed."""
    for thread in threading.enumerate():
        if thread.name == "keep-weights":
            thread.join()
