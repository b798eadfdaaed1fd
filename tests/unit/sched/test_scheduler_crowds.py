"""`scheduler` under load: whole workloads, step by step and to the end."""

from nanoserve.sched.admission import EngineLimits
from nanoserve.sched.sampling_params import SamplingParams
from nanoserve.sched.step import FinishReason
from tests.sched_driver import SchedDriver, expected_output


def test_sixteen_requests_finish_in_a_pool_that_fits_one() -> None:
    """Requests of maximal length take turns; each ends as if it had been alone."""
    limits = EngineLimits(
        num_blocks=16,
        block_size=4,
        max_num_seqs=16,
        max_num_batched_tokens=64,
        max_model_len=64,
        vocab_size=256,
    )
    driver = SchedDriver(limits)
    prompts = {f"r{index}": [index, *range(1, 9)] for index in range(16)}
    sampling = SamplingParams(max_tokens=None)
    for request_id, prompt in prompts.items():
        driver.add(request_id, prompt, sampling)

    driver.drain()

    assert driver.scheduler.num_preemptions > 0
    assert set(driver.reasons.values()) == {FinishReason.LENGTH}
    for request_id, prompt in prompts.items():
        assert driver.outputs[request_id] == expected_output(limits, prompt, sampling)[0]


def test_a_crowd_shares_its_prefix_in_a_small_pool() -> None:
    """64 requests with 200 common tokens finish right, and most of them skip the prefix."""
    limits = EngineLimits(
        num_blocks=40,
        block_size=16,
        max_num_seqs=8,
        max_num_batched_tokens=256,
        max_model_len=256,
        vocab_size=256,
    )
    driver = SchedDriver(limits)
    prefix = [index % 251 for index in range(200)]
    prompts = {f"r{index}": [*prefix, index, index + 1] for index in range(64)}
    sampling = SamplingParams(max_tokens=30)
    for request_id, prompt in prompts.items():
        driver.add(request_id, prompt, sampling)

    driver.drain()

    assert sum(num >= 192 for num in driver.num_cached.values()) >= 60
    for request_id, prompt in prompts.items():
        assert driver.outputs[request_id] == expected_output(limits, prompt, sampling)[0]


def test_the_reference_trace_is_one_prefill_and_63_decode_steps() -> None:
    """Ten requests with headroom run side by side and end from the shortest to the longest."""
    limits = EngineLimits(
        num_blocks=256,
        block_size=16,
        max_num_seqs=10,
        max_num_batched_tokens=1024,
        max_model_len=256,
        vocab_size=256,
    )
    driver = SchedDriver(limits)
    max_tokens = [4, 10, 16, 24, 30, 37, 44, 50, 57, 64]
    for index, num_output in enumerate(max_tokens):
        prompt = [index] * (71 + index if index < 9 else 85)
        driver.add(f"r{index}", prompt, SamplingParams(max_tokens=num_output))

    driver.drain()

    sizes = [plan.num_tokens for plan in driver.plans]
    assert sizes[0] == 760
    assert sizes[1:] == [sum(num > step for num in max_tokens) for step in range(1, 64)]
    assert list(driver.reasons) == [f"r{index}" for index in range(10)]
    assert driver.scheduler.num_preemptions == 0
