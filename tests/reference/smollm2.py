"""SmolLM2-135M-Instruct, loaded to compare its answers."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import httpx
import torch

from nanoserve.engine.async_bridge import AsyncEngine
from nanoserve.launch.boot import boot
from nanoserve.launch.llm import LLM
from nanoserve.options import EngineOptions
from nanoserve.sched.sampling_params import SamplingParams
from tests.socket.conftest import Served, serving

ANSWER_TIMEOUT_S = 300.0  # many answers of a real model, on cores that others share


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


@contextmanager
def smollm2_server(**changes: Any) -> Iterator[Served]:
    """Serve the model on a port of the system's choice while the block lasts."""
    booted = boot(smollm2_options(**changes))
    max_in_flight = 256 + booted.limits.max_num_seqs
    with serving(
        AsyncEngine(booted.core, booted.limits, max_in_flight),
        codec=booted.tokenizer,
        chat_template=booted.chat_template,
        grammar_compiler=booted.grammar_compiler,
    ) as served:
        served.http.timeout = httpx.Timeout(ANSWER_TIMEOUT_S)
        yield served
