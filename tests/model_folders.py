"""Folders of models with random weights, as Hugging Face writes them; one token per byte."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models

from nanoserve.text.detokenizer import BYTE_ALPHABET

BYTE_VOCAB_SIZE = 256


@dataclass(frozen=True, slots=True)
class LlamaShape:
    """What a config.json says of a Llama model."""

    num_layers: int = 2
    hidden_size: int = 32
    intermediate_size: int = 48
    num_heads: int = 4
    num_kv_heads: int = 2
    vocab_size: int = BYTE_VOCAB_SIZE
    max_position_embeddings: int = 128
    is_tied: bool = False

    def config(self) -> dict[str, Any]:
        return {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "num_hidden_layers": self.num_layers,
            "hidden_size": self.hidden_size,
            "intermediate_size": self.intermediate_size,
            "num_attention_heads": self.num_heads,
            "num_key_value_heads": self.num_kv_heads,
            "vocab_size": self.vocab_size,
            "max_position_embeddings": self.max_position_embeddings,
            "rms_norm_eps": 1e-5,
            "rope_theta": 10000.0,
            "tie_word_embeddings": self.is_tied,
            "torch_dtype": "bfloat16",
        }

    def tensor_shapes(self) -> dict[str, tuple[int, ...]]:
        hidden, inner = self.hidden_size, self.intermediate_size
        kv_size = hidden // self.num_heads * self.num_kv_heads
        shapes: dict[str, tuple[int, ...]] = {
            "model.embed_tokens.weight": (self.vocab_size, hidden)
        }
        for layer in range(self.num_layers):
            parts = {
                "self_attn.q_proj": (hidden, hidden),
                "self_attn.k_proj": (kv_size, hidden),
                "self_attn.v_proj": (kv_size, hidden),
                "self_attn.o_proj": (hidden, hidden),
                "mlp.gate_proj": (inner, hidden),
                "mlp.up_proj": (inner, hidden),
                "mlp.down_proj": (hidden, inner),
                "input_layernorm": (hidden,),
                "post_attention_layernorm": (hidden,),
            }
            for name, shape in parts.items():
                shapes[f"model.layers.{layer}.{name}.weight"] = shape
        shapes["model.norm.weight"] = (hidden,)
        if not self.is_tied:
            shapes["lm_head.weight"] = (self.vocab_size, hidden)
        return shapes


LLAMA_1B = LlamaShape(
    num_layers=16,
    hidden_size=2048,
    intermediate_size=8192,
    num_heads=32,
    num_kv_heads=8,
    vocab_size=128256,
    max_position_embeddings=131072,
    is_tied=True,
)


def write_llama(folder: Path, shape: LlamaShape | None = None, std: float = 0.2) -> Path:
    """Write a model with bfloat16 weights; returns the folder."""
    shape = shape or LlamaShape()
    generator = torch.Generator().manual_seed(0)
    weights = {}
    for name, size in shape.tensor_shapes().items():
        weight = torch.empty(size, dtype=torch.bfloat16)
        mean = 1.0 if "norm" in name else 0.0
        weights[name] = weight.normal_(mean, std, generator=generator)
    save_file(weights, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(shape.config()))
    write_byte_tokenizer(folder)
    return folder


def write_byte_tokenizer(folder: Path, size: int = BYTE_VOCAB_SIZE, num_added: int = 0) -> None:
    extra = [f"<{i}>" for i in range(size - len(BYTE_ALPHABET))]
    vocabulary = {token: i for i, token in enumerate([*BYTE_ALPHABET, *extra])}
    backend = Backend(models.BPE(vocab=vocabulary, merges=[]))
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([f"<added {i}>" for i in range(num_added)])
    backend.save(str(folder / "tokenizer.json"))
