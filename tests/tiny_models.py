"""Tiny decoders with random weights, and step plans to run them with."""

from collections.abc import Sequence

import torch

from nanoserve.attention.select import select_backend
from nanoserve.model.decoder import Decoder
from nanoserve.runner.kv_pool import KVPool
from nanoserve.runner.model_runner import ModelRunner
from nanoserve.sched.sampling_params import SamplingParams
from nanoserve.sched.step import ScheduledRequest, StepPlan, StepResult
from nanoserve.spec.model_spec import ModelSpec

CPU = torch.device("cpu")
BLOCK_SIZE = 4
GREEDY = SamplingParams(temperature=0.0)


def tiny_spec(**changes: object) -> ModelSpec:
    fields: dict[str, object] = {
        "architecture": "llama",
        "num_layers": 2,
        "hidden_size": 32,
        "num_heads": 4,
        "num_kv_heads": 2,
        "head_dim": 8,
        "intermediate_size": 48,
        "vocab_size": 97,
        "max_position_embeddings": 128,
    }
    return ModelSpec(**(fields | changes))  # type: ignore[arg-type]


def random_decoder(spec: ModelSpec, seed: int = 0) -> Decoder:
    """Return a decoder with weights large enough that greedy tokens vary."""
    generator = torch.Generator().manual_seed(seed)
    decoder = Decoder(spec, select_backend(spec, CPU))
    for name, parameter in decoder.named_parameters():
        parameter.normal_(1.0 if "norm" in name else 0.0, 0.2, generator=generator)
    decoder.build_rope(CPU, torch.float32, spec.max_position_embeddings)
    return decoder


def runner_for(decoder: Decoder, num_blocks: int = 64) -> ModelRunner:
    pool = KVPool(decoder.spec, num_blocks, BLOCK_SIZE, torch.float32, CPU)
    return ModelRunner(decoder, pool, CPU)


def scheduled(
    token_ids: Sequence[int],
    block_table: Sequence[int],
    *,
    num_computed_tokens: int = 0,
    request_id: str = "a",
    sampling: SamplingParams = GREEDY,
    seed: int = 0,
    samples: bool = True,
    scored_token_ids: Sequence[int] = (),
) -> ScheduledRequest:
    return ScheduledRequest(
        request_id=request_id,
        token_ids=tuple(token_ids),
        num_computed_tokens=num_computed_tokens,
        block_table=tuple(block_table),
        sampling=sampling,
        seed=seed,
        samples=samples,
        scored_token_ids=tuple(scored_token_ids),
    )


def execute(runner: ModelRunner, *requests: ScheduledRequest) -> StepResult:
    return runner.execute(StepPlan(0, requests))


def generate(
    runner: ModelRunner,
    prompt: Sequence[int],
    num_tokens: int,
    block_table: Sequence[int],
    *,
    sampling: SamplingParams = GREEDY,
    seed: int = 0,
) -> list[int]:
    """Run one request alone: prefill in one step, then decodes."""
    tokens = list(prompt)
    num_computed = 0
    for _ in range(num_tokens):
        result = execute(
            runner,
            scheduled(
                tokens[num_computed:],
                block_table,
                num_computed_tokens=num_computed,
                sampling=sampling,
                seed=seed,
            ),
        )
        num_computed = len(tokens)
        (new_token,) = result.sampled_token_ids
        assert new_token is not None
        tokens.append(new_token)
    return tokens[len(prompt) :]
