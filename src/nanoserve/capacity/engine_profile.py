"""How each engine divides a device, by version: data and the rules' sources.

Knows no model and multiplies nothing: `engine_memory` applies a profile to a load. Factors are
low, likely, high: nine of ten boots should lie between the outer two.
"""

import re
from dataclasses import dataclass, replace
from typing import Literal

from nanoserve.capacity.engine_versions import check_version
from nanoserve.errors import OptionError

Share = Literal["total", "free at start", "free after load", "demand"]
GraphRule = Literal[
    "outside", "estimate in budget", "estimate perhaps in budget", "measured in budget", "none"
]
Factors = tuple[float, float, float]  # low, likely, high


@dataclass(frozen=True, slots=True)
class EngineProfile:
    """How one engine of some versions accounts for memory.

    Attributes:
        engine: `vllm`, `sglang`, `tensorrt-llm`, `llama.cpp` or `nanoserve`.
        since: First version it holds for, as numbers.
        utilization: Default share; None where the engine works it out (SGLang).
        share_of: What that share is of. `demand` engines hold what the context asks for.
        is_refused_below: Whether a boot is refused where less is free than the share.
        sampler_factors: Bytes for each row and word of the vocabulary that sampling a full
            batch takes.
        mlp_factors: Times the bytes of the MLP's and the residual's rows in the largest step.
        fixed_gib: What any step takes beside the sampler.
        encoder_gib: What profiling the largest image takes, where the model sees images.
        keeps_workspace: Whether the experts' workspace of the largest step stays allocated.
        is_chunked: Whether the profiled step is one token budget rather than a whole prompt.
        splits_long_prompts: Whether prompts of over 32,768 tokens are split all the same.
        graphs: How recorded steps are paid for.
        graph_gib: What they take, where nobody measured.
        graph_layer_mib: What the engine's estimate counts for each layer of each of them; None
            where it makes none.
        lone_gib: What one GPU holds outside the allocator.
        peer_gib: The same of each of several GPUs that share a layer over a fast link.
        slow_peer_gib: The same without such a link.
        block_size: Default tokens of a block.
        small_card_slots: Default slots of a card that is not among the large ones.
        source: Where the rules come from.
    """

    engine: str
    since: tuple[int, ...]
    utilization: float | None
    share_of: Share
    is_refused_below: bool
    sampler_factors: Factors
    mlp_factors: Factors
    fixed_gib: Factors
    encoder_gib: Factors
    keeps_workspace: bool
    is_chunked: bool
    splits_long_prompts: bool
    graphs: GraphRule
    graph_gib: Factors
    graph_layer_mib: Factors | None
    lone_gib: Factors
    peer_gib: Factors
    slow_peer_gib: Factors
    block_size: int
    small_card_slots: int
    source: str


_NOTHING: Factors = (0, 0, 0)
_BY_SORTING: Factors = (6, 38, 41)

