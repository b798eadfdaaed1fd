"""Checks on a device what the tests can only check on a stand-in; exits 1 on a mismatch.

Boots a model of the shape of Llama 3.2 1B with random weights, made on the device, and
serves one ragged crowd in every decode mode, short requests finishing first:

1. float32: captured writes the very K and V that bucketed writes, bit for bit, and draws
   eager's tokens.
2. bfloat16: the budget planned and measured, line by line, and the time between two tokens
   of a request: median and 99th percentile of each mode.
3. bfloat16, one request: tokens a second, and the share of the floor, which is what reading
   the weights once takes at the bandwidth measured here.

    python scripts/gpu_check.py
    python scripts/gpu_check.py --device cpu --tiny     no device: the same checks, in seconds
"""

import gc
import random
import statistics
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Literal

import torch
import typer
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models

from nanoserve.engine.interface import GenerationRequest
from nanoserve.kernels.kernel_library import KernelLibrary
from nanoserve.kernels.packed_weight import pack
from nanoserve.launch.boot import BootedEngine, boot_model
from nanoserve.launch.boot_model import FilledWeights
from nanoserve.launch.find_device import find_device
from nanoserve.launch.stages import BootListener, SilentListener, Stages
from nanoserve.model.decoder import Decoder
from nanoserve.options import MAX_TARGET_ITL_MS, DecodeMode, EngineOptions
from nanoserve.plan.boot_info import boot_lines
from nanoserve.plan.weight_plan import LinearFormat
from nanoserve.runner.device_memory import probe_of
from nanoserve.sched.sampling_params import SamplingParams
from nanoserve.spec.model_spec import ModelSpec
from nanoserve.text.tokenizer import Tokenizer
from nanoserve.units import GIB, MIB
from nanoserve.weights.packing import replace_parameters

LLAMA_1B = ModelSpec(
    architecture="llama",
    num_layers=16,
    hidden_size=2048,
    num_heads=32,
    num_kv_heads=8,
    head_dim=64,
    intermediate_size=8192,
    vocab_size=128256,
    max_position_embeddings=131072,
    rope_theta=500000.0,
    tie_word_embeddings=True,
)
TINY = replace(
    LLAMA_1B,
    num_layers=2,
    hidden_size=64,
    num_heads=4,
    num_kv_heads=2,
    head_dim=16,
    intermediate_size=128,
    vocab_size=512,
    max_position_embeddings=512,
)


class RandomModel:
    """A model whose weights are drawn where they lie; the same ones every time."""

    name = "random"
    stop_token_ids: frozenset[int] = frozenset()
    chat_template = None

    def __init__(self, spec: ModelSpec) -> None:
        self.spec = spec
        backend = Backend(models.WordLevel({"a": 0}, unk_token="a"))
        backend.decoder = decoders.ByteLevel()
        self.tokenizer = Tokenizer(backend)

    def fill(
        self,
        decoder: Decoder,
        listener: BootListener,
        packed: Mapping[str, LinearFormat],
        kernels: KernelLibrary | None,
    ) -> FilledWeights:
        """Draw every parameter, packed ones in the decoder's dtype; norms are about 1."""
        every_name = dict(decoder.named_parameters(remove_duplicate=False))
        parameters = dict(decoder.named_parameters())
        norm = decoder.norm.weight
        generator = torch.Generator(norm.device).manual_seed(0)
        weights = {}
        for index, (name, parameter) in enumerate(parameters.items()):
            values: torch.Tensor = parameter
            if name in packed:
                values = torch.empty(parameter.shape, dtype=norm.dtype, device=norm.device)
            mean = 1.0 if "norm" in name else 0.0
            values.normal_(mean, 1.0 / parameter.shape[-1] ** 0.5, generator=generator)
            if name in packed:
                weights[name] = pack(values)
            listener.progress(index + 1, len(parameters))
        replace_parameters(decoder, every_name, weights)
        return FilledWeights(f"{len(parameters)} random parameters")


@dataclass(slots=True)
class Outcome:
    """What a crowd got.

    Attributes:
        token_ids: New tokens of each request.
        gaps_s: Seconds between two tokens of one request, all requests together.
    """

    token_ids: dict[str, list[int]] = field(default_factory=dict)
    gaps_s: list[float] = field(default_factory=list)


