"""Which device a boot runs on."""

import pytest
import torch

from nanoserve.errors import OptionError
from nanoserve.launch.find_device import device_facts, find_device, has_native_bf16
from nanoserve.units import GIB
from tests.boot_fakes import FakeProbe


def test_cpu_is_the_cpu() -> None:
    """Whatever else there is."""
    assert find_device("cpu") == torch.device("cpu")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_cuda_without_a_device_is_an_option_error() -> None:
    """The message says what to leave out; auto takes the CPU."""
    with pytest.raises(OptionError, match="no CUDA device here"):
        find_device("cuda")
    assert find_device("auto") == torch.device("cpu")


def test_facts_carry_the_probe_s_reading() -> None:
    """Memory is asked of the probe alone."""
    facts = device_facts(torch.device("cpu"), FakeProbe(3 * GIB, own_bytes=GIB))

    assert (facts.kind, facts.total_bytes, facts.free_bytes) == ("cpu", 3 * GIB, 2 * GIB)
    assert facts.num_cores >= 1
    assert facts.has_native_bf16 == has_native_bf16()
