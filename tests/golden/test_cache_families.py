"""Caches of families on which the naive formula fails, against what real engines logged."""

import json
from pathlib import Path
from typing import Any

import pytest

from nanoserve.capacity.kv_groups import group_cache, hybrid_block_size, without_windows
from nanoserve.plan.kv_layout import (
    CacheFormat,
    full_bytes_per_token,
    growing_bytes_per_token,
    kv_request_bytes,
    state_bytes,
    state_bytes_per_request,
)
from nanoserve.plan.sharding import plan_stages
from nanoserve.spec.model_shape import ModelShape
from nanoserve.spec.read_shape import read_model_shape
from nanoserve.units import GIB, MIB

ROWS = [
    json.loads(line)
    for line in (Path(__file__).parent / "planner_configs.jsonl").read_text().splitlines()
]
CONFIGS: dict[str, Any] = {row["model"]: row["config"] for row in ROWS}
BF16 = CacheFormat()


def shape_of(model: str) -> ModelShape:
    return read_model_shape(CONFIGS[model], "config.json")


def tokens_in(pool_gib: float, bytes_per_token: int) -> int:
    """Return the tokens of whole blocks of 16 in a pool."""
    return int(pool_gib * GIB) // (16 * bytes_per_token) * 16


@pytest.mark.parametrize(
    ("model", "bytes_per_token"),
    [
        ("deepseek-ai/DeepSeek-V3", 70_272),
        ("tiiuae/falcon-7b", 8_192),
        ("google/gemma-3-27b-it", 81_920),
        ("Qwen/Qwen3-Next-80B-A3B-Instruct", 24_576),
        ("openai/gpt-oss-20b", 24_576),
        ("mistralai/Mixtral-8x7B-v0.1", 131_072),
        ("google/gemma-4-31B-it", 81_920),
        ("meta-llama/Llama-4-Scout-17B-16E-Instruct", 49_152),
    ],
)
def test_a_further_token_where_other_tools_fail(model: str, bytes_per_token: int) -> None:
    """A token past every window costs this much; tools that count all layers say up to 71 times."""
    assert growing_bytes_per_token(shape_of(model), BF16) == bytes_per_token


def test_gemma_3_27b_in_groups() -> None:
    """1 group of 10 full layers, 6 of sliding ones with 8 padding layers: 14.23 GiB admitted."""
    shape = shape_of("google/gemma-3-27b-it")
    groups = group_cache(shape, BF16)

    assert (groups.group_size, groups.num_padding_layers) == (10, 8)
    assert groups.request_blocks(131_072, BF16) == 8192 + 6 * 577
    assert groups.request_bytes(131_072, BF16) / GIB == pytest.approx(14.23, abs=0.005)
    assert kv_request_bytes(shape, 131_072, BF16) / GIB == pytest.approx(10.41, abs=0.005)
    assert full_bytes_per_token(shape, BF16) * 131_072 == 62 * GIB


@pytest.mark.parametrize(("pool_gib", "logged"), [(64.68, 626_949), (103.92, 1_007_303)])
def test_gemma_4_31b_on_an_h200(pool_gib: float, logged: int) -> None:
    """Tokens of two pools as vLLM logged them, from a worst case of 108.17 KiB a token."""
    groups = group_cache(shape_of("google/gemma-4-31B-it"), BF16)
    tokens = groups.logged_tokens(int(pool_gib * GIB), 262_144, BF16)

    per_token = groups.request_bytes(262_144, BF16) / 262_144
    assert per_token / 1024 == pytest.approx(108.17, abs=0.01)
    assert tokens == pytest.approx(logged, rel=0.00005)  # the pool is known to 0.005 GiB


@pytest.mark.parametrize(
    ("model", "pool_gib", "max_model_len", "cache", "logged"),
    [
        (
            "nvidia/Qwen3.6-35B-A3B-NVFP4",
            6.01,
            131_072,
            CacheFormat(itemsize=1, num_states=2),
            569_878,
        ),
        (
            "nvidia/Qwen3.6-27B-NVFP4",
            9.84,
            262_144,
            CacheFormat(itemsize=1, num_states=2, tp=2),
            619_202,
        ),
        ("Qwen/Qwen3.6-35B-A3B", 13.1, 32_768, CacheFormat(num_states=2), 560_505),
    ],
)
def test_hybrids_are_exact_to_the_token(
    model: str, pool_gib: float, max_model_len: int, cache: CacheFormat, logged: int
) -> None:
    """Three start-ups of vLLM 0.21 to 0.24: fp8 and bf16 K and V, float32 states, 1 and 2 ranks."""
    groups = group_cache(shape_of(model), cache)

    assert groups.logged_tokens(int(pool_gib * GIB), max_model_len, cache) == logged


@pytest.mark.parametrize(
    ("state_dtype", "block_size", "padding"), [("bfloat16", 544, 1.49), ("float32", 1056, 0.76)]
)
def test_qwen3_next_blocks_grow_to_the_state(
    state_dtype: str, block_size: int, padding: float
) -> None:
    """The block is raised until a page of attention holds a state; so vLLM logs it."""
    config = CONFIGS["Qwen/Qwen3-Next-80B-A3B-Instruct"] | {"mamba_ssm_dtype": state_dtype}
    shape = read_model_shape(config, "config.json")
    first = shape.layers[0].state

    assert first is not None
    state = state_bytes(first, BF16)
    assert hybrid_block_size(shape, BF16) == block_size
    assert 100 * (block_size * 2048 - state) / state == pytest.approx(padding, abs=0.005)


