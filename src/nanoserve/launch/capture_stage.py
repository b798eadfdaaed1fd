"""The stage that records steps: after the pool, since a graph keeps its addresses.

Owns the order: buffers, gates, warm, gates, and last the steps with prompts, whose results lie
in the same block. Which shapes there are is `plan.capture_plan`'s.
"""

from dataclasses import dataclass

import torch

from nanoserve.kernels.kernel_library import KernelLibrary
from nanoserve.launch.stages import Stages
from nanoserve.model.decoder import Decoder
from nanoserve.plan.boot_checks import (
    PoolShape,
    check_all_shapes_captured,
    check_capture_limit,
    check_capture_matches_cache,
    list_shapes,
)
from nanoserve.plan.boot_info import CaptureOutcome
from nanoserve.plan.boot_plan import BootPlan
from nanoserve.plan.boot_sizing import LOGIT_BYTES
from nanoserve.plan.capture_axes import mixed_tokens
from nanoserve.plan.capture_plan import CapturePlan
from nanoserve.runner.decode_graphs import DecodeGraphs
from nanoserve.runner.graph_recorder import CudaGraphRecorder, GraphRecorder, ReplayRecorder
from nanoserve.runner.kv_pool import KVPool
from nanoserve.runner.mixed_graphs import MixedGraphs
from nanoserve.runner.native_recorder import NativeRecorder
from nanoserve.runner.warm import warm_engine

_ROUNDING_BYTES = 4096  # of the few results that are needed at once, each to the next 64


@dataclass(frozen=True, slots=True)
class PreparedSteps:
    """What steps are run on, beside the eager path.

    Attributes:
        graphs: Decode steps that are padded; None where they run as they come.
        mixed: Steps that read prompts; None where recording takes long.
        outcome: What warming did to the planned shapes; None where none were planned.
    """

    graphs: DecodeGraphs | None = None
    mixed: MixedGraphs | None = None
    outcome: CaptureOutcome | None = None


def prepare_steps(
    decoder: Decoder,
    pool: KVPool,
    plan: BootPlan,
    is_warm: bool,
    stages: Stages,
    recorder: GraphRecorder | None,
) -> PreparedSteps:
    """Allocate the buffers of padded steps and, unless told not to, record every shape.

    Steps with prompts are recorded either way: there is one record, and it takes milliseconds.

    Args:
        decoder: Loaded.
        pool: Allocated, with a sink block.
        plan: Without a capture plan, nothing is done.
        is_warm: Whether shapes are recorded now rather than when a step first needs them.
        stages: Told of the stage, and of the shapes that had to be dropped.
        recorder: What `recorder_for` returns.

    Raises:
        BootUnsound: What was recorded is not what was planned.
    """
    capture = plan.capture
    if capture is None:
        return PreparedSteps()
    with stages.run_measured("capture", plan.kv_pool.capture_bytes) as stage:
        graphs = DecodeGraphs(decoder, pool, capture, plan.max_model_len, recorder)
        shape = PoolShape(pool.num_blocks, pool.block_size, pool.sink_block)
        check_capture_matches_cache(capture, graphs.buffer_shape, shape)
        outcome = CaptureOutcome((), (), is_warm=False)
        if is_warm:
            outcome = warm_engine(graphs, stages.listener.progress, stages.held_bytes)
            _check_outcome(capture, graphs, outcome)
        mixed = _prepare_mixed(decoder, graphs, plan, recorder)
        stage.detail = f"{len(outcome.recorded)} warm; {capture.describe()}"
    if outcome.dropped:
        stages.listener.note(_describe_dropped(outcome))
    return PreparedSteps(graphs, mixed, outcome)


def _prepare_mixed(
    decoder: Decoder, graphs: DecodeGraphs, plan: BootPlan, recorder: GraphRecorder | None
) -> MixedGraphs | None:
    """Allocate what steps with prompts are recorded on; None where recording takes long."""
    if not isinstance(recorder, NativeRecorder):
        return None
    max_tokens = mixed_tokens(plan.max_num_batched_tokens)
    return MixedGraphs(
        decoder, graphs.pool, graphs.logits_buffer, plan.max_model_len, max_tokens, recorder
    )


def recorder_for(
    plan: BootPlan, vocab_size: int, kernels: KernelLibrary | None
) -> GraphRecorder | None:
    """Return what records decode steps; None where they are only padded, or not even that.

    Args:
        plan: How decode steps run, and where.
        vocab_size: Logits of a row.
        kernels: What a whole step is made of on a CPU, as `native_steps` says.
    """
    if plan.decode_mode != "captured":
        return None
    if plan.device.kind == "cuda":
        return CudaGraphRecorder(torch.device("cuda"))
    if kernels is None or plan.capture is None:
        return ReplayRecorder()
    logits_bytes = plan.capture.max_rows * vocab_size * LOGIT_BYTES
    result_bytes = plan.capture.arena_bytes - logits_bytes
    return NativeRecorder(kernels, result_bytes + _ROUNDING_BYTES)


def _check_outcome(capture: CapturePlan, graphs: DecodeGraphs, outcome: CaptureOutcome) -> None:
    check_all_shapes_captured(capture, (*outcome.recorded, *outcome.dropped))
    check_capture_limit(capture, len(graphs.recorded))


def _describe_dropped(outcome: CaptureOutcome) -> str:
    num_planned = len(outcome.dropped) + len(outcome.recorded)
    return (
        f"capture dropped, of {num_planned} planned, {list_shapes(outcome.dropped)} for which "
        "the device has no memory left: such steps run eager. Lower --warm-width, --warm-rows or "
        "--gpu-memory-utilization."
    )
