"""What a capture plan costs: seconds before serving and after, bytes of its arena.

Prices are on paper; what a boot really took is in `boot_report`.
"""

from dataclasses import dataclass

from nanoserve.options import Quantization
from nanoserve.plan.capture_plan import CapturePlan
from nanoserve.plan.weight_plan import scratch_bytes
from nanoserve.spec.model_spec import ModelSpec

SECONDS_PER_GRAPH = 0.05  # one warm-up and one recording of a 1B model's decode step
# A decode step of SmolLM2 as native operators, buffers included. Source: docs/measurements.md.
SECONDS_PER_NATIVE_RECORDING = 0.013
SCORE_BYTES = 4  # a score is float32 whatever the model's dtype
_COPY_BYTES = 4  # of an item of K, V or the mask: float32, the widest a model may have


@dataclass(frozen=True, slots=True)
class CaptureCost:
    """Both directions of the price.

    Attributes:
        startup_s: Seconds of recording every planned shape before serving.
        lazy_captures: Shapes that one request records late, if it grows to the whole
            context: one for each width above the widest planned.
        lazy_latency_s: Seconds that these add to that request.
        startup_saved_s: Seconds of recording that the trimmed shapes would have taken.
    """

    startup_s: float
    lazy_captures: int
    lazy_latency_s: float
    startup_saved_s: float


def price_capture(plan: CapturePlan, seconds_per_graph: float = SECONDS_PER_GRAPH) -> CaptureCost:
    """Price a plan in seconds.

    Args:
        plan: The shapes recorded, and how many were wanted.
        seconds_per_graph: What recording one shape takes.
    """
    lazy_captures = plan.trimmed // len(plan.row_buckets)  # whole rows were trimmed
    return CaptureCost(
        startup_s=plan.count * seconds_per_graph,
        lazy_captures=lazy_captures,
        lazy_latency_s=lazy_captures * seconds_per_graph,
        startup_saved_s=plan.trimmed * seconds_per_graph,
    )


def score_rectangle_bytes(num_heads: int, rows: int, width: int) -> int:
    """Return what the scores of one layer take where they are materialised.

    Every query head of every row scores every token of the padded context:
    `rows * num_heads * width * SCORE_BYTES`.

    Example: 32 heads, 8 rows and 2,048 tokens take 2 MiB.
    """
    return rows * num_heads * width * SCORE_BYTES


def gathered_arena_bytes(num_heads: int, kv_size: int, rows: int, width: int) -> int:
    """Return what one layer takes that copies K and V out of the pool before it attends.

    Scores as above; K and V of every row over the padded context; one mask for all heads.
    Counted in float32: for narrower dtypes it is an upper bound.

    Args:
        num_heads: Query heads.
        kv_size: Width of K, or of V, over all KV heads.
        rows: Of the shape.
        width: Of the shape, in tokens.
    """
    copied_bytes = rows * width * (2 * kv_size + 1) * _COPY_BYTES
    return score_rectangle_bytes(num_heads, rows, width) + copied_bytes


def native_arena_bytes(
    spec: ModelSpec,
    num_tokens: int,
    num_logits: int,
    partial_bytes: int,
    itemsize: int,
    quantization: Quantization = "none",
) -> int:
    """Return what the results of a step recorded as native operators take at once, at most.

    A result is there from the operator that writes it to the last that reads it. In a layer
    these are, beside cosine and sine of each token and the partial results of attention: the
    residual stream, its norm and the fused projection; then the stream, the projection and
    what was attended; what was attended and its projection; two streams, the projection and
    a norm; the stream, its norm, gate and up; the stream, gate, up and their product; the
    stream, that product and what the MLP adds. Behind the layers: a norm and the logits. A
    product of quantised weights keeps its inputs in 8 bits as well.

    Args:
        spec: Shape of the model.
        num_tokens: Of the step.
        num_logits: Rows whose logits are wanted.
        partial_bytes: What attention keeps from its first operator to its last.
        itemsize: Bytes of one number of the compute dtype.
        quantization: Of the weights.
    """
    hidden, inner = spec.hidden_size, spec.intermediate_size
    fused_size = spec.q_size + 2 * spec.kv_size

    def scratch(in_size: int) -> int:
        return scratch_bytes(quantization, in_size)

    layer_bytes = max(
        (2 * hidden + fused_size) * itemsize + scratch(hidden),
        (hidden + fused_size + spec.q_size) * itemsize,
        (2 * hidden + spec.q_size) * itemsize + scratch(spec.q_size),
        4 * hidden * itemsize,
        (2 * hidden + 2 * inner) * itemsize + scratch(hidden),
        (hidden + 3 * inner) * itemsize,
        (2 * hidden + inner) * itemsize + scratch(inner),
    )
    layer_bytes = partial_bytes + num_tokens * (2 * spec.head_dim * itemsize + layer_bytes)
    head_bytes = (hidden + spec.vocab_size) * itemsize + scratch(hidden)
    return max(layer_bytes, num_logits * head_bytes)
