"""`--explain`: every figure of a plan with its formula, the numbers in place of the symbols.

Collects formulas where they were computed; writes none of its own but the sum of parameters.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from nanoserve.capacity.kv_formulas import block_formulas, layer_formulas
from nanoserve.capacity.plan_answer import PlanAnswer
from nanoserve.capacity.plan_choices import cached_shape
from nanoserve.plan.formula import Formula, Number, compute
from nanoserve.spec.param_count import count_active_parameters, count_parameters
from nanoserve.units import MIB, format_bytes

_SECTIONS = ("text_config", "llm_config", "language_config", "thinker_config")


def plan_formulas(plan: PlanAnswer) -> tuple[Formula, ...]:
    """Return the formulas of a plan in the order in which they build on each other."""
    stage, workload = plan.stage, plan.choices.workload
    pool = stage.pool.mid
    formulas = [*_parameter_formulas(plan)]
    formulas += [line.formula for line in plan.lines if line.formula is not None]
    if stage.load_peak is not None:
        formulas.append(stage.load_peak)
    formulas += layer_formulas(cached_shape(plan.query, stage.shape), plan.choices.cache)
    if not plan.has_pool:
        return tuple(formulas)
    formulas += block_formulas(stage.cost, workload.p95, plan.max_model_len)
    if not stage.cost.is_free:
        formulas.append(stage.cost.tokens(pool, plan.max_model_len))
        formulas.append(stage.cost.concurrency(pool, plan.max_model_len))
        formulas.append(stage.cost.requests(pool, workload.p95))
    formulas.append(plan.fit.recommended)
    formulas += [floor.formula for floor in plan.decode if floor.formula is not None]
    if plan.prefill.formula is not None:
        formulas.append(plan.prefill.formula)
    return tuple(formulas)


def formula_lines(plan: PlanAnswer) -> Iterator[str]:
    """Yield the formulas as text, and the config keys that the shape was read from."""
    yield "Formulas, of one GPU where not said"
    for formula in plan_formulas(plan):
        yield ""
        yield formula.name
        yield f"  = {formula.expression}"
        yield f"  = {formula.substituted}"
        yield f"  = {_value(formula)}"
    yield ""
    yield "Keys of the config that the shape was read from"
    for key, value in _keys(plan):
        yield f"  {key} = {value}"
    yield ""
    yield f"Rules of the engine: {plan.query.profile.source}"


def _parameter_formulas(plan: PlanAnswer) -> Iterator[Formula]:
    shape = plan.query.model.shape
    counts = [("parameters", count_parameters(shape))]
    if plan.num_active_params < plan.num_params:
        counts.append(("parameters that one token visits", count_active_parameters(shape)))
    for name, count in counts:
        symbols: dict[str, Number] = {
            group: getattr(count, group) for group in count.__slots__ if getattr(count, group)
        }
        yield compute(name, " + ".join(symbols), "parameters", symbols)


def _value(formula: Formula) -> str:
    value = formula.value
    if formula.unit == "bytes":
        return f"{value:,} bytes" + (f" ({format_bytes(int(value))})" if value >= MIB else "")
    if formula.unit == "seconds":
        return f"{1000 * value:,.3f} ms"
    return f"{value:,} {formula.unit}" if isinstance(value, int) else f"{value:,.3f} {formula.unit}"


def _keys(plan: PlanAnswer) -> Iterator[tuple[str, str]]:
    config = plan.query.model.config
    if config is None:
        return
    section: Mapping[str, Any] = config
    for name in _SECTIONS:
        inner = section.get(name)
        section = inner if isinstance(inner, Mapping) else section
    for key in plan.query.model.shape.config_keys:
        value = section.get(key, config.get(key))
        shown = f"{len(value)} items" if isinstance(value, list) else repr(value)
        yield key, shown if len(shown) <= 60 else f"{shown[:60]}..."
