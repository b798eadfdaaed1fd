"""What the largest step wants for a moment, estimated on paper.

Three phases of a forward pass make large temporaries: attention, the gated MLP, and logits
with the draw. They never live at once, so a boot takes the largest, on top of what lives
through all of them. Where there is a device, a profile run measures and overrides this.
"""

from dataclasses import dataclass

from nanoserve.spec.model_spec import ModelSpec

SCORED_ROWS_AT_ONCE = 64  # rows whose log-probabilities are computed together
DRAWN_LOGIT_BYTES = 21  # of one logit at the worst of the draw
_SCORED_LOGIT_BYTES = 8  # of one logit that is scored: itself and its log-probability
_UNFUSED_SCORE_BYTES = 12  # of one attention score, with its softmax and the K and V repeated
_RESIDUAL_COPIES = 4  # layer input, with attention added, its norm, and what the MLP adds


@dataclass(frozen=True, slots=True)
class StepShape:
    """What a step materialises; 0 for what it does not, or for what nobody counts.

    Attributes:
        num_tokens: Tokens of the step.
        num_logit_rows: Rows that go through the head and are drawn from.
        num_scores: Attention scores alive at once per head, in activations: queries times
            keys times copies; 0 where attention is fused.
        num_scored_rows: Rows whose log-probabilities are computed at once.
        num_masked: Queries times keys of the additive masks; all heads share one.
        num_gathered: Tokens whose K and V are copied out of one layer's pool at once.
        num_residual_rows: Rows of the residual stream, and of the projections around
            attention.
    """

    num_tokens: int
    num_logit_rows: int
    num_scores: int
    num_scored_rows: int = 0
    num_masked: int = 0
    num_gathered: int = 0
    num_residual_rows: int = 0


@dataclass(frozen=True, slots=True)
class ActivationPlan:
    """Bytes of each phase's temporaries.

    Attributes:
        logits_bytes: Logits and the draw.
        scores_bytes: Attention scores.
        mlp_bytes: The gated MLP.
        projection_bytes: What attention holds beside its scores.
        masking_bytes: Booleans that masks are made of, gone before the first layer.
        resident_bytes: What lives through every phase.
    """

    logits_bytes: int
    scores_bytes: int
    mlp_bytes: int
    projection_bytes: int = 0
    masking_bytes: int = 0
    resident_bytes: int = 0

    @property
    def sum_bytes(self) -> int:
        """The plain upper bound: the three phases as if they lived at once."""
        return self.logits_bytes + self.scores_bytes + self.mlp_bytes

    @property
    def peak_bytes(self) -> int:
        """The largest phase, with what lives through all of them."""
        attention_bytes = self.scores_bytes + self.projection_bytes
        phases = (self.logits_bytes, attention_bytes, self.mlp_bytes, self.masking_bytes)
        return self.resident_bytes + max(phases)


def estimate_activation_bytes(
    spec: ModelSpec, shape: StepShape, itemsize: int, logits_itemsize: int
) -> ActivationPlan:
    """Estimate a step's temporaries, by what each line of the engine allocates.

    Logits: rows x vocabulary. Scores: heads x `num_scores`. MLP: gate, up and their
    product, 3 x tokens x intermediate. Beside the scores: q, k and v; q and k once more,
    rotated; K and V out of the pool. Throughout: the residual stream, what was attended,
    the rotary rows, the masks.

    Args:
        spec: Shape of the model.
        shape: The largest step.
        itemsize: Bytes of one activation.
        logits_itemsize: Bytes of one logit that is drawn from.
    """
    resident_size = _RESIDUAL_COPIES * spec.hidden_size + spec.q_size + 2 * spec.head_dim
    projected_size = 2 * spec.q_size + 3 * spec.kv_size
    flag_bytes = 1 if spec.sliding_window is None else 3
    scored_bytes = shape.num_scored_rows * _SCORED_LOGIT_BYTES
    return ActivationPlan(
        logits_bytes=spec.vocab_size * max(shape.num_logit_rows * logits_itemsize, scored_bytes),
        scores_bytes=spec.num_heads * shape.num_scores * itemsize,
        mlp_bytes=3 * shape.num_tokens * spec.intermediate_size * itemsize,
        projection_bytes=shape.num_residual_rows * projected_size * itemsize
        + 2 * shape.num_gathered * spec.kv_size * itemsize,
        masking_bytes=shape.num_masked * flag_bytes,
        resident_bytes=shape.num_residual_rows * resident_size * itemsize
        + shape.num_masked * itemsize,
    )


def largest_step(
    max_num_seqs: int, max_model_len: int, token_budget: int, itemsize: int, is_fused: bool
) -> StepShape:
    """Return the largest step our engine can make: decodes and a prefill chunk, all at full length.

    Prefill is chunked, so the token budget bounds a step. Logits are made of each request's
    last row alone, and of 64 rows at once for a prompt that is scored. The worst draw takes
    16.4 bytes a logit beside the logit's own 4: two rows of scratch that it keeps, one copy,
    and numpy's of a large top-k (measured with torch 2.13 at 32 rows of 49,152). A test
    measures whole steps against this on a CPU.

    Args:
        max_num_seqs: Requests that run at once.
        max_model_len: Longest request in tokens.
        token_budget: Most tokens of a step.
        itemsize: Bytes of one activation.
        is_fused: Whether attention under a mask never holds its scores. True of torch on a
            CPU. Elsewhere torch may fall back to plain products in float32, which took 11.1
            to 11.8 bytes a score where a CPU was made to use them (256 queries, 2,048 keys).
    """
    num_tokens = min(token_budget, max_num_seqs * max_model_len)
    num_masked = num_tokens * max_model_len
    return StepShape(
        num_tokens=num_tokens,
        num_logit_rows=max_num_seqs,
        num_scores=0 if is_fused else num_masked * _UNFUSED_SCORE_BYTES // itemsize,
        num_scored_rows=min(SCORED_ROWS_AT_ONCE, num_tokens),
        num_masked=num_masked,
        num_gathered=max_num_seqs * max_model_len,
        num_residual_rows=num_tokens,
    )
