"""Models of uncommon shapes on native operators: torch's logits, and the same bits in any company."""

import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from nanoserve.kernels.packed_weight import PackedWeight, unpack
from nanoserve.model.decoder import Decoder
from nanoserve.options import Quantization
from nanoserve.runner.input_buffers import build_step_inputs
from nanoserve.runner.kv_pool import KVPool
from nanoserve.sched.batch_layout import BatchLayout
from nanoserve.sched.step import ScheduledRequest, StepPlan
from nanoserve.spec.model_spec import ModelSpec
from tests.native_kernels import native_kernels, needs_kernels
from tests.tiny_models import BLOCK_SIZE, CPU, random_decoder, scheduled, tiny_spec

pytestmark = needs_kernels

NUM_BLOCKS = 96
LENGTHS = (37, 1, 12)  # of three prompts
# Of the norm of a row's logits. In float32, the order of sums; 8-bit activations lose more, and
# the pool's formats more again.
TOLERANCES: dict[tuple[Quantization, bool], float] = {
    ("none", False): 1e-4,
    ("int8", False): 0.1,
    ("int4", False): 0.1,
    ("none", True): 0.2,
    ("int8", True): 0.25,
    ("int4", True): 0.25,
}


@st.composite
def cases(draw: st.DrawFn) -> tuple[ModelSpec, Quantization, torch.dtype]:
    """A shape, a format of the weights that it can have, and one of the pool."""
    quantization: Quantization = draw(st.sampled_from(["none", "int8", "int4"]))
    sizes = [8, 40, 136] if quantization == "none" else [32, 96, 160]
    num_kv_heads = draw(st.sampled_from([1, 2, 3]))
    spec = tiny_spec(
        hidden_size=draw(st.sampled_from(sizes)),
        intermediate_size=draw(st.sampled_from(sizes)),
        num_kv_heads=num_kv_heads,
        num_heads=num_kv_heads * draw(st.integers(1, 8)),
        head_dim=draw(st.sampled_from([32, 96, 256] if sizes[0] == 32 else [8, 40, 96, 256])),
        vocab_size=draw(st.sampled_from([33, 97, 128, 1001])),
        has_qkv_bias=draw(st.booleans()),
        has_qk_norm=draw(st.booleans()),
        has_mlp_bias=draw(st.booleans()),
        sliding_window=draw(st.sampled_from([None, 5])),
        tie_word_embeddings=draw(st.booleans()),
    )
    dtypes = [torch.float32, torch.int8, torch.float8_e4m3fn]
    return spec, quantization, draw(st.sampled_from(dtypes))


@torch.inference_mode()
def logits_of(decoder: Decoder, pool: KVPool, *requests: ScheduledRequest) -> list[Tensor]:
    """Run one step; return the logits of every token, request by request."""
    layout = BatchLayout.from_step(StepPlan(0, requests), BLOCK_SIZE)
    inputs = build_step_inputs(layout, CPU)
    every_row = torch.arange(len(layout.token_ids))
    logits = decoder(inputs.token_ids, inputs.positions, pool.layers, inputs.attention, every_row)
    return list(logits.split(layout.query_lens))


def chunk(row: int, words: list[int], first: int, last: int) -> ScheduledRequest:
    table = range(30 * row, 30 * row + 30)
    return scheduled(words[first:last], table, num_computed_tokens=first, request_id=str(row))


def logits_in_chunks(
    decoder: Decoder, dtype: torch.dtype, prompts: list[list[int]], size: int
) -> list[Tensor]:
    """Return each prompt's logits, all prompts side by side, in chunks of `size` tokens."""
    pool = KVPool(decoder.spec, NUM_BLOCKS, BLOCK_SIZE, dtype, CPU)
    parts: list[list[Tensor]] = [[] for _ in prompts]
    for first in range(0, max(map(len, prompts)), size):
        rows = [row for row, words in enumerate(prompts) if len(words) > first]
        # As the scheduler orders them: who has one token to compute comes first.
        rows.sort(key=lambda row: min(size, len(prompts[row]) - first) != 1)
        chunks = [
            chunk(row, prompts[row], first, min(first + size, len(prompts[row]))) for row in rows
        ]
        for row, logits in zip(rows, logits_of(decoder, pool, *chunks), strict=True):
            parts[row].append(logits)
    return [torch.cat(each) for each in parts]


def plain_twin(spec: ModelSpec, packed: Decoder) -> Decoder:
    """Return a decoder on torch's operators with the weights that packed ones stand for."""
    plain = random_decoder(spec)
    with torch.inference_mode():
        for name, parameter in plain.named_parameters(remove_duplicate=False):
            path, _, leaf = name.rpartition(".")
            weight = getattr(packed.get_submodule(path), leaf)
            values = unpack(weight) if isinstance(weight, PackedWeight) else weight
            parameter.copy_(values)
    return plain


@settings(max_examples=60, deadline=None)
@given(case=cases(), seed=st.integers(0, 99))
def test_logits_are_torch_s_and_the_same_in_any_company(
    case: tuple[ModelSpec, Quantization, torch.dtype], seed: int
) -> None:
    """Whole prompts side by side, each alone, and in chunks of one and of seven tokens."""
    spec, quantization, dtype = case
    words = random.Random(seed)
    prompts = [words.choices(range(spec.vocab_size), k=length) for length in LENGTHS]
    decoder = random_decoder(spec, kernels=native_kernels(), quantization=quantization)

    whole = logits_in_chunks(decoder, dtype, prompts, 64)

    alone = [logits_in_chunks(decoder, dtype, [prompt], 64)[0] for prompt in prompts]
    assert all(map(torch.equal, alone, whole))
    for size in (1, 7):
        assert all(map(torch.equal, logits_in_chunks(decoder, dtype, prompts, size), whole))
    expected = logits_in_chunks(plain_twin(spec, decoder), torch.float32, prompts, 64)
    tolerance = TOLERANCES[quantization, dtype != torch.float32]
    for found, wanted in zip(whole, expected, strict=True):
        assert (found - wanted).norm() <= tolerance * wanted.norm()


@pytest.mark.parametrize("quantization", ["none", "int8", "int4"])
def test_a_twin_of_another_model_is_found_out(quantization: Quantization) -> None:
    """The tolerances tell a model from one whose second layer lacks its MLP."""
    spec = tiny_spec(intermediate_size=64)
    prompts = [list(range(20))]
    decoder = random_decoder(spec, kernels=native_kernels(), quantization=quantization)
    other = plain_twin(spec, decoder)
    other.get_parameter("layers.1.mlp.down_proj.weight").zero_()

    found = logits_in_chunks(decoder, torch.float32, prompts, 64)[0]
    wanted = logits_in_chunks(other, torch.float32, prompts, 64)[0]

    assert (found - wanted).norm() > 2 * TOLERANCES[quantization, True] * wanted.norm()
