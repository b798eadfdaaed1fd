"""What the largest step wants for a moment, estimated on paper.

Three phases of a forward pass make large temporaries: logits, attention scores and the
gated MLP. They never live at once, so a boot takes the largest.
"""

from dataclasses import dataclass

from nanoserve.spec.model_spec import ModelSpec


@dataclass(frozen=True, slots=True)
class StepShape:
    """The largest step a scheduler can produce.

    Attributes:
        num_tokens: Tokens of the step.
        num_logit_rows: Rows that go through the head.
        num_scores: Attention scores alive at once per head: queries times keys; 0 where
            attention is fused.
    """

    num_tokens: int
    num_logit_rows: int
    num_scores: int


@dataclass(frozen=True, slots=True)
class ActivationPlan:
    """Bytes of each phase's temporaries."""

    logits_bytes: int
    scores_bytes: int
    mlp_bytes: int

    @property
    def sum_bytes(self) -> int:
        """Upper bound: all phases as if they lived at once."""
        return self.logits_bytes + self.scores_bytes + self.mlp_bytes

    @property
    def peak_bytes(self) -> int:
        """The largest phase."""
        return max(self.logits_bytes, self.scores_bytes, self.mlp_bytes)


def plan_activations(
    spec: ModelSpec, shape: StepShape, itemsize: int, logits_itemsize: int
) -> ActivationPlan:
    """Estimate a step's temporaries.

    Logits: rows x vocabulary. Scores: heads x queries x keys. MLP: gate, up and their
    product, 3 x tokens x intermediate.

    Args:
        spec: Shape of the model.
        shape: The largest step.
        itemsize: Bytes of one activation.
        logits_itemsize: Bytes of one logit.
    """
    return ActivationPlan(
        logits_bytes=shape.num_logit_rows * spec.vocab_size * logits_itemsize,
        scores_bytes=spec.num_heads * shape.num_scores * itemsize,
        mlp_bytes=3 * shape.num_tokens * spec.intermediate_size * itemsize,
    )
