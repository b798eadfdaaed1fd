"""SmolLM2-135M-Instruct, real weights: greedy tokens equal transformers', however we batch.

The oracle is transformers on the same dequantised weights in float32. A greedy answer is
right when each of its tokens is the argmax of the oracle's logits given all before it, so
one forward pass of the oracle per answer checks the whole answer.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from gguf import GGUFReader
from gguf.quants import dequantize

from nanoserve.launch.llm import LLM
from nanoserve.sched.sampling_params import SamplingParams
from nanoserve.spec.model_dir import resolve_model
from tests.reference.prompts import PROMPTS

NUM_TOKENS = 64
Answers = list[list[int]]


@dataclass(frozen=True)
class Size:
    """How many of the prompts, and how many tokens of each answer; answers are prefixes."""

    num_prompts: int = len(PROMPTS)
    num_tokens: int = NUM_TOKENS

    @property
    def prompts(self) -> list[str]:
        """Every second or so prompt, so that short and long ones are in."""
        return PROMPTS[:: len(PROMPTS) // self.num_prompts][: self.num_prompts]

    @property
    def sampling(self) -> SamplingParams:
        return SamplingParams(temperature=0.0, max_tokens=self.num_tokens, ignore_eos=True)

    def cut(self, full: Answers) -> Answers:
        """Return what these prompts and lengths are of the full answers."""
        by_prompt = dict(zip(PROMPTS, full, strict=True))
        return [by_prompt[prompt][: self.num_tokens] for prompt in self.prompts]


FULL = Size()
sizes = pytest.mark.parametrize(
    "size",
    [
        pytest.param(Size(num_prompts=16, num_tokens=24), id="quick"),
        pytest.param(FULL, id="full", marks=pytest.mark.exhaustive),
    ],
)

pytestmark = pytest.mark.slow


def load(**options: Any) -> LLM:
    threads = torch.get_num_threads()  # one where test workers share the cores
    return LLM(
        "smollm2", dtype="float32", device="cpu", max_model_len=256, threads=threads, **options
    )


def answers(llm: LLM, size: Size) -> Answers:
    outputs = llm.generate(size.prompts, size.sampling, show_progress=False)
    return [output.outputs[0].token_ids for output in outputs]


@pytest.fixture(scope="session")
def crowd_llm() -> LLM:
    return load(max_num_seqs=32)


@pytest.fixture(scope="session")
def crowd_answers(crowd_llm: LLM) -> Answers:
    """Answers with 32 requests in flight, cold cache."""
    return answers(crowd_llm, FULL)


@pytest.fixture(scope="session")
def oracle() -> Callable[..., Any]:
    """Transformers' Llama with the file's weights, read and dequantised by the gguf package."""
    from transformers import LlamaConfig, LlamaForCausalLM

    reader = GGUFReader(resolve_model("smollm2").path)
    config = LlamaConfig(
        vocab_size=_field(reader, "vocab_size"),
        hidden_size=_field(reader, "embedding_length"),
        intermediate_size=_field(reader, "feed_forward_length"),
        num_hidden_layers=_field(reader, "block_count"),
        num_attention_heads=_field(reader, "attention.head_count"),
        num_key_value_heads=_field(reader, "attention.head_count_kv"),
        rms_norm_eps=_field(reader, "attention.layer_norm_rms_epsilon"),
        rope_parameters={"rope_type": "default", "rope_theta": _field(reader, "rope.freq_base")},
        tie_word_embeddings=True,
        attn_implementation="eager",
    )
    model = LlamaForCausalLM(config).eval()
    state = dict(_oracle_tensors(reader, config))
    missing, unexpected = model.load_state_dict(state, strict=False)
    assert (missing, unexpected) == (["lm_head.weight"], [])
    model.tie_weights()
    logits: Callable[..., Any] = torch.inference_mode()(model)
    return logits


_ORACLE_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "token_embd": "embed_tokens",
    "output_norm": "norm",
}


def _oracle_tensors(reader: GGUFReader, config: Any) -> Iterator[tuple[str, torch.Tensor]]:
    heads = {"attn_q": config.num_attention_heads, "attn_k": config.num_key_value_heads}
    for tensor in reader.tensors:
        *layer, name = tensor.name.removesuffix(".weight").split(".")
        values = torch.from_numpy(dequantize(tensor.data, tensor.tensor_type).copy())
        if name in heads:  # llama.cpp interleaves the two halves of each head's rows
            rows, columns = values.shape
            values = values.view(heads[name], rows // heads[name] // 2, 2, columns)
            values = values.transpose(1, 2).reshape(rows, columns)
        prefix = f"model.layers.{layer[1]}." if layer else "model."
        yield f"{prefix}{_ORACLE_NAMES[name]}.weight", values


def _field(reader: GGUFReader, name: str) -> Any:
    return reader.fields[f"llama.{name}"].contents()


def test_crowd_equals_transformers(
    crowd_llm: LLM, crowd_answers: Answers, oracle: Callable[..., Any]
) -> None:
    """Every token of 32 answers is the oracle's argmax."""
    for prompt, answer in zip(PROMPTS, crowd_answers, strict=True):
        prompt_ids = crowd_llm.tokenizer.encode(prompt)
        logits = oracle(torch.tensor([prompt_ids + answer])).logits[0]
        expected = logits[len(prompt_ids) - 1 : -1].argmax(-1).tolist()

        assert len(answer) == NUM_TOKENS
        assert answer == expected, prompt


