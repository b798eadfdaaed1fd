"""How engines spell options."""

from fractions import Fraction

import pytest

from nanoserve.capacity.engine_profile import ENGINES
from nanoserve.explain.engine_flags import eight_bit_share, engine_flag
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
