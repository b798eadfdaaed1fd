"""Make `presets.jsonl`: the models that `nanoserve plan` knows by name, out of the pinned configs.

Run by hand: `python tests/golden/recipes/presets.py`. A row's names are its hub id and short
forms of it; the configs are those whose parameters `test_param_counts.py` holds.
"""

import json
from pathlib import Path

GOLDEN = Path(__file__).parents[1]
PRESETS = GOLDEN.parents[1] / "src/nanoserve/spec/data/presets.jsonl"
# Hub id: short names. Spelling, case and dashes are forgiven where names are looked up.
ROWS: dict[str, tuple[str, ...]] = {
    "meta-llama/Llama-3.1-8B-Instruct": ("llama-3.1-8b", "llama3.1"),
    "meta-llama/Llama-3.1-70B-Instruct": ("llama-3.1-70b",),
    "meta-llama/Meta-Llama-3.1-405B": ("llama-3.1-405b", "llama-3.1-405b-instruct"),
    "meta-llama/Llama-3.2-1B-Instruct": ("llama-3.2-1b",),
    "meta-llama/Llama-3.2-3B-Instruct": ("llama-3.2-3b",),
    "meta-llama/Llama-3.3-70B-Instruct": ("llama-3.3-70b", "llama3.3"),
    "meta-llama/Meta-Llama-3-8B-Instruct": ("llama-3-8b",),
    "meta-llama/Meta-Llama-3-70B": ("llama-3-70b", "llama-3-70b-instruct"),
    "meta-llama/Llama-2-7b-hf": ("llama-2-7b", "llama-2-7b-chat"),
    "meta-llama/Llama-2-13b-hf": ("llama-2-13b", "llama-2-13b-chat"),
    "meta-llama/Llama-2-70b-hf": ("llama-2-70b", "llama-2-70b-chat"),
    "meta-llama/Llama-4-Scout-17B-16E-Instruct": ("llama-4-scout",),
    "meta-llama/Llama-4-Maverick-17B-128E-Instruct": ("llama-4-maverick",),
    "TinyLlama/TinyLlama-1.1B-Chat-v1.0": ("tinyllama", "tinyllama-1.1b"),
    "codellama/CodeLlama-34b-Instruct-hf": ("codellama-34b",),
    "mistralai/Mistral-7B-Instruct-v0.3": ("mistral-7b", "mistral-7b-v0.3"),
    "mistralai/Mistral-7B-v0.1": ("mistral-7b-v0.1",),
    "mistralai/Mistral-Nemo-Instruct-2407": ("mistral-nemo",),
    "mistralai/Mistral-Large-Instruct-2407": ("mistral-large",),
    "mistralai/Mixtral-8x7B-v0.1": ("mixtral-8x7b", "mixtral", "mixtral-8x7b-instruct-v0.1"),
    "mistralai/Mixtral-8x22B-v0.1": ("mixtral-8x22b", "mixtral-8x22b-instruct-v0.1"),
    "Qwen/Qwen2.5-0.5B-Instruct": ("qwen2.5-0.5b",),
    "Qwen/Qwen2.5-1.5B-Instruct": ("qwen2.5-1.5b",),
    "Qwen/Qwen2.5-3B": ("qwen2.5-3b-instruct",),
    "Qwen/Qwen2.5-7B-Instruct": ("qwen2.5-7b",),
    "Qwen/Qwen2.5-7B-Instruct-AWQ": ("qwen2.5-7b-awq",),
    "Qwen/Qwen2.5-14B-Instruct": ("qwen2.5-14b",),
    "Qwen/Qwen2.5-32B-Instruct": ("qwen2.5-32b",),
    "Qwen/Qwen2.5-72B": ("qwen2.5-72b-instruct",),
    "Qwen/QwQ-32B": ("qwq",),
    "Qwen/Qwen3-0.6B": (),
    "Qwen/Qwen3-1.7B": (),
    "Qwen/Qwen3-4B": (),
    "Qwen/Qwen3-8B": (),
    "Qwen/Qwen3-8B-FP8": (),
    "Qwen/Qwen3-14B": (),
    "Qwen/Qwen3-32B": (),
    "Qwen/Qwen3-30B-A3B-Instruct-2507": ("qwen3-30b-a3b", "qwen3-30b"),
    "Qwen/Qwen3-30B-A3B-FP8": (),
    "Qwen/Qwen3-235B-A22B-Instruct-2507": ("qwen3-235b-a22b", "qwen3-235b"),
    "Qwen/Qwen3-235B-A22B-FP8": (),
    "Qwen/Qwen3-Coder-480B-A35B-Instruct": ("qwen3-coder", "qwen3-coder-480b"),
    "Qwen/Qwen3-Next-80B-A3B-Instruct": ("qwen3-next", "qwen3-next-80b"),
    "Qwen/Qwen3-VL-8B-Instruct": ("qwen3-vl-8b",),
    "Qwen/Qwen3.5-27B": (),
    "Qwen/Qwen3.5-35B-A3B": ("qwen3.5-35b",),
    "Qwen/Qwen3.5-122B-A10B": ("qwen3.5-122b",),
    "Qwen/Qwen3.5-397B-A17B": ("qwen3.5-397b",),
    "Qwen/Qwen3.6-35B-A3B": ("qwen3.6-35b",),
    "deepseek-ai/DeepSeek-V3": (),
    "deepseek-ai/DeepSeek-R1": (),
    "deepseek-ai/DeepSeek-V3.2": (),
    "deepseek-ai/DeepSeek-V2-Lite": ("deepseek-v2-lite-chat",),
    "deepseek-ai/DeepSeek-R1-Distill-Qwen-7B": (),
    "moonshotai/Kimi-K2-Instruct": ("kimi-k2",),
    "moonshotai/Kimi-K2.5": (),
    "zai-org/GLM-4.7": (),
    "zai-org/GLM-5": (),
    "MiniMaxAI/MiniMax-M2.5": (),
    "openai/gpt-oss-20b": (),
    "openai/gpt-oss-120b": (),
    "google/gemma-2-2b": ("gemma-2-2b-it",),
    "google/gemma-2-9b": ("gemma-2-9b-it",),
    "google/gemma-2-27b": ("gemma-2-27b-it",),
    "google/gemma-3-1b-it": ("gemma-3-1b",),
    "google/gemma-3-4b-it": ("gemma-3-4b",),
    "google/gemma-3-12b-it": ("gemma-3-12b",),
    "google/gemma-3-27b-it": ("gemma-3-27b",),
    "google/gemma-4-26B-A4B": ("gemma-4-26b",),
    "google/gemma-4-31B-it": ("gemma-4-31b",),
    "microsoft/phi-4": ("phi-4-14b",),
    "microsoft/Phi-4-mini-instruct": ("phi-4-mini",),
    "microsoft/Phi-3.5-mini-instruct": ("phi-3.5-mini",),
    "tiiuae/falcon-7b": ("falcon-7b-instruct",),
    "tiiuae/falcon-40b": ("falcon-40b-instruct",),
    "nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16": ("nemotron-3-nano", "nemotron-3-nano-30b"),
    "ai21labs/Jamba-v0.1": ("jamba",),
}
SOURCE_ROWS = {  # whose config stands under another name in planner_configs.jsonl
    "ai21labs/Jamba-v0.1": "defaults of jamba",
    "zai-org/GLM-4.7": "zai-org/GLM-4.7-FP8",
}


def main() -> None:
    """Write the file again."""
    lines = (GOLDEN / "planner_configs.jsonl").read_text().splitlines()
    configs = {row["model"]: row["config"] for row in map(json.loads, lines)}
    with PRESETS.open("w", encoding="utf-8") as out:
        for model, names in ROWS.items():
            config = configs[SOURCE_ROWS.get(model, model)]
            row = {"model": model, "names": list(names), "config": config}
            out.write(json.dumps(row, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
