"""SmolLM2-135M-Instruct, real weights: greedy tokens equal transformers'.

The oracle is transformers on the same dequantised weights in float32. A greedy answer is
right when each of its tokens is the argmax of the oracle's logits given all before it, so
one forward pass of the oracle per answer checks the whole answer.
"""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from gguf import GGUFReader
from gguf.quants import dequantize

from nanoserve.launch.llm import LLM
from nanoserve.sched.sampling_params import SamplingParams
from nanoserve.spec.model_dir import resolve_model
from tests.reference.prompts import PROMPTS
from tests.reference.smollm2 import answers, load_smollm2

NUM_TOKENS = 64
SAMPLING = SamplingParams(temperature=0.0, max_tokens=NUM_TOKENS, ignore_eos=True)

pytestmark = pytest.mark.slow


@pytest.fixture(scope="session")
def crowd_llm() -> LLM:
    return load_smollm2(max_num_seqs=32)


@pytest.fixture(scope="session")
def crowd_answers(crowd_llm: LLM) -> list[list[int]]:
    """Answers with 32 requests in flight, cold cache."""
    return answers(crowd_llm, PROMPTS, [SAMPLING] * len(PROMPTS))


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
    crowd_llm: LLM, crowd_answers: list[list[int]], oracle: Callable[..., Any]
) -> None:
    """Every token of 32 answers is the oracle's argmax."""
    for prompt, answer in zip(PROMPTS, crowd_answers, strict=True):
        prompt_ids = crowd_llm.tokenizer.encode(prompt)
        logits = oracle(torch.tensor([prompt_ids + answer])).logits[0]
        expected = logits[len(prompt_ids) - 1 : -1].argmax(-1).tolist()

        assert len(answer) == NUM_TOKENS
        assert answer == expected, prompt


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
