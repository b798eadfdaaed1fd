"""What a boot puts on a device, counted: weights, activations, captured steps, KV blocks.

Each function turns resolved choices into bytes or blocks; `boot_plan` puts them together
and refuses what does not fit.
"""

from dataclasses import replace
from functools import partial

from nanoserve.options import EngineOptions, Quantization
from nanoserve.plan.activation_plan import (
    DRAWN_LOGIT_BYTES,
    estimate_activation_bytes,
    largest_step,
)
from nanoserve.plan.backend_facts import ArenaBytes, BackendFacts
from nanoserve.plan.boot_choices import BootChoices
from nanoserve.plan.capture_axes import mixed_tokens
from nanoserve.plan.capture_cost import gathered_arena_bytes, native_arena_bytes
from nanoserve.plan.capture_plan import CapturePlan, CaptureRequest, plan_capture
from nanoserve.plan.device_facts import DeviceFacts
from nanoserve.plan.kv_plan import PoolDemand, kv_budget_bytes, kv_bytes_per_block
from nanoserve.plan.memory_budget import MemoryReading
from nanoserve.plan.pool_room import PoolRoom, reserve_bytes
from nanoserve.plan.weight_plan import WeightPlan, plan_rope_bytes, plan_weights
from nanoserve.spec.model_spec import ModelSpec
from nanoserve.units import round_up

LOGIT_BYTES = 4  # float32, whatever the model's dtype


def torch_backend_facts(spec: ModelSpec, block_size: int) -> BackendFacts:
    """Return what plain torch attention says of its recorded steps."""
    attention_bytes = partial(gathered_arena_bytes, spec.num_heads, spec.kv_size)
    return step_facts(spec, True, attention_bytes, block_size)


def step_facts(
    spec: ModelSpec,
    depends_on_width: bool,
    attention_bytes: ArenaBytes,
    block_size: int,
    kv_cache_dtypes: tuple[str, ...] = ("auto",),
    native_weights: Quantization | None = None,
) -> BackendFacts:
    """Return what a whole recorded step takes: its attention, and the logits it leaves behind.

    Attention reads whole blocks, and a block may be wider than a shape. Where steps are
    recorded as native operators, so are those that read prompts, in the same arena.

    Args:
        spec: Shape of the model.
        depends_on_width: As the attention backend says.
        attention_bytes: What its attention takes, by rows and width.
        block_size: Tokens per block.
        kv_cache_dtypes: How it can store K and V.
        native_weights: How steps recorded as native operators store their weights; None
            where steps are not recorded so.
    """

    def step_bytes(rows: int, width: int) -> int:
        logits_bytes = rows * spec.vocab_size * LOGIT_BYTES
        return attention_bytes(rows, round_up(width, block_size)) + logits_bytes

    def native_bytes(rows: int, width: int, itemsize: int, step_tokens: int) -> int:
        partial_bytes = attention_bytes(rows, round_up(width, block_size))
        logits_bytes = rows * spec.vocab_size * LOGIT_BYTES
        result_bytes = native_arena_bytes(
            spec,
            max(rows, mixed_tokens(step_tokens)),
            rows,
            partial_bytes,
            itemsize,
            native_weights or "none",
        )
        return result_bytes + logits_bytes

    return BackendFacts(
        depends_on_width,
        step_bytes,
        kv_cache_dtypes,
        None if native_weights is None else native_bytes,
    )


def pool_demand(spec: ModelSpec, options: EngineOptions, choices: BootChoices) -> PoolDemand:
    """Return what the KV pool is for: all requests at once at full length."""
    return PoolDemand(
        options.max_num_seqs,
        choices.max_model_len,
        options.block_size,
        kv_bytes_per_block(spec, options.block_size, choices.itemsize, options.kv_cache_dtype),
        num_sink_blocks=0 if choices.decode_mode == "eager" else 1,
    )


