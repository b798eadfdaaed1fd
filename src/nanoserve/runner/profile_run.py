"""The profile run: the largest step the scheduler can produce, measured before the pool exists.

Owns what that step looks like. Who sizes the pool with its peak is `plan.boot_plan`.
"""

from dataclasses import dataclass

from nanoserve.model.decoder import Decoder
from nanoserve.runner.device_memory import MemoryProbe
from nanoserve.runner.kv_pool import KVPool
from nanoserve.runner.model_runner import ModelRunner
from nanoserve.sched.sampling_params import SamplingParams
from nanoserve.sched.step import ScheduledRequest, StepPlan
from nanoserve.units import ceil_div


@dataclass(frozen=True, slots=True)
class StepLimits:
    """What bounds a step.

    Attributes:
        max_num_seqs: Requests that run at once.
        max_num_batched_tokens: Token budget of one step; at least `max_num_seqs`.
        max_model_len: Longest request in tokens.
        block_size: Slots in a block.
        vocab_size: Token ids of the model.
    """

    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
    block_size: int
    vocab_size: int

    @property
    def num_blocks(self) -> int:
        """Blocks of one request of the longest length."""
        return ceil_div(self.max_model_len, self.block_size)


def build_largest_step(limits: StepLimits) -> StepPlan:
    """Return the step whose temporaries are largest.

    All requests run, each at the end of the context: one computes as long a prefill chunk
    as the token budget leaves and scores it, the others decode, and every one ranks the
    whole vocabulary for its draw. They share the blocks of one request: what they read
    means nothing, and a scratch pool for each would be the pool that is to be sized.
    """
    num_decodes = limits.max_num_seqs - 1
    chunk_len = min(limits.max_num_batched_tokens - num_decodes, limits.max_model_len)
    lens = [1] * num_decodes + [chunk_len]
    return StepPlan(0, tuple(_request(index, length, limits) for index, length in enumerate(lens)))


def warm_libraries(model: Decoder, limits: StepLimits) -> None:
    """Run the largest step once, unmeasured, on a scratch pool that is freed.

    Libraries take their workspaces, which stay, and what compiles at its first step does.
    A device that is asked afterwards counts them.
    """
    _scratch_runner(model, limits).execute(build_largest_step(limits))


def measure_peak(model: Decoder, limits: StepLimits, probe: MemoryProbe) -> int | None:
    """Return the bytes the largest step takes for a moment; None where nobody can say.

    The scratch pool is there before the level is read, so that the figure does not hold
    it, and is freed afterwards.

    Args:
        model: Loaded, and ready for a step.
        limits: What bounds the step.
        probe: Of the model's device.
    """
    runner, step = _scratch_runner(model, limits), build_largest_step(limits)
    return probe.peak_delta(lambda: runner.execute(step))


def _scratch_runner(model: Decoder, limits: StepLimits) -> ModelRunner:
    weight = model.norm.weight  # others may be packed
    pool = KVPool(model.spec, limits.num_blocks, limits.block_size, weight.dtype, weight.device)
    return ModelRunner(model, pool, weight.device)


def _request(index: int, num_tokens: int, limits: StepLimits) -> ScheduledRequest:
    return ScheduledRequest(
        request_id=f"profile-{index}",
        token_ids=(0,) * num_tokens,
        num_computed_tokens=limits.max_model_len - num_tokens,
        block_table=tuple(range(limits.num_blocks)),
        sampling=SamplingParams(top_k=limits.vocab_size, top_p=0.5),
        seed=0,
        samples=True,
        scored_token_ids=(0,) * (num_tokens - 1),
    )
