"""SmolLM2-135M-Instruct, loaded to compare its answers."""

from collections.abc import Sequence
from typing import Any

import torch

from nanoserve.launch.llm import LLM
from nanoserve.options import EngineOptions
from nanoserve.sched.sampling_params import SamplingParams


def smollm2_options(**changes: Any) -> EngineOptions:
    """Return options that leave nothing to the machine but its number of threads."""
    fields: dict[str, Any] = {
        "model": "smollm2",
        "dtype": "float32",
        "device": "cpu",
        "max_model_len": 256,
        "threads": torch.get_num_threads(),  # one where test workers share the cores
    }
    return EngineOptions(**(fields | changes))


def load_smollm2(**changes: Any) -> LLM:
    options = smollm2_options(**changes)
    return LLM(**{name: getattr(options, name) for name in EngineOptions.__dataclass_fields__})


def answers(
    llm: LLM, prompts: Sequence[str], samplings: Sequence[SamplingParams]
) -> list[list[int]]:
    """Return the token ids of each answer."""
    outputs = llm.generate(prompts, samplings, show_progress=False)
    return [output.outputs[0].token_ids for output in outputs]
