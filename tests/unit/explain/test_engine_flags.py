"""How engines spell options."""

from fractions import Fraction

import pytest

from nanoserve.capacity.engine_profile import ENGINES
from nanoserve.explain.engine_flags import eight_bit_flag, eight_bit_share, engine_flag
from nanoserve.spec.kv_format import KV_FORMATS


def test_every_engine_can_shorten_requests() -> None:
    """The one change that always helps is spelt for each."""
    flags = {engine: engine_flag(engine, "length", 4096) for engine in ENGINES}

    assert all(flag is not None and flag.endswith("4096") for flag in flags.values())


def test_an_option_an_engine_lacks_is_none() -> None:
    """llama.cpp holds what it is asked for: there is no share to set."""
    assert engine_flag("llama.cpp", "utilization", 0.9) is None
    assert engine_flag(None, "utilization", 0.9) == "--gpu-memory-utilization 0.90"


def test_eight_bits_take_what_their_format_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """A flag ends with a format that is known; its bytes are the format's own, scales included."""
    shares = {engine: eight_bit_share(engine) for engine in ENGINES}

    assert shares == {
        "vllm": Fraction(1, 2),
        "sglang": Fraction(1, 2),
        "tensorrt-llm": None,
        "llama.cpp": Fraction(17, 32),
        "nanoserve": None,
    }

    monkeypatch.setitem(KV_FORMATS, "q8_0", KV_FORMATS["q4_0"])
    assert eight_bit_share("llama.cpp") == Fraction(9, 32)


@pytest.mark.parametrize(
    ("engine", "version", "flag"),
    [
        ("vllm", "0.2.7", None),
        ("vllm", "0.3.2", "--kv-cache-dtype fp8_e5m2"),
        ("vllm", "0.4.1", "--kv-cache-dtype fp8"),
        ("vllm", None, "--kv-cache-dtype fp8"),
        ("vllm", "main", "--kv-cache-dtype fp8"),
        ("sglang", "0.3.6", "--kv-cache-dtype fp8_e5m2"),
        ("sglang", "0.5.3", "--kv-cache-dtype fp8_e4m3"),
        ("llama.cpp", "4202", "--cache-type-k q8_0 --cache-type-v q8_0"),
        ("tensorrt-llm", "0.8", None),
    ],
)
def test_eight_bits_as_the_release_spells_them(
    engine: str, version: str | None, flag: str | None
) -> None:
    """A release before the option is offered none; one that is not known is the newest."""
    assert eight_bit_flag(engine, version) == flag
