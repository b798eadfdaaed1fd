"""Fixtures of every test; imports no torch."""

import os
import tempfile
from pathlib import Path

import pytest
from hypothesis import settings

from nanoserve.kernels.kernel_build import cache_folder

# Two workers on two cores: each gets one thread, set before torch is imported.
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # threads that spin starve other workers
os.environ.setdefault("HF_HUB_OFFLINE", "1")

settings.register_profile("ci", derandomize=True, deadline=None)
settings.register_profile("dev", deadline=None)
settings.load_profile("ci" if os.environ.get("CI") else "dev")


def pytest_configure(config: pytest.Config) -> None:
    """Let tests find the operators that are built, but no weights that other runs packed."""
    kernels = cache_folder("kernels")
    kernels.mkdir(parents=True, exist_ok=True)
    folder = tempfile.TemporaryDirectory(prefix="nanoserve-cache-")
    config.add_cleanup(folder.cleanup)
    (Path(folder.name) / "kernels").symlink_to(kernels.resolve())
    os.environ["NANOSERVE_CACHE"] = folder.name
