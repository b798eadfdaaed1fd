"""A recorded boot with its model's shape: everything a prediction needs, or why there is none.

Resolves names: the model among known configs, the card in the table of GPUs, the engine's
version, the formats as people write them. What a record does not say is taken from the
engine's defaults and said in `assumed`; what cannot be resolved is refused by name.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from nanoserve.bench.boot_facts import (
    Record,
    UnsupportedRecordError,
    gpu_of_record,
    has_own_budget,
    is_by_unsloth,
    is_divided,
    is_on_rocm,
    positive_count,
    profile_of_record,
    version_of_record,
    weight_format_of,
)
from nanoserve.capacity.engine_defaults import default_batch
from nanoserve.capacity.engine_load import ServingLimits, engine_load
from nanoserve.capacity.engine_memory import EngineLoad
from nanoserve.capacity.engine_profile import EngineProfile
from nanoserve.errors import NanoserveError
from nanoserve.explain.boot_record import boot_of_record
from nanoserve.explain.logged_boot import LoggedBoot
from nanoserve.spec.gpu_spec import GpuSpec
from nanoserve.spec.model_shape import LayerShape, ModelShape
from nanoserve.spec.quant_spec import WeightFormat
from nanoserve.spec.read_shape import read_model_shape
from nanoserve.units import GIB

Configs = Mapping[str, Mapping[str, Any]]

_FUSED_SINCE = (0, 3)  # vLLM ran an MoE's experts one after another before
_QUANTISED_FUSED_SINCE = (0, 5)  # models/mixtral_quant.py did until then
_ONE_GPU = "per GPU"
_SHORTEST_CONTEXT = 4096
_FAST_LINK_FROM_BYTES = 36 * GIB  # smaller cards are desktops', or on a plain PCIe board


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
        has_own_budget: Whether a fork sizes the pool by rules of its own.
        is_rocm: Whether the record says that the card is AMD's.
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
    has_own_budget: bool = False
    is_rocm: bool = False

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
        boot = self.boot
        limits = ServingLimits(
            boot.max_num_seqs or slots,
            boot.max_num_batched_tokens or tokens,
            boot.max_model_len or self.shape.max_position_embeddings or _SHORTEST_CONTEXT,
            self.tensor_parallel,
            bool(boot.is_eager),
        )
        load = engine_load(self._as_run(), self.profile, limits, self.gpu)
        if self.gpu is not None:
            return load
        is_fast = self._least_total() >= _FAST_LINK_FROM_BYTES
        return replace(load, has_fast_link=is_fast, is_rocm=self.is_rocm)

    def _as_run(self) -> ModelShape:
        """Return the model as the engine ran it: experts once went one after another."""
        fused_since = _FUSED_SINCE if self.weight_format is None else _QUANTISED_FUSED_SINCE
        if self.profile.engine != "vllm" or (self.version or fused_since) >= fused_since:
            return self.shape
        return replace(self.shape, layers=tuple(map(_one_expert_at_once, self.shape.layers)))

    def _least_total(self) -> int:
        """Return the device's memory, or at least what it is said to hold."""
        held = (self.boot.weight_bytes or 0) + max(0, self.boot.pool_bytes or 0)
        return self.total_bytes or held


def _one_expert_at_once(layer: LayerShape) -> LayerShape:
    if layer.mlp is None:
        return layer
    return replace(layer, mlp=replace(layer.mlp, num_experts_per_token=1))


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
    if boot.engine is None:
        raise UnsupportedRecordError(kind="engine not known", detail=engine[:80] or "none named")
    scope = record.get("memory_scope", _ONE_GPU)
    if scope != _ONE_GPU:
        raise UnsupportedRecordError(kind="figures not of one GPU", detail=str(scope)[:80])
    shape = _shape(*_config(record, configs))
    weight_format, notes = weight_format_of(record, shape)
    gpu = gpu_of_record(record)
    case = BootCase(
        boot=boot,
        shape=shape,
        profile=profile_of_record(record),
        weight_format=weight_format,
        kv_cache_dtype=boot.kv_cache_dtype or _checkpoint_kv_dtype(shape),
        tensor_parallel=boot.tensor_parallel or 1,
        pipeline_parallel=positive_count(record.get("pipeline_parallel")),
        gpu=gpu,
        version=version_of_record(record),
        assumed=notes,
        is_by_unsloth=is_by_unsloth(record),
        has_own_budget=has_own_budget(record),
        is_divided=is_divided(record),
        is_rocm=is_on_rocm(record),
    )
    return replace(case, assumed=(*notes, *_assumptions(case, record)))


def _assumptions(case: BootCase, record: Record) -> tuple[str, ...]:
    """Return the facts that a pool depends on and the record does not state."""
    facts = []
    if case.boot.utilization is None or "assumed" in str(record.get("gmu_source", "")):
        facts.append("utilization")
    if case.boot.total_bytes is None:
        facts.append("memory")
    if case.boot.max_model_len is None and not case.profile.is_chunked:
        facts.append("length")
    if case.gpu is not None and case.gpu.is_unified:
        facts.append("unified memory")
    return tuple(facts)


def _config(record: Record, configs: Configs) -> tuple[Mapping[str, Any], str]:
    named, model = record.get("config_ref"), str(record.get("model", "none named"))
    for text in (named, model):
        name = _name_of_config(text, configs) if isinstance(text, str) else None
        if name is not None:
            return configs[name], name
    if isinstance(named, str):
        raise UnsupportedRecordError(kind="no config for the model", detail=named[:80])
    raise UnsupportedRecordError(kind="model not known", detail=model[:80])


def _name_of_config(model: str, configs: Configs) -> str | None:
    """Return under which name a model's config is known: with or without owner and capitals."""
    spelled = {model.casefold(), model.split(" (")[0].strip().casefold()}
    whole = [name for name in configs if name.casefold() in spelled]
    alone = [name for name in configs if name.casefold().rpartition("/")[2] in spelled]
    found = whole or alone
    return found[0] if len(found) == 1 else None


def _shape(config: Mapping[str, Any], name: str) -> ModelShape:
    try:
        return read_model_shape(config, name)
    except NanoserveError as error:
        raise UnsupportedRecordError(kind="shape not supported", detail=str(error)[:120]) from None


def _checkpoint_kv_dtype(shape: ModelShape) -> str:
    """Return the KV format a checkpoint asks for; ModelOpt's say it in hf_quant_config.json."""
    section = shape.quantization or {}
    scheme, algorithm = section.get("kv_cache_scheme"), section.get("kv_cache_quant_algo")
    is_fp8 = isinstance(scheme, Mapping) and scheme.get("num_bits") == 8
    return "fp8" if is_fp8 or str(algorithm).casefold() == "fp8" else "auto"
