"""Tiny decoders with random weights, and step plans to run them with."""

from collections.abc import Sequence
from itertools import product

import torch

from nanoserve.attention.select import select_backend
from nanoserve.kernels.kernel_library import KernelLibrary
from nanoserve.kernels.packed_weight import pack, quantize_int4, quantize_int8
from nanoserve.model.decoder import Decoder
from nanoserve.model.native_ops import select_ops
from nanoserve.options import Quantization
from nanoserve.plan.capture_plan import CapturePlan
from nanoserve.plan.weight_plan import choose_formats
from nanoserve.runner.decode_graphs import DecodeGraphs
from nanoserve.runner.graph_recorder import GraphRecorder
from nanoserve.runner.kv_pool import KVPool
from nanoserve.runner.model_runner import ModelRunner
from nanoserve.sched.sampling_params import SamplingParams
from nanoserve.sched.step import ScheduledRequest, StepPlan, StepResult
from nanoserve.spec.model_spec import ModelSpec
from nanoserve.weights.packing import packed_formats, replace_parameters

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


def random_decoder(
    spec: ModelSpec,
    seed: int = 0,
    kernels: KernelLibrary | None = None,
    quantization: Quantization = "none",
) -> Decoder:
    """Return a decoder with weights large enough that greedy tokens vary.

    Native operators get them packed, as when they are loaded.
    """
    generator = torch.Generator().manual_seed(seed)
    ops = select_ops(kernels, is_compiled=False)
    decoder = Decoder(spec, select_backend(spec, CPU, kernels), ops)
    for name, parameter in decoder.named_parameters():
        parameter.normal_(1.0 if "norm" in name else 0.0, 0.2, generator=generator)
    decoder.build_rope(CPU, torch.float32, spec.max_position_embeddings)
    return decoder if kernels is None else pack_decoder(decoder, quantization)


def pack_decoder(decoder: Decoder, quantization: Quantization) -> Decoder:
    """Give a decoder packed weights, as loading with `--quantization` does."""
    parameters = dict(decoder.named_parameters(remove_duplicate=False))
    formats = packed_formats(decoder, choose_formats(quantization, "float32"))
    weights = {}
    for name, one in formats.items():
        values = parameters[name].detach()
        if not one.group_size:
            weights[name] = pack(values)
        elif one.name == "int8":
            weights[name] = quantize_int8(values, one.group_size)
        else:
            weights[name] = quantize_int4(values, one.group_size)
    replace_parameters(decoder, parameters, weights)
    return decoder


def runner_for(decoder: Decoder, num_blocks: int = 64) -> ModelRunner:
    pool = KVPool(decoder.spec, num_blocks, BLOCK_SIZE, torch.float32, CPU)
    return ModelRunner(decoder, pool, CPU)


def capture_plan(
    row_buckets: Sequence[int] = (1, 2, 4),
    width_buckets: Sequence[int] = (128,),
    limit: int = 64,
) -> CapturePlan:
    """Return a plan of the given axes, largest shape first."""
    shapes = tuple(sorted(product(row_buckets, width_buckets), reverse=True))
    return CapturePlan(
        shapes=shapes,
        row_buckets=tuple(row_buckets),
        width_buckets=tuple(width_buckets),
        width_bound_by="context",
        full_count=len(shapes),
        budget_bytes=None,
        limit=limit,
        arena_bytes=0,
    )


def graphs_for(
    decoder: Decoder,
    plan: CapturePlan,
    recorder: GraphRecorder | None = None,
    num_blocks: int = 64,
) -> DecodeGraphs:
    pool = KVPool(decoder.spec, num_blocks, BLOCK_SIZE, torch.float32, CPU, num_sink_blocks=1)
    return DecodeGraphs(decoder, pool, plan, decoder.spec.max_position_embeddings, recorder)


def padded_runner(decoder: Decoder, graphs: DecodeGraphs) -> ModelRunner:
    return ModelRunner(decoder, graphs.pool, CPU, graphs)


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
