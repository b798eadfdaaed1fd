"""What an engine takes where it is told nothing: slots, token budget, and its plugins' rules.

Reads a profile.
"""

from dataclasses import replace

from nanoserve.capacity.engine_profile import EngineProfile
from nanoserve.units import GIB

_LARGE_BYTES = 70 * GIB
_HUGE_BYTES = 160 * GIB
_TREATED_AS_SMALL = ("A100", "A800", "GB10")


def default_batch(profile: EngineProfile, total_bytes: int, gpu_name: str = "") -> tuple[int, int]:
    """Return the engine's default slots and token budget on a device.

    Args:
        profile: Of the engine.
        total_bytes: The device's memory.
        gpu_name: Its name; some large cards are treated as small ones.

    Source: vLLM `EngineArgs.get_batch_defaults`: from 70 GiB 1,024 and 8,192, from 160 GiB
    1,024 and 16,384, else 256 and 2,048, as on every A100 and GB10; V0 256 and 2,048.
    """
    is_small = total_bytes < _LARGE_BYTES or any(name in gpu_name for name in _TREATED_AS_SMALL)
    if profile.engine != "vllm" or not profile.is_chunked or is_small:
        return profile.small_card_slots, 2048
    return 1024, 16384 if total_bytes >= _HUGE_BYTES else 8192


def on_ascend(profile: EngineProfile) -> EngineProfile:
    """Return a profile as vLLM's plugin for Ascend NPUs has it: no estimate comes off.

    Source: vllm-ascend issue 8260 and pull request 8289, where it is asked for by an environment
    variable; 0.03 and 0.13 GiB outside the allocator were logged.
    """
    return replace(profile, graphs="outside", graph_layer_mib=None, lone_gib=(0.01, 0.08, 0.2))
