"""How engines spell options."""

from nanoserve.capacity.engine_profile import ENGINES
from nanoserve.explain.engine_flags import engine_flag


def test_every_engine_can_shorten_requests() -> None:
    """The one change that always helps is spelt for each."""
    flags = {engine: engine_flag(engine, "length", 4096) for engine in ENGINES}

    assert all(flag is not None and flag.endswith("4096") for flag in flags.values())


def test_an_option_an_engine_lacks_is_none() -> None:
    """llama.cpp holds what it is asked for: there is no share to set."""
    assert engine_flag("llama.cpp", "utilization", 0.9) is None
    assert engine_flag(None, "utilization", 0.9) == "--gpu-memory-utilization 0.90"
