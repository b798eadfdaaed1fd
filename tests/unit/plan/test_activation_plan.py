"""Temporaries of a step. What a real step allocates: tests/reference/test_activation_estimate.py."""

from dataclasses import replace

from nanoserve.plan.activation_plan import (
    DRAWN_LOGIT_BYTES,
    StepShape,
    estimate_activation_bytes,
    largest_step,
)
from tests.plan_cases import LLAMA_32_1B, SMOLLM2


def test_peak_is_the_largest_phase() -> None:
    """Phases never live at once: the peak is the largest of them, not their sum."""
    plan = estimate_activation_bytes(LLAMA_32_1B, StepShape(512, 8, 0), 2, 4)

    assert plan.peak_bytes == plan.mlp_bytes
    assert plan.sum_bytes == plan.mlp_bytes + plan.logits_bytes


def test_what_lives_throughout_comes_on_top() -> None:
    """The residual stream and the masks are under every phase."""
    step = largest_step(16, 2048, 512, 4, is_fused=True)
    plan = estimate_activation_bytes(SMOLLM2, step, 4, DRAWN_LOGIT_BYTES)

    assert plan.resident_bytes == 512 * (4 * 576 + 2 * 64) * 4 + 512 * 2048 * 4
    assert plan.peak_bytes == plan.resident_bytes + plan.projection_bytes
    assert plan.projection_bytes > plan.mlp_bytes


def test_unfused_attention_holds_float32_scores() -> None:
    """Where scores are materialised they are float32 whatever the dtype, three times over."""
    fused = largest_step(8, 2048, 512, 2, is_fused=True)
    unfused = largest_step(8, 2048, 512, 2, is_fused=False)
    plan = estimate_activation_bytes(SMOLLM2, unfused, 2, DRAWN_LOGIT_BYTES)

    assert fused.num_scores == 0
    assert plan.scores_bytes == 9 * 512 * 2048 * 12


def test_short_requests_bound_the_step() -> None:
    """A step has no more tokens than all requests together."""
    step = largest_step(2, 16, 512, 4, is_fused=True)

    assert (step.num_tokens, step.num_scored_rows) == (32, 32)


def test_scored_prompts_count_at_few_slots() -> None:
    """64 scored rows outweigh the draw of a few requests, and not of many."""
    few = largest_step(1, 2048, 512, 4, is_fused=True)
    many = largest_step(64, 2048, 512, 4, is_fused=True)

    def logits_bytes(step: StepShape) -> int:
        return estimate_activation_bytes(SMOLLM2, step, 4, DRAWN_LOGIT_BYTES).logits_bytes

    assert logits_bytes(few) == SMOLLM2.vocab_size * 64 * 12
    assert logits_bytes(many) == SMOLLM2.vocab_size * 64 * DRAWN_LOGIT_BYTES


def test_masks_of_long_contexts_are_a_phase() -> None:
    """Booleans outgrow the MLP at long contexts; a sliding window compares twice."""
    step = largest_step(1, 2**17, 512, 2, is_fused=True)
    plain = estimate_activation_bytes(SMOLLM2, step, 2, DRAWN_LOGIT_BYTES)
    windowed = estimate_activation_bytes(
        replace(SMOLLM2, sliding_window=1024), step, 2, DRAWN_LOGIT_BYTES
    )

    assert plain.masking_bytes == 512 * 2**17
    assert windowed.masking_bytes == 3 * plain.masking_bytes
    assert windowed.peak_bytes == windowed.resident_bytes + windowed.masking_bytes