def capture_for(
    options: EngineOptions, choices: BootChoices, backend: BackendFacts
) -> CapturePlan | None:
    """Return the decode shapes to record; None where steps run as they come.

    Raises:
        CaptureTooSmall: Not one width fits.
    """
    if choices.decode_mode == "eager":
        return None
    request = CaptureRequest(
        options.warm_rows, options.warm_width, options.capture_bytes, options.capture_limit
    )
    return plan_capture(
        options.max_num_seqs,
        choices.max_model_len,
        request=request,
        arena_bytes=backend.arena_bytes_of(choices.itemsize, choices.token_budget),
        depends_on_width=backend.depends_on_width,
        has_close_rows=backend.is_native and choices.decode_mode == "captured",
    )


def capture_bytes_for(options: EngineOptions, capture: CapturePlan | None) -> int:
    """Return what recorded steps are given: what was said, or what their widest needs."""
    if capture is None:
        return 0
    return capture.arena_bytes if options.capture_bytes is None else options.capture_bytes


def activation_bytes_for(
    spec: ModelSpec,
    options: EngineOptions,
    device: DeviceFacts,
    choices: BootChoices,
    backend: BackendFacts,
) -> int:
    """Return the largest phase of the largest step, estimated.

    A kernel that reads lengths from the device holds no scores; nor does torch on a CPU.
    """
    step = largest_step(
        options.max_num_seqs,
        round_up(choices.max_model_len, options.block_size),
        choices.token_budget,
        choices.itemsize,
        is_fused=device.kind == "cpu" or not backend.depends_on_width,
    )
    return estimate_activation_bytes(spec, step, choices.itemsize, DRAWN_LOGIT_BYTES).peak_bytes


def weights_for(
    spec: ModelSpec, options: EngineOptions, device: DeviceFacts, choices: BootChoices
) -> WeightPlan:
    """Return the weights as they will be kept.

    Raises:
        OptionError: A layer cannot be quantised.
    """
    return plan_weights(spec, choices.dtype, options.quantization, is_packed=device.has_native_ops)


def plan_room(
    spec: ModelSpec,
    options: EngineOptions,
    device: DeviceFacts,
    choices: BootChoices,
    activation_bytes: int,
    capture_bytes: int,
) -> PoolRoom:
    """Return the device as it will be with the weights on it, and what is set aside."""
    weight_bytes = weights_for(spec, options, device, choices).num_bytes
    weight_bytes += plan_rope_bytes(spec, choices.max_model_len, choices.itemsize)
    reading = replace(
        device.reading,
        free_bytes=device.free_bytes - weight_bytes,
        own_bytes=device.reading.own_bytes + weight_bytes,
    )
    kept_back = kept_back_bytes(reading, options) if choices.sized_by == "fill" else 0
    return PoolRoom(reading, weight_bytes, kept_back, activation_bytes, capture_bytes)


def num_blocks_for(
    options: EngineOptions,
    device: DeviceFacts,
    choices: BootChoices,
    demand: PoolDemand,
    room: PoolRoom,
) -> int:
    """Return how many blocks requests get, by what sizes the pool.

    Raises:
        OptionError: The pool is to fill a device that nobody can divide.
    """
    if options.num_blocks is not None:
        return options.num_blocks
    if options.kv_cache_bytes is not None:
        return demand.blocks_in(options.kv_cache_bytes)
    if choices.sized_by == "demand":
        return demand.num_blocks
    budget_bytes = kv_budget_bytes(
        room.reading if device.kind == "cuda" else None,
        options.gpu_memory_utilization,
        room.activation_bytes,
        room.capture_bytes,
        options.memory_policy,
    )
    return demand.blocks_in(budget_bytes)


def kept_back_bytes(reading: MemoryReading, options: EngineOptions) -> int:
    """Return what the utilization keeps back of a filling pool's device; see `reserve_bytes`."""
    return reserve_bytes(reading, options.gpu_memory_utilization, options.memory_policy)
