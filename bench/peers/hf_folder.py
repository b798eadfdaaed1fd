"""Write a GGUF file as a Hugging Face folder: `python hf_folder.py GGUF FOLDER`.

Runs in the environment of the transformers peer, which dequantises the file by itself; the
folder's weights are in bfloat16.
"""

import sys
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM


def write_folder(gguf_path: Path, folder: Path) -> None:
    """Write config, weights and tokenizer of a Llama-shaped model."""
    source = {"pretrained_model_name_or_path": gguf_path.parent, "gguf_file": gguf_path.name}
    read = AutoModelForCausalLM.from_pretrained(**source, dtype=torch.bfloat16)
    shape = read.config.to_dict()
    shape.pop("quantization_config", None)  # a model read from GGUF refuses to be saved
    model = LlamaForCausalLM(LlamaConfig.from_dict(shape)).to(torch.bfloat16)
    model.load_state_dict(read.state_dict())
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(**source).save_pretrained(folder)


if __name__ == "__main__":
    write_folder(Path(sys.argv[1]), Path(sys.argv[2]))
