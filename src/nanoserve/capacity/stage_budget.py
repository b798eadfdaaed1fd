"""One pipeline stage's GPU, divided as its engine divides it: lines in the order subtracted.

Owns which term comes off which share. The terms are `engine_memory`'s and `rank_weights`';
how many requests a pool holds is `cache_cost`.
"""

from dataclasses import replace

from nanoserve.capacity.budget_line import (
    KEPT_BACK,
    NOTHING,
    POOL,
    BudgetLine,
    StageBudget,
    pool_formula,
)
from nanoserve.capacity.engine_formulas import (
    GRAPHS,
    activation_formula,
    gib_formula,
    graph_formula,
)
from nanoserve.capacity.engine_load import ServingLimits, engine_load
from nanoserve.capacity.engine_memory import (
    EngineLoad,
    activation_bytes,
    non_torch_bytes,
    pool_bytes,
    sglang_fraction,
)
from nanoserve.capacity.interval import Interval
from nanoserve.capacity.plan_choices import PlanChoices, stage_cost, stage_shape
from nanoserve.capacity.plan_query import PlanQuery
from nanoserve.capacity.rank_weights import LAYOUT, RankWeights
from nanoserve.capacity.recorded_graphs import graph_bytes
from nanoserve.plan.formula import compute
from nanoserve.spec.model_shape import ModelShape


def stage_budget(query: PlanQuery, choices: PlanChoices, weights: RankWeights) -> StageBudget:
    """Divide the GPU of one stage.

    Args:
        query: Names engine and GPU.
        choices: What it was resolved to.
        weights: Of the stage, on one rank.
    """
    if query.profile.engine == "nanoserve":
        from nanoserve.capacity.own_budget import (
            own_stage,  # the boot's planner: other engines do without
        )

        return own_stage(query, choices, weights)
    stage = stage_shape(query.model.shape, weights.first_layer, weights.num_layers)
    load = _load(query, choices, stage, is_last=weights.stage == choices.pp - 1)
    layout = _layout(query, weights)
    divide = {
        "vllm": _divide_vllm,
        "sglang": _divide_sglang,
        "tensorrt-llm": _divide_tensorrt,
        "llama.cpp": _divide_llama_cpp,
    }
    lines = divide[query.profile.engine](query, load, [_weight_line(weights), *layout])
    cost = stage_cost(query, choices, stage)
    return StageBudget(weights, stage, query.gpu.memory_bytes, lines, lines[-1].size, cost)


def utilization_of(query: PlanQuery) -> float:
    """Return the share of memory that the engine is given, its default where none is asked."""
    if query.utilization is not None:
        return query.utilization
    if query.profile.engine == "sglang":
        is_mla = any(
            layer.attention and layer.attention.latent for layer in query.model.shape.layers
        )
        return sglang_fraction(
            query.gpu.memory_bytes,
            query.max_num_batched_tokens,
            query.ranks,
            query.num_stages,
            is_mla=is_mla,
        )
    return 1.0 if query.profile.utilization is None else query.profile.utilization


def _load(
    query: PlanQuery, choices: PlanChoices, stage: ModelShape, *, is_last: bool
) -> EngineLoad:
    """Return what the engine runs on one GPU; the sampler is on the last stage alone."""
    limits = ServingLimits(
        max_num_seqs=choices.max_num_seqs,
        max_num_batched_tokens=choices.max_num_batched_tokens,
        max_model_len=choices.longest,
        tensor_parallel=choices.tp,
        is_eager=query.is_eager,
    )
    load = engine_load(stage, query.profile, limits, query.gpu)
    return load if is_last else replace(load, vocab_size=0)


def _divide_vllm(
    query: PlanQuery, load: EngineLoad, weights: list[BudgetLine]
) -> tuple[BudgetLine, ...]:
    """Return vLLM's parts: a share of the total, less what a profiled step and the rest took."""
    profile = query.profile
    kept_back = _kept_back(query)
    activation, non_torch, graphs = _terms(query, load)
    held = activation.size
    for line in weights:
        held = held + line.size
    requested = query.gpu.memory_bytes - kept_back.size.mid
    without = pool_bytes(profile, requested, 0, held, non_torch.size)
    pool = pool_bytes(profile, requested, 0, held, non_torch.size, graphs.size)
    inside = Interval(without.high - pool.high, without.mid - pool.mid, without.low - pool.low)
    lines = [kept_back, *weights, activation, non_torch]
    if inside != NOTHING:
        lines.append(BudgetLine(GRAPHS, inside, graphs.formula if inside.mid else None))
    return _with_pool(query, lines, pool, graphs if inside == NOTHING else None)


