"""The stages that take the device's memory: weights, profile and pool.

Each holds what was measured beside what was planned. How many bytes there are to take is
decided in `plan`.
"""

import torch

from nanoserve.attention.backend import AttentionBackend
from nanoserve.errors import BootError
from nanoserve.kernels.kernel_library import KernelLibrary
from nanoserve.launch.boot_model import BootModel, FilledWeights
from nanoserve.launch.stages import Stage, Stages
from nanoserve.model.compiled_layers import check_compiler, compile_layers
from nanoserve.model.decoder import Decoder
from nanoserve.model.layer_ops import LayerOps
from nanoserve.model.layers import gains_by_packing, prepack_linears
from nanoserve.model.native_ops import NativeOps
from nanoserve.model.row_invariance import find_uneven_part, pad_single_rows
from nanoserve.plan.boot_plan import BootPlan
from nanoserve.plan.memory_budget import MemoryReading
from nanoserve.plan.weight_plan import LinearFormat
from nanoserve.runner.kv_pool import KVPool
from nanoserve.runner.profile_run import StepLimits, measure_peak, warm_libraries
from nanoserve.weights.packing import packed_formats
from nanoserve.weights.placement import place_weights

_POOL_DTYPES = {"int8": torch.int8, "fp8": torch.float8_e4m3fn}
_FIX = "fix"  # the stage that makes reductions deterministic


def load_decoder(
    model: BootModel,
    parts: tuple[AttentionBackend, LayerOps],
    plan: BootPlan,
    is_compiled: bool,
    stages: Stages,
) -> Decoder:
    """Build the decoder without storage, place each parameter once, fill them all.

    Args:
        model: What to load.
        parts: What the decoder's layers attend and compute with.
        plan: The device, the dtype and the longest context.
        is_compiled: Whether the layers are to be compiled afterwards.
        stages: Told of the stage.

    Raises:
        OptionError: It is to be compiled, and this machine cannot; nothing was loaded.
    """
    device, dtype = torch.device(plan.device.kind), getattr(torch, plan.dtype)
    if is_compiled:
        check_compiler()
    is_quantized = plan.weights.quantization != "none"
    is_prepacked = (
        not is_compiled and not is_quantized and gains_by_packing(parts[1], device, dtype)
    )
    with stages.run_measured("weights", plan.weight_bytes) as stage:
        with torch.device("meta"):
            decoder = Decoder(model.spec, *parts)
        packed = {} if is_prepacked else packed_formats(decoder, plan.weights.formats)
        place_weights(decoder, device, dtype, packed)
        kernels = parts[1].kernels if isinstance(parts[1], NativeOps) else None
        filled = _fill(model, decoder, (packed, kernels), stages, stage)
        stages.probe.count_as_own(filled.mapped_bytes)
        stage.detail = filled.detail
        decoder.build_rope(device, dtype, plan.max_model_len)
        if is_prepacked:
            prepack_linears(decoder)
        if is_quantized:
            stage.detail += f"; {plan.weights.describe()}"
    return decoder


def _fill(
    model: BootModel,
    decoder: Decoder,
    how: tuple[dict[str, LinearFormat], KernelLibrary | None],
    stages: Stages,
    stage: Stage,
) -> FilledWeights:
    """Fill the decoder; where weights are packed now, the stage gets its peak."""
    filled = FilledWeights("")

    def fill() -> None:
        nonlocal filled
        filled = model.fill(decoder, stages.listener, *how)

    peak_bytes = stages.probe.peak_delta(fill)
    if filled.is_packed_now:
        stage.peak_bytes = peak_bytes
    return filled


def compile_decoder(decoder: Decoder, plan: BootPlan, stages: Stages) -> None:
    """Compile the layers now, by a first step, rather than in front of the first client."""
    with stages.run("compile") as stage:
        compile_layers(decoder)
        warm_libraries(decoder, _step_limits(decoder, plan))
        stage.detail = "torch.compile of what lies around attention"


def fix_reductions(decoder: Decoder, plan: BootPlan, stages: Stages) -> None:
    """Make every layer's rows independent of their number, and check that they are.

    Raises:
        BootError: They are not, with this machine's libraries.
    """
    device, dtype = torch.device(plan.device.kind), getattr(torch, plan.dtype)
    with stages.run(_FIX) as stage:
        part = find_uneven_part(decoder, device, dtype)
        if part is not None:
            pad_single_rows(decoder)
            part = find_uneven_part(decoder, device, dtype)
        if part is not None:
            problem = (
                f"--deterministic cannot be kept on {plan.device.name} in {plan.dtype}: a row of "
                f"the {part} depends on how many rows there are. Try another --dtype or --threads."
            )
            raise BootError(_FIX, problem)
        stage.detail = "a token's bits do not depend on what it is computed with"


def profile_step(
    decoder: Decoder, plan: BootPlan, stages: Stages
) -> tuple[MemoryReading, int | None]:
    """Ask the device for what the weights left, and run the largest step once.

    Returns:
        The reading, and the step's peak in bytes; None where nobody can say.
    """
    limits = _step_limits(decoder, plan)
    with stages.run("profile") as stage:
        if plan.device.kind == "cuda":
            warm_libraries(decoder, limits)
        stages.probe.settle()
        reading = stages.probe.read()
        stage.planned_bytes = plan.activation_bytes
        stage.measured_bytes = measure_peak(decoder, limits, stages.probe)
        stage.detail = (
            f"a step of {plan.max_num_batched_tokens:,} tokens of {plan.max_num_seqs} requests"
        )
    return reading, stage.measured_bytes


def allocate_pool(decoder: Decoder, plan: BootPlan, stages: Stages) -> KVPool:
    """Allocate every block now, so that whatever asks the device next sees them taken."""
    pool_plan = plan.kv_pool
    with stages.run_measured("pool", pool_plan.pool_bytes) as stage:
        pool = KVPool(
            decoder.spec,
            pool_plan.num_blocks,
            pool_plan.block_size,
            _POOL_DTYPES.get(plan.kv_cache_dtype) or getattr(torch, plan.dtype),
            torch.device(plan.device.kind),
            pool_plan.num_sink_blocks,
        )
        stage.detail = (
            f"{pool.num_blocks:,} blocks of {pool.block_size} tokens, "
            f"{pool_plan.concurrency_at_max_len:,} requests of {plan.max_model_len:,}"
        )
    return pool


def _step_limits(decoder: Decoder, plan: BootPlan) -> StepLimits:
    return StepLimits(
        plan.max_num_seqs,
        plan.max_num_batched_tokens,
        plan.max_model_len,
        plan.kv_pool.block_size,
        decoder.spec.vocab_size,
    )
