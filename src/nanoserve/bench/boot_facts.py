"""What a record says in prose, read into what the planner knows: releases, cards, formats.

Records are written by people: a release is `0.24+ V1, model runner v2, 2026-08`, a card `2x L4
24GB (GKE example)`, a format `bitsandbytes 4bit`. What cannot be read is None or refused by
name; nothing is guessed.
"""

import re
from collections.abc import Mapping
from typing import Any

from nanoserve.capacity.engine_defaults import on_ascend
from nanoserve.capacity.engine_profile import (
    EngineProfile,
    find_profile,
    profile_of,
    version_numbers,
)
from nanoserve.errors import NanoserveError
from nanoserve.explain.boot_record import boot_of_record
from nanoserve.spec.gpu_names import find_gpus
from nanoserve.spec.gpu_spec import GpuSpec
from nanoserve.spec.model_shape import ModelShape
from nanoserve.spec.quant_config import read_quant_config
from nanoserve.spec.quant_spec import WeightFormat, find_weight_format

Record = Mapping[str, Any]

_LAST_V0 = (0, 7)
# What vLLM was at from that month on; a year alone is read as its middle, 2026 as the newest.
_MONTHS = {
    "2023-06": (0, 1),
    "2023-09": (0, 2),
    "2023-12": (0, 2, 5),
    "2024-02": (0, 3),
    "2024-04": (0, 4),
    "2024-06": (0, 5),
    "2024-09": (0, 6),
    "2024-12": (0, 6, 4),
    "2025-01": (0, 7),
    "2025-03": (0, 8),
    "2025-05": (0, 9),
    "2025-07": (0, 10),
    "2025-10": (0, 11),
    "2025-12": (0, 13),
    "2026-02": (0, 16),
    "2026-03": (0, 18),
    "2026-04": (0, 20),
    "2026-05": (0, 22),
    "2026-08": (0, 26),
}
_YEARS = {"2023": (0, 2), "2024": (0, 5), "2025": (0, 9)}
# Formats as people write them, asked in this order.
_FORMAT_WORDS = (
    (r"deepseek_v4|exl[23]|gguf|autoround mixed", None),
    (r"bitsandbytes|\bbnb\b|nf4", "bnb-4bit"),
    (r"nvfp4", "nvfp4"),
    (r"mxfp4", "mxfp4"),
    (r"fp8 block", "fp8-block-128"),
    (r"fp8(?! ?kv)", "fp8"),
    (r"w8a8|int8|8-?bit", "int8-channel"),
    (r"awq", "awq"),
    (r"gptq", "gptq"),
    (r"w4a16|int4|4-?bit", "packed-int4-g128"),
)
_AROUND_RELEASES = "~(),<>^\u2248\u2264\u2265"  # about, at most, at least
_SIZE = re.compile(r"\(?\b(\d+) ?G(?:i?B)?\b\)?", re.IGNORECASE)
_REMARKS = re.compile(r"\((?!\s*\d+ ?GB\s*\))[^)]*\)|\bclass\b.*|\bGPUs?\b", re.IGNORECASE)
_AMD_WORDS = r"\brocm|\bamd\b|radeon|\bmi\d{2,3}x?\b"
_ASCEND_WORDS = r"\bascend|\bnpu\b"
_OWN_BUDGET_WORDS = r"nano-vllm|\bwde\b|kunlun|omni|\btpu\b|neuron|kvcached"
_NAMES_NO_METHOD = re.compile(r"^[^a-z]*4-?bit|4-?bit[^)]*inferred")


class UnsupportedRecordError(NanoserveError):
    """A record that cannot be predicted; the message names what is not known.

    Attributes:
        kind: The reason in a few words, the same for records alike.
    """

    def __init__(self, *, kind: str, detail: str) -> None:
        """Keep the reason beside its detail."""
        super().__init__(f"{kind}: {detail}")
        self.kind = kind


def profile_of_record(record: Record) -> EngineProfile:
    """Return the profile of a record's engine; versions are written as prose in records.

    Forks of vLLM are taken for vLLM. Without a release the year decides; `V0` is the engine
    before 0.8, whatever the release.
    """
    engine = boot_of_record(record).engine or "vllm"
    if engine != "vllm":
        return find_profile(engine)
    numbers = version_of_record(record)
    profile = find_profile(engine) if numbers is None else profile_of(engine, numbers)
    return on_ascend(profile) if _is_on_ascend(record) else profile


def _is_on_ascend(record: Record) -> bool:
    return re.search(_ASCEND_WORDS, _told(record)) is not None


def _told(record: Record) -> str:
    """Return engine, release and card in one text, in small letters."""
    gpu = record.get("gpu")
    name = gpu.get("name") if isinstance(gpu, Mapping) else ""
    return f"{record.get('engine')} {record.get('engine_version')} {name}".casefold()


