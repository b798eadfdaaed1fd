"""`Decoder` gives the logits and the greedy tokens of transformers, family by family."""

import random
from typing import Any

import pytest
import torch
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from nanoserve.attention.select import select_backend
from nanoserve.kernels.kernel_library import KernelLibrary
from nanoserve.model.decoder import Decoder
from nanoserve.model.layers import prepack_linears
from nanoserve.model.native_ops import select_ops
from nanoserve.runner.input_buffers import build_step_inputs
from nanoserve.runner.kv_pool import KVPool
from nanoserve.sched.batch_layout import BatchLayout
from nanoserve.sched.step import ScheduledRequest, StepPlan
from nanoserve.spec.model_spec import ModelSpec, RopeScaling
from tests.native_kernels import native_kernels, needs_kernels
from tests.tiny_models import (
    BLOCK_SIZE,
    CPU,
    execute,
    pack_decoder,
    runner_for,
    scheduled,
    tiny_spec,
)

CONTEXT = 48
KERNELS: dict[str, KernelLibrary | None] = {"chosen": None}  # what the tests run on
LLAMA3: dict[str, Any] = {
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}
YARN: dict[str, Any] = {"factor": 4.0, "original_max_position_embeddings": 16}

FAMILIES: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "llama": (LlamaConfig, LlamaForCausalLM, {}),
    "llama-tied": (LlamaConfig, LlamaForCausalLM, {"tie_word_embeddings": True}),
    "llama-wide-heads": (LlamaConfig, LlamaForCausalLM, {"head_dim": 16}),
    "llama-one-kv-head": (LlamaConfig, LlamaForCausalLM, {"num_kv_heads": 1}),
    "llama-all-kv-heads": (LlamaConfig, LlamaForCausalLM, {"num_kv_heads": 4}),
    "llama-biases": (
        LlamaConfig,
        LlamaForCausalLM,
        {"has_qkv_bias": True, "has_output_bias": True, "has_mlp_bias": True},
    ),
    "llama-llama3-rope": (
        LlamaConfig,
        LlamaForCausalLM,
        {"rope_scaling": RopeScaling(kind="llama3", **LLAMA3)},
    ),
    "llama-linear-rope": (
        LlamaConfig,
        LlamaForCausalLM,
        {"rope_scaling": RopeScaling(kind="linear", factor=4.0)},
    ),
    "llama-yarn-rope": (
        LlamaConfig,
        LlamaForCausalLM,
        {"rope_scaling": RopeScaling(kind="yarn", **YARN)},
    ),
    "mistral": (MistralConfig, MistralForCausalLM, {}),
    "mistral-window": (MistralConfig, MistralForCausalLM, {"sliding_window": 7}),
    "qwen2": (Qwen2Config, Qwen2ForCausalLM, {"has_qkv_bias": True}),
    "qwen3": (Qwen3Config, Qwen3ForCausalLM, {"has_qk_norm": True, "head_dim": 16}),
}


