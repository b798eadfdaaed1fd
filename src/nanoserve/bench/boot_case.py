"""A recorded boot with its model's shape: everything a prediction needs, or why there is none.

Resolves names: the model among known configs, the card in the table of GPUs, the engine's
version, the formats as people write them. What a record does not say is taken from the
engine's defaults and said in `assumed`; what cannot be resolved is refused by name.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from nanoserve.errors import NanoserveError
from nanoserve.plan.boot_record import boot_of_record
from nanoserve.plan.engine_memory import EngineLoad
from nanoserve.plan.engine_profile import (
    EngineProfile,
    default_batch,
    find_profile,
    profile_of,
    version_numbers,
)
from nanoserve.plan.logged_boot import LoggedBoot
from nanoserve.spec.gpu_names import find_gpu
from nanoserve.spec.gpu_spec import GpuSpec
from nanoserve.spec.model_shape import MlpShape, ModelShape
from nanoserve.spec.quant_config import read_quant_config
from nanoserve.spec.quant_spec import WeightFormat, find_weight_format
from nanoserve.spec.read_shape import read_model_shape

Record = Mapping[str, Any]
Configs = Mapping[str, Mapping[str, Any]]

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
_FUSED_SINCE = (0, 3)  # vLLM ran an MoE's experts one after another before
_SHORTEST_CONTEXT = 4096
_FAST_LINK = 300e9  # bytes a second; a bridge between two desktop cards is slower
_OWN_RULES = ("pegainfer", "nano-vllm", "wde", "kunlun", "omni")  # engines with rules of their own
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
_NAMES_NO_METHOD = re.compile(r"^[^a-z]*4-?bit|4-?bit[^)]*inferred")


class UnsupportedRecordError(NanoserveError):
    """A record that cannot be predicted; the message names what is not known.

    Attributes:
        kind: The reason in a few words, the same for records alike.
    """

    def __init__(self, kind: str, detail: str) -> None:
        """Keep the reason beside its detail."""
        super().__init__(f"{kind}: {detail}")
        self.kind = kind


@dataclass(frozen=True, slots=True)
class BootCase:
    """A recorded boot whose model is known.

    Attributes:
        boot: Its figures.
        shape: The model's.
        profile: The engine's rules.
        weight_format: How the weights are stored, or why that cannot be sized; None for 16 bits.
        kv_cache_dtype: As recorded, or as the checkpoint asks.
        tensor_parallel: GPUs that share each layer.
        pipeline_parallel: Stages.
        gpu: The card, where its name is in the table.
        version: The engine's release; None where it is not known.
        assumed: Facts that the record does not state, in words.
        is_by_unsloth: Whether Unsloth chose the slots.
        is_divided: Whether it is known how GPUs divide the model.
    """

    boot: LoggedBoot
    shape: ModelShape
    profile: EngineProfile
    weight_format: WeightFormat | UnsupportedRecordError | None
    kv_cache_dtype: str
    tensor_parallel: int
    pipeline_parallel: int
    gpu: GpuSpec | None
    version: tuple[int, ...] | None
    assumed: tuple[str, ...]
    is_by_unsloth: bool = False
    is_divided: bool = True

    @property
    def total_bytes(self) -> int | None:
        """The device's memory, as logged or by the card's name."""
        if self.boot.total_bytes is not None:
            return self.boot.total_bytes
        return None if self.gpu is None else self.gpu.memory_bytes

    def load(self) -> EngineLoad:
        """Return what the engine runs, its defaults where the record is silent."""
        slots, tokens = default_batch(
            self.profile, self._least_total(), self.gpu.name if self.gpu else ""
        )
        tp, mlps = self.tensor_parallel, [layer.mlp for layer in self.shape.layers if layer.mlp]
        is_one_by_one = self.profile.engine == "vllm" and (self.version or (1,)) < _FUSED_SINCE
        return EngineLoad(
            vocab_size=self.shape.vocab_size,
            hidden_size=self.shape.hidden_size,
            active_intermediate_size=max((_active(m, is_one_by_one) for m in mlps), default=0)
            // tp,
            max_num_seqs=self.boot.max_num_seqs or slots,
            max_num_batched_tokens=self.boot.max_num_batched_tokens or tokens,
            max_model_len=self.boot.max_model_len
            or self.shape.max_position_embeddings
            or _SHORTEST_CONTEXT,
            tensor_parallel=tp,
            is_eager=bool(self.boot.is_eager),
            expert_values_per_token=max((_kept(m, self.shape, tp) for m in mlps), default=0),
            sees_images="vision" in self.shape.uncounted
            or any(weight.group == "tower" for weight in self.shape.weights),
            has_fast_link=self.gpu is None or self.gpu.link >= _FAST_LINK,
        )

    def _least_total(self) -> int:
        """Return the device's memory, or at least what it is said to hold."""
        held = (self.boot.weight_bytes or 0) + max(0, self.boot.pool_bytes or 0)
        return self.total_bytes or held