@sizes
def test_alone_equals_crowd(crowd_answers: Answers, size: Size) -> None:
    """A request alone gives the tokens it gives among 32."""
    llm = load(max_num_seqs=1, enable_prefix_caching=False)

    assert answers(llm, size) == size.cut(crowd_answers)


@sizes
def test_warm_prefix_cache_equals_cold(crowd_llm: LLM, crowd_answers: Answers, size: Size) -> None:
    """A prompt whose prefix is cached gives the tokens of a cold one."""
    outputs = crowd_llm.generate(size.prompts, size.sampling, show_progress=False)

    assert sum(output.num_cached_tokens for output in outputs) > 0
    assert [output.outputs[0].token_ids for output in outputs] == size.cut(crowd_answers)


@sizes
def test_chunked_prefill_equals_whole(crowd_answers: Answers, size: Size) -> None:
    """Prompts cut into chunks of at most 16 tokens give the tokens of whole ones."""
    llm = load(max_num_seqs=16, max_num_batched_tokens=16)

    assert answers(llm, size) == size.cut(crowd_answers)


@sizes
def test_preempted_equals_undisturbed(crowd_answers: Answers, size: Size) -> None:
    """With a pool for little more than one request, preempted requests lose no token."""
    llm = load(max_num_seqs=32, num_blocks=max(16, 9 * size.num_prompts // 4))

    assert answers(llm, size) == size.cut(crowd_answers)
    assert llm.num_preemptions > 0


def test_prompt_logprobs_equal_transformers(crowd_llm: LLM, oracle: Callable[..., Any]) -> None:
    """Scoring a prompt gives the oracle's log-probabilities within 1e-3."""
    scoring = SamplingParams(temperature=0.0, max_tokens=1, num_prompt_logprobs=0)
    prompts = PROMPTS[-4:]
    for output in crowd_llm.generate(prompts, scoring, show_progress=False):
        ids = torch.tensor(output.prompt_token_ids)
        logprobs = oracle(ids[None]).logits[0].log_softmax(-1)
        expected = logprobs[:-1].gather(1, ids[1:, None])[:, 0].tolist()

        assert output.prompt_logprobs is not None
        assert output.prompt_logprobs[0] is None
        scores = [token.logprob for token in output.prompt_logprobs[1:] if token is not None]
        assert scores == pytest.approx(expected, abs=1e-3)
