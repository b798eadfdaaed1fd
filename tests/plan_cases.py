"""Models and devices that memory is planned for."""

from dataclasses import replace

from nanoserve.plan.device_facts import DeviceFacts
from nanoserve.plan.memory_budget import MemoryReading
from nanoserve.spec.model_spec import ModelSpec
from nanoserve.units import GIB

SMOLLM2 = ModelSpec(
    architecture="llama",
    num_layers=30,
    hidden_size=576,
    num_heads=9,
    num_kv_heads=3,
    head_dim=64,
    intermediate_size=1536,
    vocab_size=49152,
    max_position_embeddings=8192,
    tie_word_embeddings=True,
)
LLAMA_32_1B = ModelSpec(
    architecture="llama",
    num_layers=16,
    hidden_size=2048,
    num_heads=32,
    num_kv_heads=8,
    head_dim=64,
    intermediate_size=8192,
    vocab_size=128256,
    max_position_embeddings=131072,
    tie_word_embeddings=True,
)


def gib(value: float) -> int:
    """Return GiB as whole bytes."""
    return int(value * GIB)


CPU = DeviceFacts("cpu", "this CPU", MemoryReading(gib(16), gib(12)), 2, False)
GPU = DeviceFacts("cuda", "a GPU", MemoryReading(gib(24), gib(23), context_bytes=GIB), 8, True)
_SMOLLM2_BYTES = 134_515_008 * 2  # in bf16
# The worked co-tenant: once SmolLM2 is loaded, 9.5 GiB are others', 1.2 GiB this process's,
# and 0.43 GiB free.
SHARED_GPU = DeviceFacts(
    "cuda",
    "a shared GPU",
    MemoryReading(
        gib(11.63), gib(0.43) + _SMOLLM2_BYTES, gib(1.2) - _SMOLLM2_BYTES, context_bytes=gib(0.5)
    ),
    8,
    True,
)


def with_free(device: DeviceFacts, free_bytes: int) -> DeviceFacts:
    """Return `device` with that much free, the rest held by other processes."""
    return replace(device, reading=replace(device.reading, free_bytes=free_bytes))
