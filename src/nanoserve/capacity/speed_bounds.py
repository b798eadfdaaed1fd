"""Bounds on speed from bandwidth and arithmetic alone: no engine is faster than these.

A decode step reads every weight it uses and every key and value once; a prefill multiplies
every weight with every token. Real engines reach 50 to 85 % of either.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from nanoserve.capacity.budget_line import StageBudget
from nanoserve.capacity.plan_choices import PlanChoices
from nanoserve.capacity.plan_query import PlanQuery
from nanoserve.plan.formula import Formula, Number, compute
from nanoserve.plan.kv_layout import kv_request_bytes
from nanoserve.spec.model_shape import LayerShape, ModelShape

_NOT_READ = frozenset({"vision"})  # towers and encoders rest while a text is decoded
_HALF_BITS = 16


@dataclass(frozen=True, slots=True)
class DecodeFloor:
    """The least time of one decode step.

    Attributes:
        batch: Requests in the step.
        context: Tokens that each has behind it.
        formula: Seconds; None where the GPU's bandwidth is not known.
    """

    batch: int
    context: int
    formula: Formula | None

    @property
    def seconds(self) -> float | None:
        """Seconds of a step."""
        return None if self.formula is None else float(self.formula.value)

    @property
    def tokens_per_second(self) -> float | None:
        """Most tokens a second of all requests together."""
        return None if self.formula is None else self.batch / float(self.formula.value)


@dataclass(frozen=True, slots=True)
class PrefillBound:
    """The least time until a prompt is computed.

    Attributes:
        prompt: Tokens of it.
        formula: Seconds; None where the GPU's arithmetic rate is not known.
        precision: What the weights are multiplied in.
    """

    prompt: int
    formula: Formula | None
    precision: str

    @property
    def seconds(self) -> float | None:
        """Seconds of the prompt."""
        return None if self.formula is None else float(self.formula.value)


def decode_floor(
    query: PlanQuery,
    choices: PlanChoices,
    stages: Sequence[StageBudget],
    batch: int,
    context: int,
) -> DecodeFloor:
    """Return the least time of a step: bytes read on each rank, stage after stage, by bandwidth.

    Of E experts a batch of B reads E * (1 - (1 - k / E) ** B) in expectation, k for each
    token. An embedding is looked up, not read, unless it is the head.

    Example: Llama 3 70B in bf16 takes 42 ms on one H100 and 21 ms on two.
    """
    if not query.gpu.bandwidth:
        return DecodeFloor(batch, context, None)
    dense = experts = kv = 0.0
    for number, stage in enumerate(stages):
        is_last = number == len(stages) - 1
        scale = stage.weights.stored_share
        for group, num_params in stage.weights.params.items():
            num_bytes = num_params * choices.weight_format.group_bits_per_weight(group) / 8 * scale
            if group == "experts":
                experts += num_bytes
            elif _is_read(group, query.model.shape, is_last):
                dense += num_bytes
        kv += kv_request_bytes(stage.shape, context, choices.cache, "steady")
    symbols: dict[str, Number] = {
        "weight_bytes": round(dense),
        "batch": batch,
        "kv_bytes": round(kv),
        "bandwidth": query.gpu.bandwidth,
    }
    expression = "weight_bytes"
    if experts:
        visited, num_experts = _expert_counts(query.model.shape.layers)
        symbols |= {"expert_bytes": round(experts), "k": visited, "E": num_experts}
        expression += " + expert_bytes * (1 - (1 - k / E) ** batch)"
    formula = compute(
        "decode floor", f"({expression} + batch * kv_bytes) / bandwidth", "seconds", symbols
    )
    return DecodeFloor(batch, context, formula)


def _is_read(group: str, shape: ModelShape, is_last: bool) -> bool:
    if group == "embedding":
        return shape.tie_word_embeddings and is_last
    return group not in _NOT_READ


def _expert_counts(layers: Sequence[LayerShape]) -> tuple[int, int]:
    """Return the experts a token visits and all there are, of the first layer that has any."""
    mlp = next(layer.mlp for layer in layers if layer.mlp is not None and layer.mlp.num_experts)
    return mlp.num_experts_per_token, mlp.num_experts


def prefill_bound(query: PlanQuery, choices: PlanChoices, prompt: int) -> PrefillBound:
    """Return the least time of a prompt: two operations a weight and token, and attention.

    Weights of 8 bits are multiplied in fp8 only on a GPU that has such units; without them,
    and for 4 bits, they are widened to 16 first. Attention runs in 16 bits.
    """
    bits = choices.weight_format.value_bits
    rate, half = query.gpu.prefill_flops(bits), query.gpu.half_flops
    is_narrow = rate is not None and rate != half
    precision = f"{bits:g} bits" if is_narrow else f"{_HALF_BITS} bits"
    if not rate or not half:
        return PrefillBound(prompt, None, precision)
    symbols: dict[str, Number] = {
        "active_params": _multiplied_params(query.model.shape),
        "prompt": prompt,
        "ranks": choices.tp * choices.pp,  # stages may work on pieces of a prompt at once
        "flops": rate,
        "attention_flop": _attention_flop(query.model.shape, prompt),
        "half_flops": half,
    }
    expression = (
        "2 * active_params * prompt / (ranks * flops) + attention_flop / (ranks * half_flops)"
    )
    return PrefillBound(prompt, compute("prefill bound", expression, "seconds", symbols), precision)


def _multiplied_params(shape: ModelShape) -> int:
    """Return the parameters of the layers that one token goes through; the head sees one row."""
    return sum(weight.num_active_params for layer in shape.layers for weight in layer.weights)


def _attention_flop(shape: ModelShape, prompt: int) -> int:
    """Return 2 * heads * (head_dim + v_head_dim) for each query and the keys before it."""
    total = 0
    for layer in shape.layers:
        attention = layer.attention
        if attention is not None:
            span = min(prompt, attention.span or prompt)
            pairs = span * prompt - span * span // 2
            total += 2 * attention.num_heads * (attention.head_dim + attention.v_head_dim) * pairs
    return total
