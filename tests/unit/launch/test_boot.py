"""`boot`: a folder on disk to an engine, or one error that says why not."""

import json
from pathlib import Path

import pytest
from safetensors.torch import save_file
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models
from transformers import LlamaConfig, LlamaForCausalLM

from nanoserve.errors import CorruptFileError
from nanoserve.launch.boot import boot
from nanoserve.launch.llm import LLM
from nanoserve.options import EngineOptions
from nanoserve.text.detokenizer import BYTE_ALPHABET

VOCAB_SIZE = 256


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a tiny model's folder: one token per byte, random weights."""
    config = LlamaConfig(
        vocab_size=VOCAB_SIZE,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=128,
        bos_token_id=None,
        eos_token_id=None,
    )
    weights = LlamaForCausalLM(config).state_dict()
    save_file(weights, tmp_path / "model.safetensors")
    fields = config.to_dict() | {"architectures": ["LlamaForCausalLM"]}
    (tmp_path / "config.json").write_text(json.dumps(fields))
    _write_tokenizer(tmp_path, VOCAB_SIZE)
    return tmp_path


def _write_tokenizer(folder: Path, size: int, num_added: int = 0) -> None:
    extra = [f"<{i}>" for i in range(size - len(BYTE_ALPHABET))]
    vocabulary = {token: i for i, token in enumerate([*BYTE_ALPHABET, *extra])}
    backend = Backend(models.BPE(vocab=vocabulary, merges=[]))
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([f"<added {i}>" for i in range(num_added)])
    backend.save(str(folder / "tokenizer.json"))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_every_dtype_generates_on_the_cpu(folder: Path, dtype: str) -> None:
    """A dtype whose weights cannot be packed runs with them as they lie."""
    llm = LLM(str(folder), device="cpu", dtype=dtype, num_blocks=16)

    (answer,) = llm.generate("a")

    assert len(answer.outputs[0].token_ids) == 16


def test_tokenizer_of_a_larger_model_is_refused(folder: Path) -> None:
    """Text would become ids that have no embedding; both sizes are in the message."""
    _write_tokenizer(folder, VOCAB_SIZE + 1)

    with pytest.raises(CorruptFileError, match="257 tokens and the model 256"):
        boot(EngineOptions(model=str(folder), device="cpu", num_blocks=16))


def test_added_token_without_a_row_does_not_stop_the_boot(folder: Path) -> None:
    """Fine-tunes ship such tokens; only a prompt that uses one is refused."""
    _write_tokenizer(folder, VOCAB_SIZE, num_added=2)

    booted = boot(EngineOptions(model=str(folder), device="cpu", num_blocks=16))

    assert booted.tokenizer.vocab_size == VOCAB_SIZE + 2