def has_own_budget(record: Record) -> bool:
    """Whether a fork, or a device that is no GPU, sizes the pool by rules of its own."""
    return re.search(_OWN_BUDGET_WORDS, _told(record)) is not None


def version_of_record(record: Record) -> tuple[int, ...] | None:
    """Return a record's release, or what vLLM was at in the year it names."""
    text = str(record.get("engine_version", ""))
    numbers = _release(text) or _release_of_date(text)
    return numbers if numbers is None or "V0" not in text else min(numbers, _LAST_V0)


def gpu_of_record(record: Record) -> GpuSpec | None:
    """Return the card a record names, or the class it is said to be; None where nobody knows it."""
    gpu = record.get("gpu")
    name = str(gpu.get("name") or "") if isinstance(gpu, Mapping) else ""
    name = _SIZE.sub(r" \1GB", _REMARKS.sub(" ", name).split("/")[0])
    name = " ".join(name.split())
    try:
        return find_gpus(name).gpu if name else None
    except NanoserveError:
        return None


def _release(text: str) -> tuple[int, ...] | None:
    """Return the first release named, the end of a range of them.

    `0.1.dev…` is what a build without tags calls itself.
    """
    for word in (word.strip(_AROUND_RELEASES) for word in re.split(r"[\s:;=]+", text)):
        if "." not in word or "0.1.dev" in word:
            continue
        found = [version_numbers(part.rstrip("+")) for part in word.split("-")]
        known = [numbers for numbers in found if numbers is not None and len(numbers) > 1]
        if known:
            return known[-1]
    return None


def _release_of_date(text: str) -> tuple[int, ...] | None:
    month = re.search(r"20\d\d-\d\d", text)
    if month is not None:
        before = [numbers for start, numbers in _MONTHS.items() if start <= month[0]]
        return before[-1] if before else None
    return next((numbers for year, numbers in _YEARS.items() if year in text), None)


def _checkpoint_format(shape: ModelShape) -> WeightFormat | UnsupportedRecordError | None:
    if shape.quantization is None:
        return None
    try:
        found = read_quant_config(shape.quantization, "config.json", len(shape.layers))
        return found.weight_format
    except NanoserveError as error:
        return UnsupportedRecordError(kind="weight format not supported", detail=str(error)[:120])


def weight_format_of(
    record: Record, shape: ModelShape
) -> tuple[WeightFormat | UnsupportedRecordError | None, tuple[str, ...]]:
    """Return how the weights are stored: the checkpoint's own words before the record's."""
    own = _checkpoint_format(shape)
    notes = ("weight format",) if _is_list_cut(shape) else ()
    words = str(record.get("quantization") or record.get("model") or "").casefold()
    found = next((name for word, name in _FORMAT_WORDS if re.search(word, words)), "")
    if found == "":
        return own, notes
    if found is None:
        return UnsupportedRecordError(kind="weight format not supported", detail=words[:80]), ()
    named = find_weight_format(found)
    if found == "bnb-4bit" and is_by_unsloth(record):
        return find_weight_format("bnb-4bit-double"), ()
    if isinstance(own, WeightFormat) and round(own.value_bits) == round(named.value_bits):
        return own, notes
    is_vague = isinstance(own, UnsupportedRecordError) or _NAMES_NO_METHOD.search(words)
    return named, ("weight format",) if is_vague else ()


def _is_list_cut(shape: ModelShape) -> bool:
    """Whether the packaged config tells only how long its list of 16-bit modules is."""
    section = shape.quantization or {}
    keys = ("modules_to_not_convert", "ignore", "exclude_modules")
    return any(isinstance(section.get(key), str) for key in keys)


def is_by_unsloth(record: Record) -> bool:
    """Whether Unsloth started vLLM; it keeps double quantisation, and chooses the slots."""
    return "unsloth" in f"{record.get('engine_version')}".casefold()


def is_on_rocm(record: Record) -> bool:
    """Whether the release or the card's name says that the card is AMD's."""
    return re.search(_AMD_WORDS, _told(record)) is not None


def is_divided(record: Record) -> bool:
    """Whether it is known how GPUs divide the model: data-parallel ones do so in many ways."""
    is_parallel = any(
        positive_count(record.get(f"{kind}_parallel")) > 1 for kind in ("data", "expert")
    )
    counts = (record.get("tensor_parallel"), record.get("num_gpus"))
    return not is_parallel and any(type(count) is int for count in counts)


def positive_count(value: Any) -> int:
    """Return a whole number above 0, and 1 for anything else."""
    return value if type(value) is int and value > 0 else 1