def make_crowd(spec: ModelSpec, num_requests: int, longest: int) -> list[GenerationRequest]:
    """Return requests of every length up to `longest` prompt tokens and as many new ones."""
    draw = random.Random(0)
    crowd = []
    for index in range(num_requests):
        prompt = tuple(draw.randrange(spec.vocab_size) for _ in range(draw.randint(1, longest)))
        sampling = SamplingParams(draw.randint(2, longest), temperature=0.0, ignore_eos=True)
        crowd.append(GenerationRequest(f"r{index}", prompt, sampling))
    return crowd


def serve(booted: BootedEngine, crowd: list[GenerationRequest]) -> Outcome:
    """Serve a crowd to its end."""
    outcome = Outcome({request.request_id: [] for request in crowd})
    last_s: dict[str, float] = {}
    for request in crowd:
        booted.core.add(request)
    while booted.core.has_work:
        deltas = booted.core.step()
        now_s = time.perf_counter()
        for delta in deltas:
            outcome.token_ids[delta.request_id] += delta.token_ids
            if delta.token_ids and delta.request_id in last_s:
                outcome.gaps_s.append(now_s - last_s[delta.request_id])
            last_s[delta.request_id] = now_s
    return outcome


def read_pool(booted: BootedEngine) -> list[torch.Tensor]:
    """Return K and V of every layer, the sink block apart."""
    num_blocks = booted.pool.num_blocks
    return [part[:num_blocks].cpu() for layer in booted.pool.layers for part in layer]


@dataclass(frozen=True, slots=True)
class Check:
    """One device, model and crowd, and what is served in each mode."""

    spec: ModelSpec
    device: Literal["cpu", "cuda"]
    crowd: list[GenerationRequest]
    max_model_len: int
    measured_bandwidth: float

    def boot(self, dtype: str, mode: DecodeMode, **changes: object) -> BootedEngine:
        """Boot one mode; prompts are computed every time they are served."""
        options = EngineOptions(
            device=self.device,
            dtype=dtype,  # type: ignore[arg-type]
            decode_mode=mode,
            max_model_len=self.max_model_len,
            enable_prefix_caching=False,
            # The clock must not cut prompts: blocks would go to other requests in each mode.
            target_itl_ms=MAX_TARGET_ITL_MS,
            **changes,  # type: ignore[arg-type]
        )
        stages = Stages(SilentListener(), probe_of(find_device(self.device)))
        return boot_model(RandomModel(self.spec), options, stages)


