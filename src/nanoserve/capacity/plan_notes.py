"""What a plan does not count, and how its figures are known: one sentence each."""

import re

from nanoserve.capacity.draft_layers import draft_layers
from nanoserve.capacity.engine_versions import version_note
from nanoserve.capacity.plan_choices import PlanChoices, cached_shape
from nanoserve.capacity.plan_query import PlanQuery
from nanoserve.spec.gpu_spec import GpuSpec
from nanoserve.spec.model_shape import ModelShape

_SINGLE_LAYER = re.compile(r"layers\.\d")
_EVIDENCE = {
    "mib+cuda": "memory as logged by the driver and by CUDA",
    "cuda": "memory as logged by CUDA",
    "mib": "memory worked out from the driver's figure; CUDA may report 0.5 % less",
    "est": "memory estimated from cards alike; it may be 1 % off",
    "stated": "memory as stated",
}


def plan_notes(
    query: PlanQuery,
    choices: PlanChoices,
    max_model_len: int,
    *,
    longest_may_fit: bool,
    is_length_sure: bool,
) -> tuple[str, ...]:
    """Return what the asker should know beside the figures.

    Args:
        query: What was asked.
        choices: What it was resolved to.
        max_model_len: Longest request that is planned.
        longest_may_fit: Whether the longest that could be asked for fits the likely pool.
        is_length_sure: Whether what is planned fits the least pool of the range as well.
    """
    notes = [f"{query.gpu.name}: {evidence(query.gpu)}"]
    newer = version_note(query.profile.engine, query.version)
    if newer is not None:
        notes.append(newer)
    if max_model_len < choices.longest:
        may = "may fit and may not" if longest_may_fit else "does not fit"
        sure = ", which fits the least of the range as well" if is_length_sure else ""
        notes.append(
            f"one request of the model's {choices.longest:,} tokens {may}: planned with "
            f"{max_model_len:,}{sure}"
        )
    if choices.workload.longest_stated > max_model_len:
        notes.append(
            f"the workload's {choices.workload.longest_stated:,} tokens are past "
            f"--max-model-len {max_model_len}"
        )
    notes += _window_notes(query)
    notes += _weight_notes(query, choices)
    if query.num_replicas > 1:
        each = query.ranks * query.num_stages
        notes.append(f"{query.num_replicas} copies of {each} GPUs each; figures are of one copy")
    if query.gpu.is_unified:
        notes.append(
            "unified memory: the host and its page cache share it, and the utilization is no "
            "hard limit; leave several GiB to the system"
        )
    bits = choices.weight_format.value_bits
    if (
        6 < bits <= 8
        and not query.gpu.is_host
        and not query.gpu.has_fp8_units
        and query.gpu.compute_capability
    ):
        notes.append(
            f"{query.gpu.name} has no FP8 units: 8-bit weights save bytes and decode time, "
            "and a prefill runs at 16-bit rates"
        )
    return tuple(notes)


def evidence(gpu: GpuSpec) -> str:
    """Return how a GPU's memory figure is known."""
    return _EVIDENCE.get(gpu.evidence, gpu.evidence)


def _window_notes(query: PlanQuery) -> list[str]:
    """Return whether windows are of use: engines without pools for them keep every token."""
    kinds, engine = _window_kinds(query.model.shape), query.profile.engine
    keeps_all = kinds and not _window_kinds(cached_shape(query, query.model.shape))
    if "chunked" in kinds and engine == "vllm":
        return ["vLLM keeps every token in the layers that attend in chunks, unless told otherwise"]
    if keeps_all:
        return [f"{engine} is planned as keeping every token in every layer, windows or not"]
    return []


def _window_kinds(shape: ModelShape) -> set[str]:
    parts = (layer.attention for layer in shape.layers)
    return {part.kind for part in parts if part is not None and part.span is not None}


def _weight_notes(query: PlanQuery, choices: PlanChoices) -> list[str]:
    model, notes = query.model, []
    if query.splits_layers and not query.gpu.is_host:
        notes.append("llama.cpp looks the embedding up in the host's memory: no GPU holds it")
    is_own = query.profile.engine == "nanoserve"  # keeps what its boot packs, whatever is stored
    if not is_own and (model.weight_source == "config" or query.weight_format is not None):
        notes.append(
            "weights follow from the config; with the files at hand they are read to the byte"
        )
    if choices.weight_format.is_estimate:
        notes.append(f"{choices.weight_format.name} is a file's average, 5 % to either side")
    for part in model.shape.uncounted:
        notes.append(f"not counted: the {part} part, whose size cannot be told from the config")
    single = sum(_SINGLE_LAYER.search(pattern) is not None for pattern in model.kept)
    if single and query.weight_format is None and model.file_bytes is None:
        notes.append(
            f"{single} modules of single layers stay in 16 bits; they count as the rest of their "
            "group"
        )
    drafts = draft_layers(query, choices)
    if drafts is not None:
        notes.append(drafts.words)
    return notes
