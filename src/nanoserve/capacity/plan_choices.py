"""What follows from a query: ranks, formats, batch, and how the engine caches this model.

Owns each engine's habits that depend on the model; its accounting is `engine_profile`.
Every choice made for the asker is a note.
"""

from dataclasses import dataclass, replace

from nanoserve.capacity.cache_cost import (
    CacheCost,
    GroupedCost,
    SummedCost,
    cell_cost,
    padded_windows,
)
from nanoserve.capacity.engine_defaults import default_batch
from nanoserve.capacity.engine_formats import check_weight_format, kv_flag_value
from nanoserve.capacity.engine_memory import sglang_batch
from nanoserve.capacity.kv_groups import group_cache, without_windows
from nanoserve.capacity.plan_query import PlanQuery
from nanoserve.capacity.vllm_layers import as_vllm_caches, states_per_request
from nanoserve.capacity.workload import Workload, default_workload
from nanoserve.options import DEFAULT_MAX_MODEL_LEN, DEFAULT_TOKEN_BUDGET, EngineOptions
from nanoserve.plan.kv_layout import CacheFormat
from nanoserve.plan.sharding import check_tp
from nanoserve.spec.kv_format import KVFormat, find_kv_format
from nanoserve.spec.model_shape import ModelShape, StateShape
from nanoserve.spec.quant_spec import WeightFormat

# Families whose windows SGLang keeps apart. Source: model_config.py, is_hybrid_swa_model.
_SGLANG_WINDOW_POOLS = frozenset({"llama4_text", "gpt_oss", "mimo_v2_flash", "step3p5"})
# Slots and token budget where nobody says. Source: TensorRT-LLM's trtllm-serve (max_batch_size,
# max_num_tokens), llama.cpp (n_ubatch; LLAMA_MAX_SEQ). SGLang's slots are set from the pool.
_BATCHES = {"tensorrt-llm": (2048, 8192), "llama.cpp": (256, 512)}
_SGLANG_SLOTS = 2048
_DEFAULT_LEN = 8192  # where neither the model nor the asker bounds a request


@dataclass(frozen=True, slots=True)
class PlanChoices:
    """A query with nothing left open but the length that fits.

    Attributes:
        tp: GPUs that share each layer.
        pp: Pipeline stages.
        weight_format: How weights are stored.
        kv_format: How keys and values are.
        max_num_seqs: Requests at once that the engine is sized for.
        max_num_batched_tokens: Token budget of a step.
        longest: Longest request that is asked for, or the model's.
        workload: Lengths of the requests.
        cache: How one rank stores its cache.
        notes: Each choice that the asker might not expect.
    """

    tp: int
    pp: int
    weight_format: WeightFormat
    kv_format: KVFormat
    max_num_seqs: int
    max_num_batched_tokens: int
    longest: int
    workload: Workload
    cache: CacheFormat
    notes: tuple[str, ...]


def choose_plan(query: PlanQuery) -> PlanChoices:
    """Resolve a query.

    Raises:
        OptionError: The ranks do not divide the model, or a format is unknown.
    """
    shape, tp = query.model.shape, query.ranks
    check_tp(shape, tp)
    slots, budget = _batch(query)
    kv_format, kv_notes = _kv_format(query)
    longest, length_notes = _longest(query)
    model_longest = shape.max_position_embeddings
    return PlanChoices(
        tp=tp,
        pp=query.num_stages,
        weight_format=_weight_format(query),
        kv_format=kv_format,
        max_num_seqs=slots,
        max_num_batched_tokens=budget,
        longest=longest,
        workload=query.workload or default_workload(min(longest, model_longest or longest)),
        cache=_cache_format(query, kv_format, budget),
        notes=(*kv_notes, *length_notes),
    )


def stage_cost(query: PlanQuery, choices: PlanChoices, stage: ModelShape) -> CacheCost:
    """Return what requests cost in the pool of one stage.

    Args:
        query: Names the engine.
        choices: What it was resolved to.
        stage: The model with the layers of the stage alone.
    """
    encoder_tokens = stage.max_encoder_tokens or 0
    engine, cache = query.profile.engine, choices.cache
    held = cached_shape(query, stage)
    if engine == "vllm":
        return GroupedCost(group_cache(held, cache), cache, encoder_tokens)
    if engine == "sglang":
        return cell_cost(_with_float_states(held), cache)
    if engine == "llama.cpp":
        held = padded_windows(held, cache)
    return SummedCost(held, cache, encoder_tokens)


def cached_shape(query: PlanQuery, stage: ModelShape) -> ModelShape:
    """Return a stage's layers as the engine caches them: a window it has no pool for keeps all.

    Args:
        query: Names the engine.
        stage: The model with the layers of the stage alone.
    """
    engine = query.profile.engine
    if engine == "vllm":
        return as_vllm_caches(stage, query.version)
    if engine == "llama.cpp" or (engine == "sglang" and stage.model_type in _SGLANG_WINDOW_POOLS):
        return stage
    return without_windows(stage)


