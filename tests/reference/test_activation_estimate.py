"""What the largest step really allocates on a CPU, against the estimate on paper."""

from collections.abc import Callable

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from nanoserve.attention.select import select_backend
from nanoserve.model.decoder import Decoder
from nanoserve.plan.activation_plan import (
    DRAWN_LOGIT_BYTES,
    SCORED_ROWS_AT_ONCE,
    estimate_activation_bytes,
    largest_step,
)
from nanoserve.runner.kv_pool import KVPool
from nanoserve.runner.model_runner import ModelRunner
from nanoserve.sched.sampling_params import SamplingParams
from nanoserve.sched.step import ScheduledRequest, StepPlan
from nanoserve.spec.model_spec import ModelSpec
from tests.tiny_models import CPU, GREEDY, scheduled, tiny_spec

BLOCK_SIZE = 16
CONTEXT = 2048  # tokens
TOKEN_BUDGET = 512
SLACK_BYTES = 2**20  # index tensors and kernels' scratch, which no formula counts
FLAT = SamplingParams(temperature=1.0, top_p=0.1)  # draws again and again where logits are alike


def spec_of_width(num_heads: int, num_kv_heads: int, **changes: object) -> ModelSpec:
    """Return two layers of a real width: temporaries do not grow with depth."""
    fields = {"hidden_size": num_heads * 64, "num_heads": num_heads, "num_kv_heads": num_kv_heads}
    shape = {"head_dim": 64, "intermediate_size": 1536, "max_position_embeddings": CONTEXT}
    return tiny_spec(**(fields | shape | changes))


def step_of(
    num_decodes: int, num_chunk_tokens: int, params: SamplingParams, context: int = CONTEXT
) -> StepPlan:
    """Return decodes and one prefill chunk, all at the full context."""
    blocks = context // BLOCK_SIZE

    def request(index: int, num_tokens: int) -> ScheduledRequest:
        table = range(index * blocks, (index + 1) * blocks)
        num_computed = context - num_tokens
        return scheduled(
            [1] * num_tokens,
            table,
            num_computed_tokens=num_computed,
            request_id=str(index),
            sampling=params,
        )

    sizes = [1] * num_decodes + [num_chunk_tokens] * (num_chunk_tokens > 0)
    return StepPlan(0, tuple(request(index, size) for index, size in enumerate(sizes)))


def runner_of(spec: ModelSpec, dtype: torch.dtype, num_requests: int) -> ModelRunner:
    decoder = Decoder(spec, select_backend(spec, CPU)).to(dtype)
    generator = torch.Generator().manual_seed(0)  # how often a draw tries again is in the logits
    for parameter in decoder.parameters():
        parameter.normal_(0.0, 0.01, generator=generator)
    decoder.build_rope(CPU, dtype, CONTEXT)
    pool = KVPool(spec, num_requests * CONTEXT // BLOCK_SIZE, BLOCK_SIZE, dtype, CPU)
    for layer in pool.layers:
        for side in layer:
            side.zero_()
    return ModelRunner(decoder, pool, CPU)


def peak_bytes(action: Callable[[], object]) -> int:
    """Return the most that was allocated at once while `action` ran."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        action()
    assert profiler.profiler is not None
    assert profiler.profiler.kineto_results is not None
    events = [e for e in profiler.profiler.kineto_results.events() if e.name() == "[memory]"]
    held_bytes = peak = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        held_bytes += event.nbytes()
        peak = max(peak, held_bytes)
    return peak


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(
    ("spec", "num_decodes"),
    [
        (spec_of_width(9, 3), 8),  # K and V out of the pool are the largest
        (spec_of_width(9, 3, intermediate_size=8192), 1),  # the MLP is
        (spec_of_width(9, 3, sliding_window=1024), 4),
    ],
)
def test_estimate_is_just_above_the_largest_step(
    spec: ModelSpec, num_decodes: int, dtype: torch.dtype
) -> None:
    """Decodes and a chunk at full length take what was estimated, and at least 0.8 of it."""
    step = step_of(num_decodes, TOKEN_BUDGET - num_decodes, GREEDY)
    runner = runner_of(spec, dtype, num_decodes + 1)
    itemsize = dtype.itemsize
    shape = largest_step(num_decodes, CONTEXT, TOKEN_BUDGET, itemsize, is_fused=True)
    estimated = estimate_activation_bytes(spec, shape, itemsize, DRAWN_LOGIT_BYTES).peak_bytes
    measured = peak_bytes(lambda: runner.execute(step))

    assert 0.8 * estimated < measured < estimated + SLACK_BYTES


def test_draw_is_the_largest_of_a_wide_vocabulary() -> None:
    """The worst draw takes what one logit is said to take, the rest of a small model little."""
    spec = spec_of_width(2, 1, intermediate_size=64, vocab_size=49_152)
    runner = runner_of(spec, torch.float32, 8)
    shape = largest_step(8, 64, 8, 4, is_fused=True)
    estimated = estimate_activation_bytes(spec, shape, 4, DRAWN_LOGIT_BYTES).peak_bytes
    measured = peak_bytes(lambda: runner.execute(step_of(8, 0, FLAT, context=64)))

    # The copy that numpy makes for a large top-k, 4 of a logit's bytes, is not torch's to count.
    assert 0.75 * estimated < measured < estimated + SLACK_BYTES


def test_scored_rows_take_what_is_said() -> None:
    """A scored prompt holds logits and log-probabilities of 64 rows, and nothing of the last 64."""
    spec = spec_of_width(2, 1, intermediate_size=64, vocab_size=49_152)
    runner = runner_of(spec, torch.float32, 1)
    tokens = [1] * 128
    request = scheduled(tokens, range(8), samples=False, scored_token_ids=tokens)
    measured = peak_bytes(lambda: runner.execute(StepPlan(0, (request,))))

    assert measured / (SCORED_ROWS_AT_ONCE * spec.vocab_size) == pytest.approx(8, rel=0.05)
