"""What our own server is planned with on each kind of device, and what it refuses."""

from dataclasses import replace

import pytest

from nanoserve.capacity.own_formats import (
    OWN_WEIGHTS,
    find_own_format,
    own_dtype,
    own_kv_cache_dtype,
    own_kv_format,
    own_kv_names,
    own_quantization,
    own_weight_names,
)
from nanoserve.errors import OptionError
from nanoserve.plan.weight_plan import choose_formats
from nanoserve.spec.gpu_names import find_gpu
from nanoserve.spec.gpu_spec import GpuSpec, custom_gpu
from nanoserve.spec.quant_spec import FULL_FLOAT, FULL_PRECISION, find_weight_format
from nanoserve.units import GIB


def host(*has: str) -> GpuSpec:
    """Return a machine of 16 GiB."""
    memory = custom_gpu(16 * GIB)
    return replace(memory, compute_capability="host", host_has=frozenset(has))


@pytest.mark.parametrize("name", ["int8", "int4"])
def test_bits_are_those_of_the_packed_layer(name: str) -> None:
    """A layer without padding takes what the format says of each weight, scales included."""
    packed = choose_formats("int8" if name == "int8" else "int4", "bfloat16")
    stored = OWN_WEIGHTS[name]

    layer = packed.layers.num_bytes(4096, 4096)
    head = packed.head.num_bytes(4096, 4096)
    assert 8 * layer == stored.group_bits_per_weight("mlp") * 4096**2
    assert 8 * head == stored.group_bits_per_weight("head") * 4096**2
    assert stored.group_bits_per_weight("norms") == 16


def test_dtypes_follow_the_device() -> None:
    """bfloat16 where there is hardware for it; a card nobody listed is taken for a recent one."""
    assert own_dtype(host()) == own_dtype(find_gpu("t4")) == "float32"
    assert own_dtype(host("bf16")) == own_dtype(find_gpu("h100")) == "bfloat16"
    assert own_dtype(custom_gpu(GIB)) == "bfloat16"


def test_formats_are_the_native_operators() -> None:
    """A machine that has them offers all; a GPU and a machine without a compiler none."""
    native = host("native")
    assert own_weight_names(native) == ("int8", "int4")
    assert own_kv_names(native) == ("int8", "fp8")
    for device in (host("bf16"), find_gpu("h100")):
        assert own_weight_names(device) == own_kv_names(device) == ()


def test_the_compute_dtype_has_several_names() -> None:
    """`none`, `auto` and the dtype's own name are the same; another dtype's is refused."""
    assert find_own_format("none") is None
    assert own_quantization(find_own_format("bf16"), host("bf16")) == "none"
    assert own_quantization(FULL_FLOAT, host()) == "none"
    assert own_kv_cache_dtype("bf16", host("bf16")) == "auto"
    assert own_kv_format("auto", host()).name == "fp32"
    with pytest.raises(OptionError, match="none \\(float32\\)"):
        own_quantization(FULL_PRECISION, host("native"))
    with pytest.raises(OptionError, match="auto \\(float32\\), int8, fp8"):
        own_kv_cache_dtype("bf16", host("native"))


def test_keys_and_values_as_the_pool_stores_them() -> None:
    """int8 has a float32 scale for each head, fp8 none."""
    assert own_kv_format("int8", host("native")).head_bytes(64) == 68
    assert own_kv_format("fp8", host("native")).head_bytes(64) == 64


@pytest.mark.parametrize("name", ["awq", "fp8", "Q4_K_M", "", "int3", "int8-channel"])
def test_other_engines_formats_are_refused(name: str) -> None:
    """The server's own are listed."""
    with pytest.raises(OptionError, match="int8, int4"):
        find_own_format(name)
    with pytest.raises(OptionError, match="int8, int4"):
        own_quantization(find_weight_format("awq"), host("native"))


@pytest.mark.parametrize("device", [host(), find_gpu("h100")])
def test_what_nothing_there_reads_is_refused(device: GpuSpec) -> None:
    """A GPU is told of --gpu cpu, a machine of the compiler it lacks."""
    word = "C\\+\\+ compiler" if device.is_host else "--gpu cpu"
    with pytest.raises(OptionError, match=word):
        own_quantization(OWN_WEIGHTS["int8"], device)
    with pytest.raises(OptionError, match=word):
        own_kv_cache_dtype("int8", device)