def stage_shape(shape: ModelShape, first_layer: int, num_layers: int) -> ModelShape:
    """Return the model with the layers of one stage alone."""
    return replace(shape, layers=shape.layers[first_layer : first_layer + num_layers])


def _weight_format(query: PlanQuery) -> WeightFormat:
    """Return how weights lie in memory; our own server widens what a file stores."""
    if query.profile.engine == "nanoserve":
        from nanoserve.capacity.own_formats import own_weight_format  # other engines do without

        return own_weight_format(query.weight_format, query.gpu)
    if query.weight_format is not None:
        check_weight_format(query.profile.engine, query.weight_format)
    return query.weight_format or query.model.weight_format


def _batch(query: PlanQuery) -> tuple[int, int]:
    profile = query.profile
    if profile.engine == "nanoserve":
        kind = "cpu" if query.gpu.is_host else "cuda"
        slots, budget = EngineOptions().max_num_seqs, DEFAULT_TOKEN_BUDGET[kind]
    elif profile.engine == "sglang":
        slots, budget = _SGLANG_SLOTS, sglang_batch(query.gpu.memory_bytes, query.ranks)[0]
    elif profile.engine in _BATCHES:
        slots, budget = _BATCHES[profile.engine]
    else:
        slots, budget = default_batch(profile, query.gpu.memory_bytes, query.gpu.name)
    if query.max_num_batched_tokens is not None and profile.engine == "vllm":
        slots = min(slots, query.max_num_batched_tokens)  # as its arg_utils.py lowers a default
    if query.max_num_seqs is not None:
        slots = query.max_num_seqs
    return slots, query.max_num_batched_tokens or max(budget, slots)


def _longest(query: PlanQuery) -> tuple[int, tuple[str, ...]]:
    bound = query.model.shape.max_position_embeddings
    if query.profile.engine == "nanoserve":
        return _own_longest(query.max_model_len, bound)
    if query.max_model_len is None:
        return bound or _DEFAULT_LEN, ()
    if bound is not None and query.max_model_len > bound:
        note = (
            f"--max-model-len {query.max_model_len:,} is past the model's {bound:,} tokens; "
            "engines refuse it unless told otherwise"
        )
        return query.max_model_len, (note,)
    return query.max_model_len, ()


def _own_longest(asked: int | None, bound: int | None) -> tuple[int, tuple[str, ...]]:
    """Return the length our own server serves: it cuts what is past the model's."""
    if asked is None or bound is None or asked <= bound:
        return asked or min(DEFAULT_MAX_MODEL_LEN, bound or DEFAULT_MAX_MODEL_LEN), ()
    return bound, (
        f"--max-model-len {asked:,} is past the model's {bound:,} tokens: that is served",
    )


def _kv_format(query: PlanQuery) -> tuple[KVFormat, tuple[str, ...]]:
    """Return how keys and values are stored; `auto` follows the checkpoint where it says."""
    if query.profile.engine == "nanoserve":
        from nanoserve.capacity.own_formats import own_kv_format  # other engines do without

        return own_kv_format(query.kv_cache_dtype, query.gpu), ()
    asked, stored = query.kv_cache_dtype, query.model.kv_cache_dtype
    kv_flag_value(query.profile.engine, asked)
    notes: tuple[str, ...] = ()
    if asked.strip().casefold() in ("auto", "") and stored and query.profile.engine != "llama.cpp":
        asked = stored
        notes = (f"the checkpoint asks for a KV cache in {stored}",)
    if asked.strip().casefold() in ("auto", ""):
        asked = "bf16"
    found = find_kv_format(asked)
    is_sparse = any(
        layer.attention and layer.attention.index_dim for layer in query.model.shape.layers
    )
    if found.name == "fp8" and is_sparse and query.profile.engine in ("vllm", "sglang"):
        found = find_kv_format("fp8_ds_mla")
        notes += ("fp8 is stored as fp8_ds_mla with sparse latent attention: scales in fp32",)
    return found, notes


def _cache_format(query: PlanQuery, kv_format: KVFormat, budget: int) -> CacheFormat:
    value_bytes = kv_format.head_bytes(1)
    is_plain = kv_format.head_bytes(128) == 128 * value_bytes
    is_plain = is_plain and kv_format.latent_bytes(512, 64) == 576 * value_bytes
    return CacheFormat(
        itemsize=value_bytes,
        state_itemsize=4 if query.profile.engine == "llama.cpp" else 2,
        block_size=query.profile.block_size,
        tp=query.ranks,
        max_num_batched_tokens=budget,
        num_states=states_per_request(query.model.shape, query.version)
        if query.profile.engine == "vllm"
        else 1,
        kv_format=None if is_plain else kv_format,
    )


def _with_float_states(shape: ModelShape) -> ModelShape:
    """Return the model with states in float32 where it names no type, as SGLang keeps them."""

    def widened(state: StateShape | None) -> StateShape | None:
        return state if state is None or state.dtype else replace(state, dtype="float32")

    layers = tuple(replace(layer, state=widened(layer.state)) for layer in shape.layers)
    return replace(shape, layers=layers)
