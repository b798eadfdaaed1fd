"""A plan as lines of text for a terminal.

The GPU's memory in the order subtracted, then what it holds, bounds on speed, and the command.
Knows no arithmetic: every figure is the answer's.
"""

from collections.abc import Iterator

from nanoserve.capacity.budget_line import KEPT_BACK, BudgetLine
from nanoserve.capacity.interval import Interval
from nanoserve.capacity.plan_answer import PlanAnswer
from nanoserve.capacity.pool_capacity import HEADROOM
from nanoserve.units import GIB, KIB, MIB, format_bytes

_ENGINES = {
    "vllm": "vLLM",
    "sglang": "SGLang",
    "tensorrt-llm": "TensorRT-LLM",
    "llama.cpp": "llama.cpp",
    "nanoserve": "nanoserve",
}
_NAME_WIDTH = 34
_SIZE_WIDTH = 12


def plan_lines(plan: PlanAnswer) -> tuple[str, ...]:
    """Return the plan, line by line."""
    return (
        headline(plan),
        "",
        *_model_lines(plan),
        "",
        *_memory_lines(plan),
        "",
        *_requests_lines(plan),
        f"{plan.verdict}: {plan.reason}",
        "",
        *([] if plan.command is None else [f"  {plan.command}", ""]),
        *(f"note: {note}" for note in plan.notes),
    )


def headline(plan: PlanAnswer) -> str:
    """Return model, GPUs and engine in a line."""
    query = plan.query
    gpus = query.gpu.name if query.num_gpus == 1 else f"{query.num_gpus} x {query.gpu.name}"
    return f"{query.model.name} on {gpus}, as {engine_name(plan)} would divide it"


def engine_name(plan: PlanAnswer) -> str:
    """Return the engine with the version whose rules were used."""
    profile = plan.query.profile
    name = _ENGINES[profile.engine]
    version = plan.query.engine.partition("@")[2].strip()
    if version:
        return f"{name} {version}"
    since = ".".join(map(str, profile.since))
    return f"{name} ({since} or later)" if profile.since > (0,) else name


def _model_lines(plan: PlanAnswer) -> Iterator[str]:
    choices = plan.choices
    active = ""
    if plan.num_active_params < plan.num_params:
        active = f", {_billions(plan.num_active_params)} active for a token"
    yield _row("parameters", _billions(plan.num_params), f"{plan.num_params:,}{active}")
    bits = 8 * sum(stage.weights.weight_bytes.mid for stage in plan.stages)
    held = sum(stage.weights.num_params for stage in plan.stages)
    yield _row("weights in memory", choices.weight_format.name, f"{bits / held:.2f} bits each")
    yield _row("KV cache in memory", choices.kv_format.name, kv_words(plan))


def kv_words(plan: PlanAnswer) -> str:
    """Return what tokens and requests cost, in words."""
    facts = plan.kv_facts
    words = [f"{_small(facts.token_bytes)} per token"] if facts.token_bytes else []
    if facts.window_bytes:
        words.append(f"{_small(facts.window_bytes)} per token in windows")
    if facts.state_bytes:
        words.append(f"{_small(facts.state_bytes)} of state per request")
    suffix = " on each GPU" if plan.choices.tp * plan.choices.pp > 1 else ""
    return ", ".join(words) + suffix if words else "nothing"


def _memory_lines(plan: PlanAnswer) -> Iterator[str]:
    where = "memory of the GPU" if plan.query.num_gpus == 1 else "memory of each GPU"
    if plan.query.gpu.is_host:
        where = "memory of this machine"
    if len(plan.stages) > 1:
        weights = plan.stage.weights
        last = weights.first_layer + weights.num_layers - 1
        where = (
            f"stage {plan.binding + 1} of {len(plan.stages)}, layers {weights.first_layer}-{last}"
        )
    yield _row(where, "GiB", "likely range")
    yield _row("  total", f"{plan.stage.total_bytes / GIB:.2f}", "")
    for line in plan.lines:
        if line.is_inside:
            yield _row(_line_name(plan, line), _gib(line.size.mid), _range(line.size))
    for line in plan.lines:
        if not line.is_inside:
            name = f"  ({line.name}, in what is kept back)"
            yield _row(name, _gib(line.size.mid), _range(line.size))
    peak = plan.stage.load_peak
    if peak is not None:
        yield _row(f"  ({peak.name})", _gib(int(peak.value)), "")


