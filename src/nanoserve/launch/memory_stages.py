"""The stages that take the device's memory: weights, profile and pool.

Each holds what was measured beside what was planned. How many bytes there are to take is
decided in `plan`.
"""

import torch

from nanoserve.attention.backend import AttentionBackend
from nanoserve.launch.boot_model import BootModel
from nanoserve.launch.stages import Stages
from nanoserve.model.compiled_layers import compile_layers
from nanoserve.model.decoder import Decoder
from nanoserve.model.layers import can_prepack, prepack_linears
from nanoserve.plan.boot_plan import BootPlan
from nanoserve.runner.kv_pool import KVPool
from nanoserve.runner.profile_run import StepLimits, measure_peak
from nanoserve.weights.placement import place_weights


def load_decoder(
    model: BootModel,
    backend: AttentionBackend,
    plan: BootPlan,
    is_compiled: bool,
    stages: Stages,
) -> Decoder:
    """Build the decoder without storage, place each parameter once, fill them all.

    Raises:
        OptionError: It is to be compiled, and this machine cannot; nothing was loaded.
    """
    device, dtype = torch.device(plan.device.kind), getattr(torch, plan.dtype)
    with stages.run_measured("weights", plan.weight_bytes) as stage:
        with torch.device("meta"):
            decoder = Decoder(model.spec, backend)
        if is_compiled:
            compile_layers(decoder)
        place_weights(decoder, device, dtype)
        stage.detail = model.fill(decoder, stages.listener.progress)
        decoder.build_rope(device, dtype, plan.max_model_len)
        if not is_compiled and can_prepack(device, dtype):
            prepack_linears(decoder)
    return decoder


def profile_step(decoder: Decoder, plan: BootPlan, stages: Stages) -> int | None:
    """Run the largest step once; returns its peak in bytes, None where nobody can say."""
    limits = StepLimits(
        plan.max_num_seqs,
        plan.max_num_batched_tokens,
        plan.max_model_len,
        plan.kv_pool.block_size,
        decoder.spec.vocab_size,
    )
    with stages.run("profile") as stage:
        stage.planned_bytes = plan.activation_bytes
        stage.measured_bytes = measure_peak(decoder, limits, stages.probe)
        stage.detail = (
            f"a step of {plan.max_num_batched_tokens:,} tokens of {plan.max_num_seqs} requests"
        )
    return stage.measured_bytes


def allocate_pool(decoder: Decoder, plan: BootPlan, stages: Stages) -> KVPool:
    """Allocate every block now, so that whatever asks the device next sees them taken."""
    pool_plan = plan.kv_pool
    device, dtype = torch.device(plan.device.kind), getattr(torch, plan.dtype)
    with stages.run_measured("pool", pool_plan.pool_bytes) as stage:
        pool = KVPool(
            decoder.spec,
            pool_plan.num_blocks,
            pool_plan.block_size,
            dtype,
            device,
            pool_plan.num_sink_blocks,
        )
        stage.detail = (
            f"{pool.num_blocks:,} blocks of {pool.block_size} tokens, "
            f"{pool_plan.concurrency_at_max_len:,} requests of {plan.max_model_len:,}"
        )
    return pool
