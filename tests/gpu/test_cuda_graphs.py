"""The ladder on a CUDA device: what is replayed is what was run."""

import pytest
import torch

from nanoserve.model.decoder import Decoder
from nanoserve.runner.decode_graphs import DecodeGraphs
from nanoserve.runner.graph_recorder import CudaGraphRecorder, GraphRecorder
from nanoserve.runner.kv_pool import KVPool
from nanoserve.runner.model_runner import ModelRunner
from nanoserve.runner.warm import warm_engine
from nanoserve.sched.step import StepMode
from tests.tiny_models import (
    BLOCK_SIZE,
    capture_plan,
    execute,
    random_decoder,
    scheduled,
    tiny_spec,
)

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
SPEC = tiny_spec(max_position_embeddings=256)


def cuda_decoder() -> Decoder:
    decoder = random_decoder(SPEC).to("cuda")
    decoder.build_rope(torch.device("cuda"), torch.float32, SPEC.max_position_embeddings)
    return decoder


def cuda_pool() -> KVPool:
    device = torch.device("cuda")
    return KVPool(SPEC, 64, BLOCK_SIZE, torch.float32, device, num_sink_blocks=1)


def cuda_graphs(decoder: Decoder, recorder: GraphRecorder | None) -> DecodeGraphs:
    plan = capture_plan((1, 2, 4), limit=4)
    return DecodeGraphs(decoder, cuda_pool(), plan, SPEC.max_position_embeddings, recorder)


def shrinking_crowd(runner: ModelRunner) -> tuple[list[tuple[int | None, ...]], list[StepMode]]:
    """Prefill four requests, decode them, and let one end every few steps, the first first."""
    tables = {row: range(16 * row, 16 * row + 16) for row in range(4)}
    tokens = {row: [5 + row] * (3 + 7 * row) for row in range(4)}
    results = []
    for step in range(36):
        for row in [row for row in tokens if step == 9 * (row + 1)]:
            del tokens[row]
        if not tokens:
            break
        parts = [
            scheduled(
                known if step == 0 else known[-1:],
                tables[row],
                num_computed_tokens=0 if step == 0 else len(known) - 1,
                request_id=str(row),
            )
            for row, known in tokens.items()
        ]
        result = execute(runner, *parts)
        results.append(result)
        for known, new in zip(tokens.values(), result.sampled_token_ids, strict=True):
            assert new is not None
            known.append(new)
    return [r.sampled_token_ids for r in results], [r.execution.mode for r in results]


def test_a_cuda_graph_does_the_work_on_the_tensors_it_was_recorded_on() -> None:
    """Replays read what the inputs hold now; two graphs share one arena."""
    device = torch.device("cuda")
    recorder = CudaGraphRecorder(device)
    x = torch.ones(4, device=device)
    doubled, halved = torch.empty_like(x), torch.empty_like(x)

    def double() -> None:
        doubled.copy_(x * 2)

    def halve() -> None:
        halved.copy_(x / 2)

    replays = [recorder.record(double), recorder.record(halve)]
    x.fill_(6.0)
    for replay in replays:
        replay()

    assert doubled.tolist() == [12.0] * 4
    assert halved.tolist() == [3.0] * 4


@pytest.mark.parametrize("is_warm", [True, False])
def test_replayed_steps_give_the_eager_tokens(is_warm: bool) -> None:
    """Warmed or recorded late, a crowd whose first request ends first gets its own tokens."""
    decoder, device = cuda_decoder(), torch.device("cuda")
    expected, _ = shrinking_crowd(ModelRunner(decoder, cuda_pool(), device))
    graphs = cuda_graphs(decoder, CudaGraphRecorder(device))
    if is_warm:
        warm_engine(graphs, lambda done, total: None)

    found, modes = shrinking_crowd(ModelRunner(decoder, graphs.pool, device, graphs))

    assert found == expected
    assert modes.count(StepMode.LATE) == (0 if is_warm else 3)
    assert modes.count(StepMode.EAGER) == 1