def _gib(num_bytes: int) -> str:
    """Return GiB; of a part that two digits would not show, four."""
    digits = 2 if num_bytes == 0 or abs(num_bytes) >= 0.005 * GIB else 4
    return f"{num_bytes / GIB:.{digits}f}"


def _line_name(plan: PlanAnswer, line: BudgetLine) -> str:
    sign = "=" if line is plan.lines[-1] else "-"
    if line.name != KEPT_BACK:
        return f"{sign} {line.name}"
    return f"{sign} {line.name} (share {plan.utilization:.3g})"


def _range(size: Interval) -> str:
    return "" if size.low == size.high else f"{size.low / GIB:.2f} to {size.high / GIB:.2f}"


def _requests_lines(plan: PlanAnswer) -> Iterator[str]:
    """Yield what requests get, where there is a pool for them."""
    if plan.has_pool:
        yield from _capacity_lines(plan)
        yield from _speed_lines(plan)
        yield ""


def _capacity_lines(plan: PlanAnswer) -> Iterator[str]:
    tokens, fit, workload = plan.tokens, plan.fit, plan.choices.workload
    spread = "" if tokens.low == tokens.high else f"{tokens.low:,} to {tokens.high:,}"
    yield _row("tokens in the pool", f"{tokens.mid:,}", spread)
    cost = plan.stage.cost
    each = _small(cost.request_bytes(plan.max_model_len))
    name = f"requests of {plan.max_model_len:,} tokens"
    yield _row(name, f"{plan.concurrency:.2f}", f"the longest, {each} each")
    if workload.mean != workload.p95:
        each = _small(cost.request_bytes(workload.mean, "steady"))
        name = f"requests of {workload.mean:,} tokens"
        yield _row(name, f"{fit.mean.mid:,}", f"the workload's mean, {each} each")
    rank = "the workload" if workload.mean == workload.p95 else "its 95th percentile"
    each = _small(cost.request_bytes(workload.p95, "steady"))
    yield _row(f"requests of {workload.p95:,} tokens", f"{fit.p95.mid:,}", f"{rank}, {each} each")
    yield _row("recommended max_num_seqs", f"{fit.max_num_seqs:,}", _why(plan))


def _why(plan: PlanAnswer) -> str:
    """Return what sets the recommended number."""
    if plan.stage.refusal:
        return "what the rest has room for"
    if plan.stage.is_reserved:
        return "the slots, each with room for its longest request"
    if plan.fit.max_num_seqs == plan.choices.max_num_seqs:
        return "the slots that the plan is sized with; more fit"
    return f"{HEADROOM:g} of what fits: past it, requests that grow are preempted"


def _speed_lines(plan: PlanAnswer) -> Iterator[str]:
    for floor in plan.decode:
        requests = "1 request" if floor.batch == 1 else f"{floor.batch:,} requests"
        name = f"decode step, {requests}"
        if floor.seconds is None or floor.tokens_per_second is None:
            yield _row(name, "unknown", "the bandwidth is not known: state --bandwidth")
        else:
            rate = f"bound: at most {floor.tokens_per_second:,.0f} tokens/s"
            yield _row(name, f"{1000 * floor.seconds:.1f} ms", rate)
    prefill = plan.prefill
    name = f"prefill of {prefill.prompt:,} tokens"
    if prefill.seconds is None:
        yield _row(name, "unknown", "the arithmetic rate is not known: state --tflops")
    else:
        yield _row(name, f"{1000 * prefill.seconds:.0f} ms", f"bound, in {prefill.precision}")


def _row(name: str, figure: str, words: str) -> str:
    return f"{name:<{_NAME_WIDTH}}{figure:>{_SIZE_WIDTH}}  {words}".rstrip()


def _billions(number: int) -> str:
    return f"{number / 1e9:.2f} B" if number >= 10**9 else f"{number / 1e6:.1f} M"


def _small(num_bytes: int) -> str:
    if num_bytes >= MIB:
        return format_bytes(num_bytes)
    return f"{num_bytes / KIB:.4g} KiB"
