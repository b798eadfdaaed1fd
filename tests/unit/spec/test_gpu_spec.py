"""The packaged table of GPUs, and what a user knows better."""

import pytest

from nanoserve.errors import OptionError
from nanoserve.spec.gpu_names import find_gpu
from nanoserve.spec.gpu_spec import GIGA, TERA, custom_gpu, gpu_table, override_gpu
from nanoserve.units import GIB


def test_memory_is_what_cuda_reports() -> None:
    """An 80 GB card has 79.19 GiB, and not 80 of anything."""
    gpu = find_gpu("H100 SXM")

    assert gpu.memory_bytes == round(79.19 * GIB)
    assert gpu.bandwidth == 3352 * GIGA
    assert gpu.half_flops == 989.4 * TERA
    assert gpu.evidence == "mib+cuda"
    assert gpu.source


def test_every_row_is_plausible() -> None:
    """Reported memory is below the box's, above 85 % of it, and bandwidth is positive."""
    for gpu in gpu_table():
        assert 0.85 < gpu.memory_bytes / (gpu.nominal_gb * GIB) < 1.01, gpu.name
        assert gpu.bandwidth, gpu.name
        assert gpu.link >= 0, gpu.name


def test_names_are_unique() -> None:
    """No two rows share a name."""
    names = [gpu.name for gpu in gpu_table()]

    assert len(names) == len(set(names)) == 60


def test_unified_memory_is_marked() -> None:
    """The Sparks and Jetsons share their memory with the host."""
    assert find_gpu("DGX Spark").is_unified
    assert not find_gpu("RTX 4090").is_unified


def test_fp8_without_units_computes_in_16_bits() -> None:
    """A card without FP8 units saves bytes with FP8 weights, and its prefill gains nothing."""
    ampere, hopper = find_gpu("A100 80GB"), find_gpu("H100")

    assert not ampere.has_fp8_units
    assert ampere.prefill_flops(8) == ampere.half_flops
    assert hopper.prefill_flops(8) == hopper.fp8_flops
    assert hopper.prefill_flops(4) == hopper.half_flops
    assert find_gpu("MI300X").has_fp8_units
    assert not find_gpu("RX 7900 XTX").has_fp8_units


def test_cards_before_bf16_have_an_fp16_rate() -> None:
    """A T4 has no bf16; its fp16 rate stands in."""
    assert find_gpu("T4").half_flops == 65 * TERA


def test_an_override_replaces_a_figure() -> None:
    """Memory, bandwidth and rate can be stated; narrower types' rates scale along."""
    gpu = override_gpu(find_gpu("H100"), 40 * GIB, 1000, 494.7)

    assert gpu.memory_bytes == 40 * GIB
    assert gpu.evidence == "stated"
    assert gpu.bandwidth == 1000 * GIGA
    assert gpu.half_flops == 494.7 * TERA
    assert gpu.fp8_flops == pytest.approx(1978.9 / 2 * TERA)


def test_no_override_changes_nothing() -> None:
    """Without figures the row stays as it is."""
    assert override_gpu(find_gpu("H100")) is find_gpu("H100")


def test_a_gpu_can_be_stated_whole() -> None:
    """A device nobody listed has the memory that was stated and unknown rates."""
    gpu = custom_gpu(24 * GIB, tflops=100)

    assert gpu.memory_bytes == 24 * GIB
    assert gpu.bandwidth is None
    assert gpu.half_flops == 100 * TERA
    assert not gpu.has_fp8_units


@pytest.mark.parametrize(
    ("memory", "bandwidth", "tflops", "flag"),
    [(0, 1, 1, "--gpu-mem"), (1, -1, 1, "--bandwidth"), (1, 1, float("nan"), "--tflops")],
)
def test_a_bad_figure_is_refused(memory: int, bandwidth: float, tflops: float, flag: str) -> None:
    """Nothing that is not positive is taken; the flag is named."""
    with pytest.raises(OptionError, match=flag):
        override_gpu(find_gpu("H100"), memory, bandwidth, tflops)
