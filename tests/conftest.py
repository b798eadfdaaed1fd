"""Fixtures of every test; imports no torch."""

import os
import signal
import sys
import tempfile
import threading
from pathlib import Path

import pytest
from hypothesis import HealthCheck, register_random, settings

from nanoserve.kernels.kernel_build import cache_folder

# Two workers on two cores: each gets one thread, set before torch is imported.
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # threads that spin starve other workers
os.environ.setdefault("HF_HUB_OFFLINE", "1")
# Servers of the tests are on this machine; a proxy that its environment names does not know them.
os.environ["NO_PROXY"] = os.environ["no_proxy"] = "127.0.0.1,localhost"


def _mind_nothing(number: int, frame: object) -> None:
    """Do what an ignored signal does; a process that is started inherits no handler."""


for _number in (signal.SIGHUP, signal.SIGINT):  # by nohup, or a shell that runs tests behind an &
    if signal.getsignal(_number) is signal.SIG_IGN:
        signal.signal(_number, _mind_nothing)

# How long drawing examples takes is the machine's speed, as a deadline's time is.
settings.register_profile("explore", deadline=None, suppress_health_check=[HealthCheck.too_slow])
# The same examples each time: what fails, the change has broken. `--hypothesis-profile=explore`
# looks for new ones.
settings.register_profile("same", settings.get_profile("explore"), derandomize=True)
settings.load_profile("same")


class _TorchRandom:
    """torch's random numbers, for whom torch is imported already, as `random.Random` has its own."""

    def seed(self, value: int) -> None:
        if "torch" in sys.modules:
            sys.modules["torch"].manual_seed(value)

    def getstate(self) -> bytes:
        return bytes(sys.modules["torch"].get_rng_state()) if "torch" in sys.modules else b""

    def setstate(self, state: bytes) -> None:
        if state:
            torch = sys.modules["torch"]
            torch.set_rng_state(torch.frombuffer(bytearray(state), dtype=torch.uint8))


TORCH_RANDOM = _TorchRandom()
register_random(TORCH_RANDOM)  # each of hypothesis' examples begins alike


def pytest_runtest_setup() -> None:
    """Let a test's tensors be the same in any order of the tests, and its products our own.

    A processor with a matrix unit (AMX) has oneDNN's, and records no steps.
    """
    TORCH_RANDOM.seed(0)
    if "torch" in sys.modules:
        sys.modules["torch"].cpu._is_amx_tile_supported = _has_no_matrix_unit


def pytest_runtest_teardown() -> None:
    """Let no thread go on to write a test's weights beside the tests that come after it.

    Some of these pretend that files cannot be read, or are locked: to that thread, too.
    """
    _join_keepers()


def _has_no_matrix_unit() -> bool:
    return False


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
