"""What each engine can be asked for, in its own words."""

import pytest

from nanoserve.capacity.engine_formats import kv_flag_value
from nanoserve.errors import OptionError
from nanoserve.spec.quant_spec import find_weight_format
from tests.planner import planned


@pytest.mark.parametrize(
    ("engine", "asked", "value"),
    [
        ("vllm", "auto", None),
        ("vllm", "fp8", "fp8"),
        ("vllm", "FP8_E5M2", "fp8_e5m2"),
        ("sglang", "fp8", "fp8_e4m3"),
        ("sglang", "fp8_e5m2", "fp8_e5m2"),
        ("sglang", "nvfp4", "fp4_e2m1"),
        ("tensorrt-llm", "fp8_e4m3", "fp8"),
        ("llama.cpp", "fp16", "f16"),
        ("llama.cpp", "bf16", "bf16"),
        ("llama.cpp", "q4_0", "q4_0"),
    ],
)
def test_a_format_is_asked_for_as_the_engine_spells_it(
    engine: str, asked: str, value: str | None
) -> None:
    """What is more exact than our names is passed on as it was written."""
    assert kv_flag_value(engine, asked) == value


@pytest.mark.parametrize(
    ("engine", "asked"),
    [("vllm", "q4_0"), ("vllm", "int8"), ("sglang", "int8"), ("tensorrt-llm", "q8_0"),
     ("llama.cpp", "fp8")],
)  # fmt: skip
def test_what_an_engine_does_not_have_is_refused(engine: str, asked: str) -> None:
    """Before anything is planned, and with what it has."""
    with pytest.raises(OptionError, match="stores no keys and values so"):
        planned(engine=engine, kv_cache_dtype=asked)


def test_llama_cpp_reads_gguf_weights_alone() -> None:
    """AWQ is no GGUF format; its own and 16 bits are."""
    with pytest.raises(OptionError, match=r"llama\.cpp reads GGUF files"):
        planned(engine="llama.cpp", weight_format=find_weight_format("awq"))
    for name in ("Q4_K_M", "IQ4_XS", "bf16", "F16", "mxfp4"):
        assert planned(engine="llama.cpp", weight_format=find_weight_format(name)).fits