_FIRST = EngineProfile(
    engine="vllm",
    since=(0, 1),
    utilization=0.9,
    share_of="total",
    is_refused_below=False,
    sampler_factors=_BY_SORTING,
    mlp_factors=(0.8, 1.2, 1.8),
    fixed_gib=(0, 0.2, 0.5),
    encoder_gib=(0.0, 4.5, 16.0),  # small images alone may be allowed, or none
    keeps_workspace=False,
    is_chunked=False,
    splits_long_prompts=False,
    graphs="outside",
    graph_gib=(0.1, 1.0, 3.0),
    graph_layer_mib=None,
    lone_gib=(0, 0, 0.3),
    peer_gib=(0, 0, 0.3),
    slow_peer_gib=(0, 0, 0.3),
    block_size=16,
    small_card_slots=256,
    source="worker.py, profile_num_available_blocks: only what the allocator peaked at is taken off",
)
_FREE_READ = replace(
    _FIRST,
    since=(0, 2, 5),
    mlp_factors=(0.8, 1.1, 1.8),
    fixed_gib=(0, 0.02, 0.1),
    lone_gib=(0.2, 0.5, 2.0),
    peer_gib=(1.5, 3.4, 5.0),
    slow_peer_gib=(0.4, 0.7, 1.5),
    source="pull request 2031: peak = total - free, so context and fragments are taken off too",
)
_SPLIT = replace(
    _FREE_READ,
    since=(0, 5, 4),
    splits_long_prompts=True,
    source="pull request 6666: prompts over 32,768 tokens are split into steps of 512",
)
_CONTEXT_READ = replace(
    _SPLIT,
    since=(0, 6, 4),
    mlp_factors=(0.8, 1.0, 1.3),
    lone_gib=(0.25, 0.42, 0.6),
    source="worker.py, determine_num_available_blocks: the driver's context is in non-torch memory",
)
_CONTEXT_FREE = replace(
    _CONTEXT_READ,
    since=(0, 6, 5),
    lone_gib=(0.01, 0.07, 0.5),
    peer_gib=(0.9, 2.1, 3.6),
    slow_peer_gib=(0.2, 0.25, 0.9),
    source="pull request 10511: the driver's context is there before the measurement starts",
)
_WIDER_SPLIT = replace(
    _CONTEXT_FREE,
    since=(0, 7),
    source="as before; prompts over 32,768 tokens are split into steps of the token budget",
)
_SECOND = replace(
    _WIDER_SPLIT,
    since=(0, 8),
    is_refused_below=True,
    fixed_gib=(0, 0.05, 0.3),
    encoder_gib=(0.3, 1.6, 4.0),
    is_chunked=True,
    graph_gib=(0.05, 0.5, 2.0),
    lone_gib=(0.01, 0.12, 0.4),
    peer_gib=(0.4, 0.6, 2.2),
    slow_peer_gib=(0.1, 0.3, 0.9),
    small_card_slots=1024,
    source="V1, gpu_worker.py; sampling sorts the logits of every slot in topk_topp_sampler.py",
)
_FEWER_SLOTS = replace(
    _SECOND,
    since=(0, 8, 4),
    small_card_slots=256,
    source="pull request 16158: 1,024 slots on large cards alone",
)
_UNSORTED = replace(
    _FEWER_SLOTS,
    since=(0, 17),
    sampler_factors=(6, 14.5, 38),
    keeps_workspace=True,
    peer_gib=(0.4, 2.1, 4.0),
    source="pull request 33538: top-k and top-p without sorting; v1/worker/workspace.py",
)
_MORE_HELD = replace(
    _UNSORTED,
    since=(0, 18),
    lone_gib=(0.03, 0.25, 0.5),
    peer_gib=(0.5, 2.1, 4.0),
    source="llm-d's accuracy report: one model booted with 0.15 to 0.19, 0.13 GiB until 0.17",
)
_ESTIMATED = replace(
    _MORE_HELD,
    since=(0, 21),
    utilization=0.92,
    sampler_factors=(5, 10, 29),
    graphs="estimate in budget",
    graph_layer_mib=(0.1, 0.22, 0.6),
    lone_gib=(0.02, 0.27, 0.6),
    source="gpu_worker.py: 'CUDA graph memory profiling is enabled (default since v0.21.0)'; "
    "pull request 40376: FlashInfer samples",
)
_SECOND_RUNNER = replace(
    _ESTIMATED,
    since=(0, 24),
    graphs="estimate perhaps in budget",
    source="model runner v2 leaves the estimate out of the budget, v1 does not; recorded boots",
)
_MEASURING = replace(
    _SECOND,
    is_refused_below=False,
    sampler_factors=_NOTHING,
    fixed_gib=_NOTHING,
    encoder_gib=_NOTHING,
    slow_peer_gib=(0.3, 0.5, 0.8),
    lone_gib=(0.3, 0.5, 0.8),
    peer_gib=(0.3, 0.5, 0.8),
    small_card_slots=256,
)
PROFILES = (
    _FIRST,
    _FREE_READ,
    _SPLIT,
    _CONTEXT_READ,
    _CONTEXT_FREE,
    _WIDER_SPLIT,
    _SECOND,
    _FEWER_SLOTS,
    _UNSORTED,
    _MORE_HELD,
    _ESTIMATED,
    _SECOND_RUNNER,
    replace(
        _MEASURING,
        engine="sglang",
        since=(0, 2),
        utilization=None,
        share_of="free at start",
        mlp_factors=_NOTHING,
        graph_gib=(0.3, 1.5, 6.5),
        peer_gib=(1.0, 2.0, 4.0),
        block_size=1,
        source="server_args.py and model_runner.py: pool = free after load - (1 - f) free before",
    ),
    replace(
        _MEASURING,
        engine="tensorrt-llm",
        since=(0, 9),
        share_of="free after load",
        mlp_factors=(0.8, 1.0, 1.3),
        graph_gib=(0.1, 0.5, 2.0),
        lone_gib=(0.4, 0.8, 1.5),
        peer_gib=(1.0, 2.0, 4.0),
        block_size=32,
        source="KvCacheConfig.free_gpu_memory_fraction; kvCacheManager.cpp",
    ),
    replace(
        _MEASURING,
        engine="llama.cpp",
        since=(0,),
        utilization=None,
        share_of="demand",
        mlp_factors=(0.8, 1.0, 2.0),
        graphs="none",
        graph_gib=_NOTHING,
        block_size=1,
        source="llama-context.cpp: the cache holds n_ctx cells, the step n_ubatch tokens",
    ),
    replace(
        _MEASURING,
        engine="nanoserve",
        since=(0,),
        mlp_factors=_NOTHING,
        graphs="measured in budget",
        graph_gib=_NOTHING,
        source="plan.boot_plan: the boot itself is planned, not imitated",
    ),
)
ENGINES = tuple(dict.fromkeys(profile.engine for profile in PROFILES))
_ALIASES = dict.fromkeys(("trt", "trt-llm", "trtllm", "tensorrt"), "tensorrt-llm")
_ALIASES["llamacpp"] = "llama.cpp"
_NUMBERS = re.compile(r"\d{1,6}")
_RELEASE = re.compile(r"[vb]?(\d{1,6}(?:\.\d{1,6}){0,3})(?:rc\d{1,3}|[ab]\d{1,3})?(?!\w|\.\d)")