def check_equality(check: Check) -> list[str]:
    """Return what differs between the modes in float32."""
    outcomes: dict[str, Outcome] = {}
    pools: dict[str, list[torch.Tensor]] = {}
    num_blocks = 8 * -(-check.max_model_len // 16)
    modes: tuple[DecodeMode, ...] = ("eager", "bucketed", "captured")
    for mode in modes:
        booted = check.boot("float32", mode, num_blocks=num_blocks)
        outcomes[mode], pools[mode] = serve(booted, check.crowd), read_pool(booted)
        del booted
        release()
    num_tokens = sum(map(len, outcomes["eager"].token_ids.values()))
    print(f"float32: {num_tokens:,} tokens of {len(check.crowd)} requests, three modes")
    return find_mismatches(outcomes, pools)


def find_mismatches(
    outcomes: dict[str, Outcome], pools: dict[str, list[torch.Tensor]]
) -> list[str]:
    """Return what differs: tokens from eager's, tokens or a single bit of KV from bucketed's.

    Args:
        outcomes: What each of eager, bucketed and captured answered.
        pools: What each of them left in its pool.
    """
    eager, bucketed, captured = (outcomes[mode] for mode in ("eager", "bucketed", "captured"))
    problems = []
    if eager.token_ids != captured.token_ids:
        problems.append(f"captured and eager differ in {_share(eager, captured):.1%} of tokens")
    if bucketed.token_ids != captured.token_ids:
        problems.append("captured and bucketed answer differently")
    pairs = zip(pools["bucketed"], pools["captured"], strict=True)
    if not all(torch.equal(*pair) for pair in pairs):
        problems.append("captured and bucketed write different K and V")
    return problems


def measure(check: Check, modes: dict[str, dict[str, Any]]) -> None:
    """Print the budget of each mode's boot, and the time between tokens of a second crowd."""
    first: Outcome | None = None
    for label, options in modes.items():
        booted = check.boot("bfloat16", **options)
        serve(booted, check.crowd)  # what compiles at its first step does so here
        outcome = serve(booted, check.crowd)
        print(f"\n{label}: booted in {booted.report.seconds:.1f} s")
        print(*boot_lines(booted.info), sep="\n")
        gaps_ms = [1000.0 * gap for gap in outcome.gaps_s]
        p50, p99 = statistics.median(gaps_ms), statistics.quantiles(gaps_ms, n=100)[98]
        first = first or outcome
        print(f"between tokens: p50 {p50:.2f} ms, p99 {p99:.2f} ms; ", end="")
        print(f"{_share(first, outcome):.1%} of tokens differ from the first mode's")
        print(describe_alone(decode_alone(booted), booted, check.measured_bandwidth))
        del booted
        release()


def decode_alone(booted: BootedEngine) -> float:
    """Return the seconds of a decode step of one request, the median of many."""
    num_tokens = booted.limits.max_model_len // 2
    sampling = SamplingParams(num_tokens, temperature=0.0, ignore_eos=True)
    outcome = serve(booted, [GenerationRequest("alone", (1, 2, 3), sampling)])
    return statistics.median(outcome.gaps_s)


def describe_alone(step_s: float, booted: BootedEngine, bandwidth: float) -> str:
    """Return tokens a second of one request, and how near the floor that is.

    Args:
        step_s: Seconds of a step.
        booted: Whose weights a step reads, all of them: the embedding is the head.
        bandwidth: Bytes a second.
    """
    floor_s = booted.plan.weight_bytes / bandwidth
    return (
        f"alone: {1 / step_s:.1f} tokens/s, {1000 * step_s:.2f} ms a step; floor "
        f"{1000 * floor_s:.2f} ms at {bandwidth / 1e9:,.0f} GB/s: {floor_s / step_s:.0%} of it"
    )


def measure_bandwidth(device: str, num_bytes: int) -> float:
    """Return the bytes a second at which the device adds up a tensor, the best of some tries."""
    values = torch.zeros(num_bytes // 4, dtype=torch.float32, device=device)
    best_s = float("inf")
    for _ in range(10):
        started = time.perf_counter()
        values.sum().item()  # waits for the device
        best_s = min(best_s, time.perf_counter() - started)
    return num_bytes / best_s


def release() -> None:
    """Give the last engine's memory back."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def _share(one: Outcome, other: Outcome) -> float:
    """Return the share of tokens that differ, or that follow one that does."""
    pairs = [
        left == right
        for request_id, token_ids in one.token_ids.items()
        for left, right in zip(token_ids, other.token_ids[request_id], strict=True)
    ]
    return 1.0 - sum(pairs) / len(pairs)


app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def main(
    device: Annotated[str, typer.Option(help="cuda or cpu.")] = "cuda",
    tiny: Annotated[bool, typer.Option(help="A model of two small layers.")] = False,
) -> None:
    """Check equality, then measure."""
    if device not in ("cpu", "cuda"):
        raise typer.BadParameter(device)
    spec, num_requests, longest = (TINY, 12, 40) if tiny else (LLAMA_1B, 24, 200)
    crowd = make_crowd(spec, num_requests, longest)
    bandwidth = measure_bandwidth(device, 64 * MIB if tiny else GIB)
    check = Check(spec, device, crowd, 512 if tiny else 2048, bandwidth)  # type: ignore[arg-type]
    problems = check_equality(check)
    modes: dict[str, dict[str, Any]] = {"eager": {"mode": "eager"}}
    if device == "cuda":
        modes["compiled"] = {"mode": "eager", "compile": True}
        modes["captured, torch attention"] = {"mode": "captured", "attention_backend": "torch"}
    measure(check, modes | {"captured": {"mode": "captured"}})
    for problem in problems:
        print(f"MISMATCH: {problem}", file=sys.stderr)
    raise typer.Exit(1 if problems else 0)


if __name__ == "__main__":
    app()
