"""What a plan of the model adds to an explained log: its own verdict, and changes planned again.

A log often lacks what a request takes or how large the weights are; the model's shape has it.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from nanoserve.capacity.engine_profile import version_numbers
from nanoserve.capacity.engine_versions import is_released
from nanoserve.capacity.plan_answer import PlanAnswer, answer
from nanoserve.capacity.plan_query import DEFAULT_ENGINE, PlanQuery
from nanoserve.capacity.remedies import kv_spellings
from nanoserve.errors import NanoserveError
from nanoserve.explain.boot_outcome import OutcomeKind
from nanoserve.explain.engine_flags import engine_flag
from nanoserve.explain.explain import LACKING, Explanation
from nanoserve.explain.logged_boot import LoggedBoot
from nanoserve.explain.suggested_fix import Fix
from nanoserve.spec.gpu_spec import GpuSpec
from nanoserve.spec.planned_model import PlannedModel
from nanoserve.spec.quant_spec import find_weight_format
from nanoserve.units import format_bytes

_PLANNABLE: tuple[OutcomeKind, ...] = (
    "weights do not fit",
    "step does not fit",
    "no room for pool",
    "request larger than pool",
)
_EIGHT_BIT_WEIGHTS = {"vllm": "--quantization fp8", "sglang": "--quantization fp8"}
_MOST_DOUBLINGS = 4
_CONTRADICTED = (
    ". So as logged it should have started: something that neither the log nor the plan shows took "
    "memory, as other processes, images, adapters or more slots do, and no change can be planned "
    "until that is known."
)


@dataclass(frozen=True, slots=True)
class _Variant:
    """A changed query, and how the change is typed."""

    change: str | None
    query: PlanQuery


def with_plan(explanation: Explanation, model: PlannedModel, gpu: GpuSpec) -> Explanation:
    """Return the explanation with what a plan of the model says.

    Args:
        explanation: Of a log; a healthy one gets the plan's verdict alone.
        model: What the log's engine served.
        gpu: Each card; its memory is the log's where the log says it.
    """
    try:
        query = _query(explanation.boot, model, gpu)
        plan = answer(query)
        planned = tuple(_fixes(explanation, query, plan))
    except NanoserveError as error:
        note = f"{model.name} could not be planned as the log has it: {error}"
        return replace(explanation, notes=(*explanation.notes, note))
    known = {_flag(fix) for fix in explanation.fixes}
    fixes = (*explanation.fixes, *(fix for fix in planned if _flag(fix) not in known))
    note = f"A plan of {model.name} on {gpu.name} says: {plan.verdict}. {plan.reason}"
    if explanation.outcome.kind in _PLANNABLE and _holds_a_request(plan):
        note += _CONTRADICTED
    kept = (one for one in explanation.notes if not (fixes and one == LACKING))
    return replace(explanation, fixes=fixes, notes=(*kept, note))


def _query(boot: LoggedBoot, model: PlannedModel, gpu: GpuSpec) -> PlanQuery:
    """Ask for what the log says was asked for."""
    engine, error = boot.engine or DEFAULT_ENGINE, boot.error
    numbers = version_numbers(boot.version or "") if engine == "vllm" else None
    is_release = numbers is not None and is_released(engine, numbers)
    return PlanQuery(
        model=model,
        gpu=gpu if boot.total_bytes is None else replace(gpu, memory_bytes=boot.total_bytes),
        num_gpus=boot.tensor_parallel or 1,
        engine=f"{engine}@{boot.version}" if is_release else engine,
        kv_cache_dtype=boot.kv_cache_dtype or "auto",
        max_model_len=boot.max_model_len or (error.need_tokens if error else None),
        max_num_seqs=boot.max_num_seqs,
        max_num_batched_tokens=boot.max_num_batched_tokens,
        utilization=boot.utilization,
        is_eager=boot.is_eager or False,
    )


def _fixes(explanation: Explanation, query: PlanQuery, plan: PlanAnswer) -> Iterator[Fix]:
    """Yield changes under which a plan holds one longest request, the gentlest first.

    None where it holds one as logged: the boot failed of something that the plan lacks.
    """
    if explanation.outcome.kind not in _PLANNABLE or _holds_a_request(plan):
        return
    for variant in (*_lighter(query, plan), *_more_gpus(query)):
        if variant.change is None:
            continue
        planned = answer(variant.query)
        if _holds_a_request(planned):
            yield Fix(variant.change, _effect(planned), planned.pool.mid - plan.pool.mid)
            if variant.query.num_gpus > query.num_gpus:
                return


def _lighter(query: PlanQuery, plan: PlanAnswer) -> Iterator[_Variant]:
    engine = query.profile.engine
    if 0 < plan.longest_fit < plan.max_model_len:
        shorter = replace(query, max_model_len=plan.longest_fit)
        yield _Variant(engine_flag(engine, "length", plan.longest_fit), shorter)
    eight_bits = kv_spellings(query)
    for kv in eight_bits[:1]:
        yield _Variant(engine_flag(engine, "eight bits"), replace(query, kv_cache_dtype=kv))
    flag = _EIGHT_BIT_WEIGHTS.get(engine)
    if eight_bits and plan.choices.weight_format.name in ("bf16", "fp16"):
        yield _Variant(flag, replace(query, weight_format=find_weight_format("fp8")))


def _more_gpus(query: PlanQuery) -> Iterator[_Variant]:
    num_gpus = query.num_gpus
    for _ in range(_MOST_DOUBLINGS):
        num_gpus *= 2
        flag = engine_flag(query.profile.engine, "gpus", num_gpus)
        yield _Variant(flag, replace(query, num_gpus=num_gpus, tp=None))


def _holds_a_request(planned: PlanAnswer) -> bool:
    return planned.verdict != "does not load" and planned.concurrency >= 1


def _flag(fix: Fix) -> str:
    """Return a change's flag: what the log's own figures gave for it wins over a plan."""
    return fix.change.split()[0]


def _effect(planned: PlanAnswer) -> str:
    return (
        f"planned again: weights {format_bytes(planned.weight_bytes)}, pool "
        f"{format_bytes(planned.pool.mid)} holds {planned.concurrency:,.2f} requests of "
        f"{planned.max_model_len:,} tokens"
    )
