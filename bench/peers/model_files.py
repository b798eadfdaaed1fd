"""The default model in the formats that peers read, all made from the same GGUF file.

A Hugging Face folder with the weights in bfloat16 for vLLM and transformers; GGUF files of
llama.cpp's own quantiser. Nothing but rounding to bfloat16 is lost on the way there, so
every peer serves the same model.
"""

import subprocess
from pathlib import Path

from bench.peers.places import llama_tool, model_file, python_of

from nanoserve.spec.model_dir import resolve_model

PRESET = "smollm2"
_GGUF_TYPES = ("bf16", "q8_0", "q4_0")  # the first is what the others are made from


def make_models() -> None:
    """Write the model files that the installed peers read, unless they are there.

    Raises:
        CalledProcessError: A peer's own tool failed, and has said why.
    """
    source = resolve_model(PRESET).path
    model_file("").mkdir(exist_ok=True)
    folder = model_file(PRESET)
    if python_of("transformers").exists() and not folder.exists():
        script = Path(__file__).with_name("hf_folder.py")
        subprocess.run([python_of("transformers"), script, source, folder], check=True)
    quantize = llama_tool("llama-quantize")
    for name in _GGUF_TYPES if quantize.exists() else ():
        target = model_file(f"{PRESET}-{name}.gguf")
        origin = source if name == _GGUF_TYPES[0] else model_file(f"{PRESET}-{_GGUF_TYPES[0]}.gguf")
        if not target.exists():
            words: list[str | Path] = ["--allow-requantize", origin, target, name.upper()]
            subprocess.run([quantize, *words], check=True, stdout=subprocess.DEVNULL)
