"""Families on which other calculators are far off: bytes of KV and of weights, right to 1 %.

The right figures are worked out from the published shapes by hand; the formula is printed.
"""

import pytest

from nanoserve.capacity.kv_formulas import layer_formulas
from nanoserve.capacity.plan_choices import cached_shape
from nanoserve.capacity.plan_formulas import plan_formulas
from nanoserve.units import GIB
from tests.planner import planned

# Model, GPUs, bytes of a further token in bf16 on all layers of one rank, GiB of weights in all.
FAMILIES = [
    ("deepseek-v3", "8x h200", 61 * (512 + 64) * 2, 626.2),  # latents; fp8 with scales of 128x128
    ("falcon-7b", "h100", 32 * 1 * (64 + 64) * 2, 6_921_720_704 * 2 / GIB),  # one KV head
    ("gemma-3-27b", "h100", 10 * 16 * (128 + 128) * 2, 27_432_406_640 * 2 / GIB),  # 10 full layers
    ("qwen3-next", "2x h200", 12 * 2 * (256 + 256) * 2, 79_674_391_296 * 2 / GIB),  # 12 of 48
    ("gpt-oss-20b", "h100", 12 * 8 * (64 + 64) * 2, 12.8),  # 12 of 24; experts in MXFP4
    ("mixtral-8x7b", "2x h100", 32 * 8 * (128 + 128) * 2, 46_702_792_704 * 2 / GIB),
    # Chunks kept.
    ("llama-4-scout", "4x h100", 48 * 8 * (128 + 128) * 2, 108_641_793_536 * 2 / GIB),
    ("jamba", "2x h100", 4 * 8 * (128 + 128) * 2, 51_570_323_328 * 2 / GIB),  # 4 of 32
]


@pytest.mark.parametrize(("model", "gpus", "token_bytes", "weights_gib"), FAMILIES)
def test_kv_and_weights(model: str, gpus: str, token_bytes: int, weights_gib: float) -> None:
    """A further token of a long request, and all weights together."""
    plan = planned(model, gpus, tp=1, pp=1, num_gpus=1)
    for formula in layer_formulas(cached_shape(plan.query, plan.stage.shape), plan.choices.cache):
        print(f"{formula.name} = {formula.substituted} = {formula.value}")

    assert plan.kv_facts.token_bytes == pytest.approx(token_bytes, rel=0.01)
    assert plan.weight_bytes / GIB == pytest.approx(weights_gib, rel=0.01)


@pytest.mark.parametrize(
    ("model", "gpus", "longest", "request_gib"),
    [
        ("gemma-3-27b", "h100", 131_072, 14.23),  # 8,192 + 6 * 577 blocks of ten layers' pages
        ("deepseek-v3", "8x h200", 163_840, 163_840 * 70_272 / GIB),
        ("falcon-7b", "h100", 2048, 2048 * 8192 / GIB),
        ("gpt-oss-20b", "h100", 131_072, (8192 + 521) * 12 * 16 * 2048 / GIB),
    ],
)
def test_a_request_of_the_longest_length(
    model: str, gpus: str, longest: int, request_gib: float
) -> None:
    """What vLLM sets aside for one request, groups and padding included."""
    plan = planned(model, gpus, max_model_len=longest)
    for formula in plan_formulas(plan):
        if formula.unit == "blocks":
            print(f"{formula.name} = {formula.substituted} = {formula.value}")

    found = plan.stage.cost.request_bytes(longest) / GIB
    assert found == pytest.approx(request_gib, rel=0.01)


def test_falcon_serves_where_others_refuse() -> None:
    """With 71 KV heads of 64 a request of Falcon-7B would take 71 times as much."""
    plan = planned("falcon-7b", "rtx 4090")

    assert plan.fits
    assert plan.stage.cost.request_bytes(2048) == 16 * 2**20