def test_a_state_of_qwen3_next() -> None:
    """In bf16 one layer's state is 1,097,728 bytes."""
    first = shape_of("Qwen/Qwen3-Next-80B-A3B-Instruct").layers[0].state

    assert first is not None
    assert state_bytes(first, BF16) == 1_097_728


def test_qwen3_6_27b_under_llama_cpp() -> None:
    """16,384 MiB of K and V at 262,144 tokens and 598.5 MiB of float32 states in 4 slots."""
    shape = shape_of("nvidia/Qwen3.6-27B-NVFP4")
    in_float32 = CacheFormat(state_itemsize=4)

    assert full_bytes_per_token(shape, BF16) == 65_536
    assert full_bytes_per_token(shape, BF16) * 262_144 == 16_384 * MIB
    assert 4 * state_bytes_per_request(shape, in_float32) == int(598.5 * MIB)


@pytest.mark.parametrize("tp", [1, 2, 8])
def test_a_latent_is_whole_on_every_rank(tp: int) -> None:
    """DeepSeek-V3 takes 70,272 bytes a token, on each of 8 ranks as on one."""
    cache = CacheFormat(tp=tp)

    assert full_bytes_per_token(shape_of("deepseek-ai/DeepSeek-V3"), cache) == 70_272


@pytest.mark.parametrize(
    ("model", "bytes_per_token"),
    [("deepseek-ai/DeepSeek-V3.2", 78_324), ("zai-org/GLM-5", 100_152)],
)
def test_an_indexer_keeps_its_keys_too(model: str, bytes_per_token: int) -> None:
    """Sparse attention reads some tokens and keeps all, with 132 bytes a layer for the index."""
    assert full_bytes_per_token(shape_of(model), BF16) == bytes_per_token


def test_llama_4_scout_at_a_million_tokens() -> None:
    """24.00 GiB a rank where chunks are kept whole, as vLLM's error said; 6.28 where freed."""
    shape, cache = shape_of("meta-llama/Llama-4-Scout-17B-16E-Instruct"), CacheFormat(tp=8)

    assert full_bytes_per_token(shape, cache) * 1_048_576 == 24 * GIB
    assert group_cache(without_windows(shape), cache).request_bytes(1_048_576, cache) == 24 * GIB
    assert kv_request_bytes(shape, 1_048_576, cache, "admitted") == 6.28125 * GIB


@pytest.mark.parametrize(
    ("model", "pool_gib", "tokens"),
    [
        ("Qwen/Qwen3-1.7B", 18.78, 175_856),
        ("meta-llama/Llama-3.1-8B-Instruct", 58.11, 476_016),
    ],
)
def test_tokens_of_logged_pools(model: str, pool_gib: float, tokens: int) -> None:
    """Pools that vLLM logged hold the tokens that it logged, to what two decimals can say."""
    found = tokens_in(pool_gib, full_bytes_per_token(shape_of(model), BF16))

    assert found == pytest.approx(tokens, rel=0.0003)


@pytest.mark.parametrize(
    ("model", "tp", "bytes_per_token"),
    [
        ("Qwen/Qwen2.5-0.5B", 2, 6_144),
        ("Qwen/Qwen2.5-0.5B", 8, 6_144),
        ("tiiuae/falcon-7b", 8, 8_192),
        ("meta-llama/Meta-Llama-3-70B", 8, 40_960),
        ("meta-llama/Meta-Llama-3-70B", 16, 40_960),
    ],
)
def test_kv_heads_are_replicated_past_one_per_rank(
    model: str, tp: int, bytes_per_token: int
) -> None:
    """More ranks than KV heads save nothing."""
    assert full_bytes_per_token(shape_of(model), CacheFormat(tp=tp)) == bytes_per_token


def test_the_fattest_stage_of_llama_3_1_8b() -> None:
    """Of 4 stages the first, with the embedding, takes 4.26 GiB, not a quarter of 14.99."""
    stages = plan_stages(shape_of("meta-llama/Llama-3.1-8B-Instruct"), pp=4)

    fattest = max(stage.num_params for stage in stages) * 2 / GIB
    assert fattest == pytest.approx(4.26, rel=0.01)
    assert [stage.num_layers for stage in stages] == [8, 8, 8, 8]


def test_layers_that_share_take_nothing() -> None:
    """The last 15 of Gemma 3n's 35 layers read earlier layers' K and V."""
    shape = shape_of("defaults of gemma3n_text")
    shared = [layer.attention.shares_with for layer in shape.layers if layer.attention]

    assert shared[:20] == [None] * 20
    assert shared[20:] == [18, 18, 18, 18, 19] * 3
    assert full_bytes_per_token(shape, BF16) == 20 * 2 * 2 * 256 * 2


def test_whisper_keeps_the_encoder_once() -> None:
    """Cross-attention takes one K and V per encoder position, 1,500 of them, in every layer."""
    shape = shape_of("defaults of whisper")
    per_token = 4 * 2 * 384 * 2

    assert kv_request_bytes(shape, 448, BF16) == (448 + 1504) * per_token
    assert kv_request_bytes(shape, 448, BF16, num_encoder_tokens=100) == (448 + 112) * per_token


def test_a_pure_mamba_keeps_no_tokens() -> None:
    """Its cache is the state, whatever the length."""
    shape = shape_of("defaults of mamba2")

    assert full_bytes_per_token(shape, BF16) == 0
    assert kv_request_bytes(shape, 10, BF16) == kv_request_bytes(shape, 10_000, BF16)