def _divide_sglang(
    query: PlanQuery, load: EngineLoad, weights: list[BudgetLine]
) -> tuple[BudgetLine, ...]:
    """Return SGLang's parts: what is free after loading, less a share of what was before."""
    activation, non_torch, graphs = _terms(query, load)
    del activation
    free_before = query.gpu.memory_bytes - non_torch.size.mid
    formula = compute(
        KEPT_BACK,
        "ceil((1 - mem_fraction_static) * free_before)",
        "bytes",
        {"mem_fraction_static": utilization_of(query), "free_before": free_before},
    )
    kept_back = BudgetLine(KEPT_BACK, Interval.exactly(int(formula.value)), formula)
    lines = [non_torch, *weights, kept_back]
    pool = _left(query, lines)
    return _with_pool(query, lines, pool, graphs)


def _divide_tensorrt(
    query: PlanQuery, load: EngineLoad, weights: list[BudgetLine]
) -> tuple[BudgetLine, ...]:
    """Return TensorRT-LLM's parts: a share of what is free once engine and context are there."""
    activation, non_torch, graphs = _terms(query, load)
    lines = [*weights, activation, non_torch]
    free = _left(query, lines)
    formula = compute(
        KEPT_BACK,
        "ceil((1 - free_gpu_memory_fraction) * free)",
        "bytes",
        {"free_gpu_memory_fraction": utilization_of(query), "free": max(0, free.mid)},
    )
    lines.append(BudgetLine(KEPT_BACK, Interval.exactly(int(formula.value)), formula))
    return _with_pool(query, lines, _left(query, lines), graphs)


def _divide_llama_cpp(
    query: PlanQuery, load: EngineLoad, weights: list[BudgetLine]
) -> tuple[BudgetLine, ...]:
    """Return llama.cpp's parts: it takes what the context asks for, up to all there is."""
    activation, non_torch, _ = _terms(query, load)
    lines = [*weights, activation, non_torch]
    if query.utilization is not None:
        lines.insert(0, _kept_back(query))
    return _with_pool(query, lines, _left(query, lines), None)


def _kept_back(query: PlanQuery) -> BudgetLine:
    symbols = {"total": query.gpu.memory_bytes, "utilization": utilization_of(query)}
    formula = compute(KEPT_BACK, "total - floor(utilization * total)", "bytes", symbols)
    return BudgetLine(KEPT_BACK, Interval.exactly(int(formula.value)), formula)


def _weight_line(weights: RankWeights) -> BudgetLine:
    return BudgetLine("weights", weights.weight_bytes, weights.formula)


def _layout(query: PlanQuery, weights: RankWeights) -> list[BudgetLine]:
    """Return what laying the weights out adds, where an engine runs on torch."""
    if query.profile.engine == "llama.cpp":
        return []
    return [BudgetLine(LAYOUT, Interval.exactly(int(weights.layout.value)), weights.layout)]


def _terms(query: PlanQuery, load: EngineLoad) -> tuple[BudgetLine, BudgetLine, BudgetLine]:
    """Return activations, what lies outside the allocator, and recorded steps."""
    profile = query.profile
    non_torch = non_torch_bytes(
        profile, load.tensor_parallel, load.has_fast_link, is_rocm=load.is_rocm
    )
    graphs = graph_bytes(profile, load.max_num_seqs, load.num_layers, is_eager=query.is_eager)
    activation, outside = activation_bytes(profile, load), "outside the allocator"
    return (
        BudgetLine("activations", activation, activation_formula(profile, load)),
        BudgetLine(outside, non_torch, gib_formula(outside, non_torch.mid)),
        BudgetLine(
            GRAPHS, graphs, graph_formula(profile, load, is_eager=query.is_eager), is_inside=False
        ),
    )


def _left(query: PlanQuery, lines: list[BudgetLine]) -> Interval:
    held = NOTHING
    for line in lines:
        held = held + line.size
    return held.taken_from(query.gpu.memory_bytes)


def _with_pool(
    query: PlanQuery, lines: list[BudgetLine], pool: Interval, graphs: BudgetLine | None
) -> tuple[BudgetLine, ...]:
    """Return the lines that are anything, what must fit in the reserve, and the pool."""
    kept = [line for line in lines if line.size != NOTHING]
    formula = pool_formula(query.gpu.memory_bytes, kept)
    if graphs is not None and graphs.size != NOTHING:
        kept.append(graphs)
    return (*kept, BudgetLine(POOL, pool, formula))