def _active(mlp: MlpShape, is_one_by_one: bool) -> int:
    """Return the width a token goes through at once: of experts that run in turn, one's."""
    at_once = 1 if is_one_by_one else max(1, mlp.num_experts_per_token)
    return mlp.intermediate_size * at_once + mlp.shared_intermediate_size


def _kept(mlp: MlpShape, shape: ModelShape, tp: int) -> int:
    """Return the values of a token in the experts' workspace.

    Source: vLLM fused_moe: caches 1 and 3 share max(2 I, h), cache 2 is I, for each expert.
    """
    width = mlp.intermediate_size // tp
    return mlp.num_experts_per_token * (max(2 * width, shape.hidden_size) + width)


def read_case(record: Record, configs: Configs) -> BootCase:
    """Resolve a record.

    Args:
        record: One object of the file.
        configs: Parsed config.json by model name.

    Raises:
        UnsupportedRecordError: The model or the engine is not known.
    """
    boot = boot_of_record(record)
    engine = str(record.get("engine", "")).casefold()
    if boot.engine is None and "vllm" not in engine:
        raise UnsupportedRecordError("engine not known", engine[:80] or "none named")
    if any(name in engine for name in _OWN_RULES):
        raise UnsupportedRecordError("engine with rules of its own", engine[:80])
    shape = _shape(*_config(record, configs))
    weight_format, notes = _weight_format(record, shape)
    gpu = gpu_of_record(record)
    case = BootCase(
        boot=boot,
        shape=shape,
        profile=profile_of_record(record),
        weight_format=weight_format,
        kv_cache_dtype=boot.kv_cache_dtype or _checkpoint_kv_dtype(shape),
        tensor_parallel=boot.tensor_parallel or 1,
        pipeline_parallel=_positive(record.get("pipeline_parallel")),
        gpu=gpu,
        version=version_of_record(record),
        assumed=notes,
        is_by_unsloth=_is_by_unsloth(record),
        is_divided=_is_divided(record),
    )
    return replace(case, assumed=(*notes, *_assumptions(case, record)))


def _assumptions(case: BootCase, record: Record) -> tuple[str, ...]:
    """Return the facts that a pool depends on and the record does not state."""
    facts = []
    if case.boot.utilization is None:
        facts.append("utilization")
    elif "assumed" in str(record.get("gmu_source", "")):
        facts.append("utilization")
    if case.boot.total_bytes is None:
        facts.append("memory")
    if case.boot.max_model_len is None and not case.profile.is_chunked:
        facts.append("length")
    if case.gpu is not None and case.gpu.is_unified:
        facts.append("unified memory")
    return tuple(facts)


def profile_of_record(record: Record) -> EngineProfile:
    """Return the profile of a record's engine; versions are written as prose in records.

    Forks of vLLM are taken for vLLM. Without a release the year decides; `V0` is the engine
    before 0.8, whatever the release.
    """
    engine = boot_of_record(record).engine or "vllm"
    if engine != "vllm":
        return find_profile(engine)
    numbers = version_of_record(record)
    return find_profile(engine) if numbers is None else profile_of(engine, numbers)


