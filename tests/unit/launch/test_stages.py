"""Stages: timed, measured, told to a listener; what ends one is one of our errors."""

import errno

import pytest
import torch

from nanoserve.errors import BootError, DoesNotFitError, OptionError
from nanoserve.launch.stages import Stages
from nanoserve.units import GIB, MIB
from tests.boot_fakes import FakeProbe, RecordingListener


def make_stages() -> tuple[Stages, FakeProbe, RecordingListener]:
    probe, listener = FakeProbe(own_bytes=100 * MIB), RecordingListener()
    return Stages(listener, probe), probe, listener


def test_measured_stage_reports_what_the_process_grew_by() -> None:
    """The device is settled before it is read, so that nothing freed is counted."""
    stages, probe, listener = make_stages()

    with stages.run_measured("pool", 30 * MIB) as stage:
        stage.detail = "blocks"
        probe.own_bytes += 32 * MIB

    (report,) = listener.reports
    assert (report.name, report.detail) == ("pool", "blocks")
    assert (report.planned_bytes, report.measured_bytes) == (30 * MIB, 32 * MIB)
    assert report.residual_bytes == 2 * MIB
    assert probe.num_settled == 2
    assert stages.measured_bytes("pool") == 32 * MIB
    assert stages.measured_bytes("weights") is None


def test_neighbour_has_no_part_in_the_figure() -> None:
    """Another process that takes memory meanwhile is not this one's growth."""
    stages, probe, listener = make_stages()

    with stages.run_measured("pool", MIB):
        probe.total_bytes -= 500 * MIB

    assert listener.reports[0].measured_bytes == 0


def test_stage_without_bytes_has_none() -> None:
    """Only what holds memory says so."""
    stages, _, listener = make_stages()

    with stages.run("read"):
        pass

    assert (listener.reports[0].planned_bytes, listener.reports[0].measured_bytes) == (None, None)


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory"),
        MemoryError(),
        OSError(errno.ENOMEM, "Cannot allocate memory"),
        RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried"),
    ],
)
def test_lack_of_memory_is_a_refusal_with_numbers(error: Exception) -> None:
    """What was planned and what is free are in it, and it exits with 4."""
    stages, _, listener = make_stages()

    with (
        pytest.raises(DoesNotFitError, match="'pool'") as caught,
        stages.run_measured("pool", 2 * GIB),
    ):
        raise error

    assert (caught.value.need_bytes, caught.value.have_bytes) == (2 * GIB, GIB - 100 * MIB)
    assert caught.value.exit_code == 4
    assert listener.reports == []


def test_lack_of_memory_beside_free_memory_is_explained() -> None:
    """A limit on the process is no figure of the device."""
    stages, _, _ = make_stages()

    with pytest.raises(DoesNotFitError, match="ulimit"), stages.run_measured("pool", MIB):
        raise MemoryError


def test_other_failures_name_their_stage() -> None:
    """A driver's error becomes a boot error; our own pass through."""
    stages, _, _ = make_stages()
    lost, mine = RuntimeError("device lost"), OptionError("mine")

    with pytest.raises(BootError, match=r"'weights'.*device lost"), stages.run("weights"):
        raise lost
    with pytest.raises(OptionError, match="mine"), stages.run("weights"):
        raise mine