def find_profile(text: str) -> EngineProfile:
    """Return the profile of `vllm`, `vllm@0.21`, `sglang@0.5.1`; without a version the newest.

    Raises:
        OptionError: No such engine, or no such version.
    """
    name, _, version = text.strip().casefold().partition("@")
    name = _ALIASES.get(name, name)
    if name not in ENGINES:
        message = f"--engine {text[:80]!r} is not known. Known: {', '.join(ENGINES)}."
        raise OptionError(message)
    if not version and "@" not in text:
        return [profile for profile in PROFILES if profile.engine == name][-1]
    numbers = version_numbers(version)
    if numbers is None:
        example = "b9000" if name == "llama.cpp" else "0.21.0"
        message = f"--engine {text[:80]!r}: write a version after the @, as in {name}@{example}."
        raise OptionError(message)
    check_version(name, numbers, text)
    return profile_of(name, numbers)


def profile_of(engine: str, version: tuple[int, ...]) -> EngineProfile:
    """Return the profile that holds for a version; before the first known, the first."""
    known = [profile for profile in PROFILES if profile.engine == engine]
    holding = [profile for profile in known if profile.since <= version]
    return holding[-1] if holding else known[0]


def version_numbers(text: str) -> tuple[int, ...] | None:
    """Return `v0.6.4.post1` as (0, 6, 4), build `b9000` as (9000,); None of no version.

    `0.2x` is none either: it could be any of ten.
    """
    match = _RELEASE.match(text)
    return None if match is None else tuple(map(int, _NUMBERS.findall(match[1])))