def version_of_record(record: Record) -> tuple[int, ...] | None:
    """Return a record's release, or what vLLM was at in the year it names."""
    text = str(record.get("engine_version", ""))
    numbers = _release(text) or _release_of_date(text)
    return numbers if numbers is None or "V0" not in text else min(numbers, _LAST_V0)


def gpu_of_record(record: Record) -> GpuSpec | None:
    """Return the card a record names, or the class it is said to be; None where nobody knows it."""
    gpu = record.get("gpu")
    name = str(gpu.get("name") or "") if isinstance(gpu, Mapping) else ""
    name = re.sub(r"\([^)]*\)|^\d+x\s|\sx\d+$|\bclass\b.*", "", name).split("/")[0].strip()
    try:
        return find_gpu(name) if name else None
    except NanoserveError:
        return None


def _release(text: str) -> tuple[int, ...] | None:
    """Return the first release named, the end of a range of them.

    `0.1.dev…` is what a build without tags calls itself.
    """
    for word in (word.strip("~(),") for word in text.split()):
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


def _config(record: Record, configs: Configs) -> tuple[Mapping[str, Any], str]:
    name = record.get("config_ref")
    if not isinstance(name, str):
        model = str(record.get("model", "none named"))[:80]
        if model not in configs:
            raise UnsupportedRecordError("model not known", model)
        name = model
    if name not in configs:
        raise UnsupportedRecordError("no config for the model", name[:80])
    return configs[name], name


def _shape(config: Mapping[str, Any], name: str) -> ModelShape:
    try:
        return read_model_shape(config, name)
    except NanoserveError as error:
        raise UnsupportedRecordError("shape not supported", str(error)[:120]) from None


def _checkpoint_format(shape: ModelShape) -> WeightFormat | UnsupportedRecordError | None:
    if shape.quantization is None:
        return None
    try:
        return read_quant_config(shape.quantization, "config.json").weight_format
    except NanoserveError as error:
        return UnsupportedRecordError("weight format not supported", str(error)[:120])


def _checkpoint_kv_dtype(shape: ModelShape) -> str:
    """Return the KV format a checkpoint asks for.

    Checkpoints of ModelOpt ask for fp8 in hf_quant_config.json, which is not in config.json.
    """
    section = shape.quantization or {}
    if section.get("quant_method") == "modelopt":
        return "fp8"
    scheme = section.get("kv_cache_scheme")
    return "fp8" if isinstance(scheme, Mapping) and scheme.get("num_bits") == 8 else "auto"


def _weight_format(
    record: Record, shape: ModelShape
) -> tuple[WeightFormat | UnsupportedRecordError | None, tuple[str, ...]]:
    """Return how the weights are stored: the checkpoint's own words before the record's."""
    own = _checkpoint_format(shape)
    words = str(record.get("quantization") or record.get("model") or "").casefold()
    found = next((name for word, name in _FORMAT_WORDS if re.search(word, words)), "")
    if found == "":
        return own, ()
    if found is None:
        return UnsupportedRecordError("weight format not supported", words[:80]), ()
    named = find_weight_format(found)
    if found == "bnb-4bit" and _is_by_unsloth(record):
        return find_weight_format("bnb-4bit-double"), ()
    if isinstance(own, WeightFormat) and round(own.value_bits) == round(named.value_bits):
        return own, ()
    is_vague = isinstance(own, UnsupportedRecordError) or _NAMES_NO_METHOD.search(words)
    return named, ("weight format",) if is_vague else ()


def _is_by_unsloth(record: Record) -> bool:
    """Whether Unsloth started vLLM; it keeps double quantisation, and chooses the slots."""
    return "unsloth" in f"{record.get('engine_version')}".casefold()


def _is_divided(record: Record) -> bool:
    """Whether it is known how GPUs divide the model: data-parallel ones do so in many ways."""
    is_parallel = any(_positive(record.get(f"{kind}_parallel")) > 1 for kind in ("data", "expert"))
    counts = (record.get("tensor_parallel"), record.get("num_gpus"))
    return not is_parallel and any(type(count) is int for count in counts)


def _positive(value: Any) -> int:
    return value if type(value) is int and value > 0 else 1
