"""Write the model folders that suites need: `python -m conformance.models GGUF FOLDER`.

Runs where transformers and accelerate are. `FOLDER/smollm2` holds the default model's
weights, dequantised by transformers to float32, so that another engine can run the very
same ones; its chat template knows tools, which the model's own does not. `FOLDER/tiny` is a
random model with the same tokenizer, for suites that want answers fast.
"""

import sys
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

TEMPLATE = Path(__file__).with_name("hermes.jinja")


def write_models(gguf_path: Path, folder: Path) -> None:
    """Write both folders.

    Args:
        gguf_path: The default model.
        folder: Gets `smollm2` and `tiny`.
    """
    source = {"pretrained_model_name_or_path": gguf_path.parent, "gguf_file": gguf_path.name}
    tokenizer = AutoTokenizer.from_pretrained(**source)
    tokenizer.chat_template = TEMPLATE.read_text()
    read = AutoModelForCausalLM.from_pretrained(**source, dtype=torch.float32)
    shape = read.config.to_dict()
    del shape["quantization_config"]  # a model read from GGUF refuses to be saved
    model = LlamaForCausalLM(LlamaConfig.from_dict(shape))
    model.load_state_dict(read.state_dict())
    torch.manual_seed(0)
    tiny = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=model.config.vocab_size,
            hidden_size=32,
            intermediate_size=48,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            eos_token_id=model.config.eos_token_id,
            tie_word_embeddings=True,
        )
    )
    for name, written in (("tiny", tiny), ("smollm2", model)):
        written.save_pretrained(folder / name)
        tokenizer.save_pretrained(folder / name)


if __name__ == "__main__":
    write_models(Path(sys.argv[1]), Path(sys.argv[2]))