@pytest.fixture(params=["torch", pytest.param("native", marks=needs_kernels)], autouse=True)
def kernels(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run each test on plain torch and on native operators."""
    monkeypatch.setitem(KERNELS, "chosen", native_kernels() if request.param == "native" else None)


def build_pair(family: str, *, is_packed: bool = True) -> tuple[Any, Decoder]:
    """Return transformers' model and ours with the same random weights.

    Args:
        family: Of `FAMILIES`.
        is_packed: Whether native operators get them as loading packs them.
    """
    config_class, model_class, changes = FAMILIES[family]
    spec = tiny_spec(**changes)
    torch.manual_seed(7)
    theirs = model_class(config_class(**hf_fields(spec, config_class))).eval()
    for name, parameter in theirs.named_parameters():
        parameter.data.normal_(1.0 if "norm" in name else 0.0, 0.2)
    chosen = KERNELS["chosen"]
    ops = select_ops(chosen, is_compiled=False)
    ours = Decoder(spec, select_backend(spec, CPU, chosen), ops)
    ours.build_rope(CPU, torch.float32, spec.max_position_embeddings)
    copy_weights(theirs.state_dict(), ours)
    return theirs, pack_decoder(ours, "none") if chosen and is_packed else ours


def hf_fields(spec: ModelSpec, config_class: Any) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "hidden_size": spec.hidden_size,
        "num_hidden_layers": spec.num_layers,
        "num_attention_heads": spec.num_heads,
        "num_key_value_heads": spec.num_kv_heads,
        "head_dim": spec.head_dim,
        "intermediate_size": spec.intermediate_size,
        "vocab_size": spec.vocab_size,
        "max_position_embeddings": spec.max_position_embeddings,
        "rms_norm_eps": spec.rms_norm_eps,
        "tie_word_embeddings": spec.tie_word_embeddings,
        "attn_implementation": "eager",
        "bos_token_id": None,
        "eos_token_id": None,
        "pad_token_id": None,
        "rope_parameters": rope_parameters(spec),
    }
    if config_class is LlamaConfig:
        fields |= {"attention_bias": spec.has_qkv_bias, "mlp_bias": spec.has_mlp_bias}
    if config_class is MistralConfig:
        fields |= {"sliding_window": spec.sliding_window}
    return fields


def rope_parameters(spec: ModelSpec) -> dict[str, Any]:
    scaling = spec.rope_scaling
    if scaling is None:
        return {"rope_type": "default", "rope_theta": spec.rope_theta}
    extra = {"llama3": LLAMA3, "yarn": YARN, "linear": {"factor": 4.0}}[scaling.kind]
    return {"rope_type": scaling.kind, "rope_theta": spec.rope_theta, **extra}


def copy_weights(theirs: dict[str, torch.Tensor], ours: Decoder) -> None:
    """Copy by name, fusing q/k/v and gate/up; every parameter of ours is written."""
    for name, parameter in ours.named_parameters():
        source = name if name.startswith("lm_head") else f"model.{name}"
        for fused, parts in (
            ("qkv_proj", ("q_proj", "k_proj", "v_proj")),
            ("gate_up_proj", ("gate_proj", "up_proj")),
        ):
            if fused in source:
                parameter.copy_(torch.cat([theirs[source.replace(fused, part)] for part in parts]))
                break
        else:
            parameter.copy_(theirs[source])


@torch.inference_mode()
def run_step(decoder: Decoder, pool: KVPool, *requests: ScheduledRequest) -> list[torch.Tensor]:
    """Run one step; return the logits of every token, request by request."""
    layout = BatchLayout.from_step(StepPlan(0, requests), BLOCK_SIZE)
    inputs = build_step_inputs(layout, CPU)
    every_row = torch.arange(len(layout.token_ids))
    logits = decoder(inputs.token_ids, inputs.positions, pool.layers, inputs.attention, every_row)
    return list(logits.split(layout.query_lens))


@torch.inference_mode()
def their_logits(model: Any, token_ids: list[int]) -> torch.Tensor:
    logits: torch.Tensor = model(torch.tensor([token_ids])).logits[0]
    return logits


def new_pool(decoder: Decoder) -> KVPool:
    return KVPool(decoder.spec, 64, BLOCK_SIZE, torch.float32, CPU)


def random_tokens(count: int, seed: int) -> list[int]:
    return random.Random(seed).choices(range(97), k=count)


def shuffled_tables(num_requests: int, seed: int) -> list[list[int]]:
    blocks = list(range(64))
    random.Random(seed).shuffle(blocks)
    size = CONTEXT // BLOCK_SIZE
    return [blocks[index * size : (index + 1) * size] for index in range(num_requests)]


@pytest.mark.parametrize("family", FAMILIES)
def test_logits_of_every_row_equal_transformers(family: str) -> None:
    """One prefill gives transformers' logits within 1e-4, for every token of the prompt."""
    theirs, ours = build_pair(family)
    tokens = random_tokens(CONTEXT - 5, seed=1)
    (table,) = shuffled_tables(1, seed=1)

    (logits,) = run_step(ours, new_pool(ours), scheduled(tokens, table))

    assert logits.dtype == torch.float32
    torch.testing.assert_close(logits, their_logits(theirs, tokens), atol=1e-4, rtol=0)


@pytest.mark.parametrize("family", FAMILIES)
def test_cached_decode_equals_the_full_forward(family: str) -> None:
    """Token by token over the pool, the logits are those of one forward of the whole text."""
    theirs, ours = build_pair(family)
    tokens = random_tokens(25, seed=2)
    (table,) = shuffled_tables(1, seed=2)
    pool = new_pool(ours)

    rows = [
        run_step(ours, pool, scheduled([token], table, num_computed_tokens=position))[0]
        for position, token in enumerate(tokens)
    ]

    torch.testing.assert_close(torch.cat(rows), their_logits(theirs, tokens), atol=1e-4, rtol=0)


@pytest.mark.parametrize("chunk_len", [2, 5, 16])
@pytest.mark.parametrize("family", ["llama", "mistral-window", "qwen3"])
def test_chunked_prefill_equals_the_whole(family: str, chunk_len: int) -> None:
    """A prompt computed in chunks has the logits of the prompt computed at once."""
    theirs, ours = build_pair(family)
    tokens = random_tokens(37, seed=3)
    (table,) = shuffled_tables(1, seed=3)
    pool = new_pool(ours)

    rows = [
        run_step(
            ours,
            pool,
            scheduled(tokens[start : start + chunk_len], table, num_computed_tokens=start),
        )[0]
        for start in range(0, len(tokens), chunk_len)
    ]

    torch.testing.assert_close(torch.cat(rows), their_logits(theirs, tokens), atol=1e-4, rtol=0)


@pytest.mark.parametrize("family", ["llama", "mistral-window", "qwen2"])
def test_a_mixed_batch_equals_each_request_alone(family: str) -> None:
    """Decodes and chunks in one step over shuffled blocks have the logits they have alone."""
    theirs, ours = build_pair(family)
    texts = [random_tokens(count, seed=count) for count in (30, 9, 16, 21, 12)]
    computed = [29, 8, 15, 6, 0]  # three decodes, a later chunk, a whole prompt
    tables = shuffled_tables(5, seed=4)
    pool = new_pool(ours)
    for text, done, table in zip(texts, computed, tables, strict=True):
        if done:
            run_step(ours, pool, scheduled(text[:done], table))

    together = run_step(
        ours,
        pool,
        *(
            scheduled(text[done:], table, num_computed_tokens=done, request_id=str(index))
            for index, (text, done, table) in enumerate(zip(texts, computed, tables, strict=True))
        ),
    )

    for logits, text, done in zip(together, texts, computed, strict=True):
        torch.testing.assert_close(logits, their_logits(theirs, text)[done:], atol=1e-4, rtol=0)


@pytest.mark.parametrize("family", ["llama-tied", "mistral-window", "qwen3"])
def test_greedy_tokens_of_a_ragged_batch_equal_generate(family: str) -> None:
    """Requests of unequal length decoded together get the tokens transformers generates."""
    theirs, ours = build_pair(family)
    prompts = [random_tokens(count, seed=10 + count) for count in (3, 18, 11)]
    tables = shuffled_tables(3, seed=5)
    runner = runner_for(ours)
    texts = [list(prompt) for prompt in prompts]
    computed = [0, 0, 0]
    for _ in range(12):
        result = execute(
            runner,
            *(
                scheduled(text[done:], table, num_computed_tokens=done, request_id=str(index))
                for index, (text, done, table) in enumerate(
                    zip(texts, computed, tables, strict=True)
                )
            ),
        )
        computed = [len(text) for text in texts]
        for text, token in zip(texts, result.sampled_token_ids, strict=True):
            assert token is not None
            text.append(token)

    for text, prompt in zip(texts, prompts, strict=True):
        expected = theirs.generate(
            torch.tensor([prompt]),
            attention_mask=torch.ones(1, len(prompt), dtype=torch.int64),
            max_new_tokens=12,
            do_sample=False,
        )
        assert text == expected[0].tolist()


@pytest.mark.parametrize("family", ["llama", "llama-tied", "llama-biases"])
def test_packed_linears_change_no_logit(family: str) -> None:
    """Packing the weights for oneDNN keeps every logit within 1e-4."""
    theirs, ours = build_pair(family, is_packed=False)
    prepack_linears(ours)
    tokens = random_tokens(20, seed=6)
    (table,) = shuffled_tables(1, seed=6)

    (logits,) = run_step(ours, new_pool(ours), scheduled(tokens, table))

    torch.testing.assert_close(logits, their_logits(theirs, tokens), atol=1e-4, rtol=0)
