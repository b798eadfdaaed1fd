"""Pasted metrics and periodic log lines."""

from hypothesis import given
from hypothesis import strategies as st

from nanoserve.explain.serving_metrics import ServingMetrics, read_metrics

SCRAPE = """\
# HELP vllm:num_preemptions_total Cumulative number of preemption from the engine.
# TYPE vllm:num_preemptions_total counter
vllm:num_preemptions_total{engine="0",model_name="m"} 7.0
vllm:num_requests_running{engine="0",model_name="m"} 40.0
vllm:num_requests_waiting{engine="0",model_name="m"} 3.0
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.97
vllm:request_success_total{engine="0",finished_reason="stop",model_name="m"} 60.0
vllm:request_success_total{engine="0",finished_reason="length",model_name="m"} 10.0
vllm:cache_config_info{block_size="16",num_gpu_blocks="1000"} 1.0
process_cpu_seconds_total 12.5
"""


def test_one_scrape() -> None:
    """Counters are summed over their labels."""
    assert read_metrics(SCRAPE) == ServingMetrics(
        engine="vllm",
        num_preemptions=7,
        num_finished=70,
        num_running=40,
        num_waiting=3,
        pool_usage=0.97,
        pool_tokens=16_000,
    )


def test_two_scrapes_count_what_lies_between() -> None:
    """Pasted one after the other, counters are differences and gauges the last."""
    later = SCRAPE.replace("} 7.0", "} 12.0").replace("0.97", "0.5").replace("} 60.0", "} 100.0")
    metrics = read_metrics(SCRAPE + later)

    assert (metrics.num_preemptions, metrics.num_finished) == (5, 40)
    assert metrics.pool_usage == 0.5


def test_several_engines() -> None:
    """Requests add up; of pools, the fullest counts."""
    other = SCRAPE.replace('engine="0"', 'engine="1"').replace("0.97", "0.40")
    metrics = read_metrics(SCRAPE + other)

    assert metrics.num_running == 80
    assert metrics.pool_usage == 0.97


def test_sglangs_names() -> None:
    """Its names for the same things are read too."""
    metrics = read_metrics(
        'sglang:num_running_reqs{tp_rank="0"} 4.0\nsglang:num_queue_reqs{tp_rank="0"} 7.0\n'
        'sglang:token_usage{tp_rank="0"} 0.83\n'
    )

    assert metrics == ServingMetrics(engine="sglang", num_running=4, num_waiting=7, pool_usage=0.83)


def test_this_servers_names() -> None:
    """It exports vLLM's names under its own prefix."""
    metrics = read_metrics('nanoserve:num_requests_running{model_name="m"} 2\n')

    assert (metrics.engine, metrics.num_running) == ("nanoserve", 2)


def test_vllms_periodic_lines() -> None:
    """Of a log, the peak counts."""
    metrics = read_metrics(
        "INFO 06-10 [loggers.py:118] Engine 000: Running: 32 reqs, Waiting: 100 reqs, GPU KV cache "
        "usage: 61.2%, Prefix cache hit rate: 0.0%\n"
        "INFO 06-10 [loggers.py:118] Engine 000: Running: 1 reqs, Waiting: 0 reqs, GPU KV cache "
        "usage: 2.0%, Prefix cache hit rate: 0.0%\n"
    )

    assert (metrics.num_running, metrics.num_waiting) == (32, 100)
    assert metrics.pool_usage == 0.612


def test_sglangs_periodic_lines() -> None:
    """It retracts where vLLM preempts."""
    metrics = read_metrics(
        "Decode batch. #running-req: 12, #token: 3456, token usage: 0.99, #queue-req: 30\n"
        "KV cache pool is full. Retract requests. #retracted_reqs: 1\n" * 2
    )

    assert (metrics.engine, metrics.num_preemptions) == ("sglang", 2)
    assert metrics.pool_usage == 0.99


def test_nothing_is_nothing() -> None:
    """A text without figures has none."""
    assert read_metrics("hello") == ServingMetrics()
    assert read_metrics("").is_empty


@given(st.text(max_size=500) | st.text(alphabet='vlm:_{}="01. \nsgan', max_size=500))
def test_any_text_is_read(text: str) -> None:
    """No text makes reading fail, and no share leaves 0 to 1."""
    usage = read_metrics(f"vllm:num_{text}").pool_usage

    assert usage is None or 0 <= usage <= 1


def test_every_engine_and_version_says_the_same_load() -> None:
    """Forty requests run, three wait, 97 % is held, seven were sent back: by each one's names."""
    pages = {
        "vLLM 0.4": (
            'vllm:num_requests_running{model_name="m"} 40.0\n'
            'vllm:num_requests_swapped{model_name="m"} 1.0\n'
            'vllm:num_requests_waiting{model_name="m"} 2.0\n'
            'vllm:gpu_cache_usage_perc{model_name="m"} 0.97\n'
            'vllm:cpu_cache_usage_perc{model_name="m"} 0.0\n'
            'vllm:num_preemptions_total{model_name="m"} 7.0\n'
        ),
        "vLLM 0.33": (
            'vllm:num_requests_running{engine="0",model_name="m"} 40.0\n'
            'vllm:num_requests_waiting{engine="0",model_name="m"} 3.0\n'
            'vllm:num_requests_waiting_by_reason{engine="0",model_name="m",reason="capacity"} 3.0\n'
            'vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.97\n'
            'vllm:num_preemptions_total{engine="0",model_name="m"} 7.0\n'
            'vllm:num_preemptions_created{engine="0",model_name="m"} 1.7622e+09\n'
        ),
        "SGLang 0.5.4": (
            'sglang:num_running_reqs{tp_rank="0"} 40.0\nsglang:num_running_reqs{tp_rank="1"} 40.0\n'
            'sglang:num_queue_reqs{tp_rank="0"} 3.0\nsglang:token_usage{tp_rank="0"} 0.41\n'
            'sglang:swa_token_usage{tp_rank="0"} 0.97\nsglang:num_retracted_reqs{tp_rank="0"} 7.0\n'
        ),
        "SGLang 0.5.23": (
            'sglang:num_running_reqs{tp_rank="0"} 40.0\nsglang:num_queue_reqs{tp_rank="0"} 3.0\n'
            'sglang:token_usage{tp_rank="0"} 0.97\nsglang:num_retracted_reqs{tp_rank="0"} 2.0\n'
            'sglang:num_retracted_requests_total{tp_rank="0"} 7.0\n'
        ),
        "TensorRT-LLM 1.2": (
            'trtllm_num_requests_running{model_name="m"} 40.0\n'
            'trtllm_num_requests_waiting{model_name="m"} 3.0\n'
            'trtllm_kv_cache_utilization{model_name="m"} 0.97\n'
            'trtllm_num_paused_requests{model_name="m"} 7.0\n'
        ),
        "TensorRT-LLM in Triton": (
            'nv_trt_llm_request_metrics{model="m",request_type="active",version="1"} 40\n'
            'nv_trt_llm_request_metrics{model="m",request_type="waiting",version="1"} 3\n'
            'nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="fraction",model="m"} 0.97\n'
            "nv_trt_llm_inflight_batcher_metrics"
            '{inflight_batcher_specific_metric="paused_requests",model="m"} 7\n'
        ),
        "nanoserve": (
            'nanoserve:num_requests_running{model_name="m"} 40.0\n'
            'nanoserve:num_requests_waiting{model_name="m"} 3.0\n'
            'nanoserve:kv_cache_usage_perc{model_name="m"} 0.97\n'
            'nanoserve:num_preemptions_total{model_name="m"} 7.0\n'
        ),
    }
    for name, page in pages.items():
        metrics = read_metrics(page)
        found = (metrics.num_running, metrics.num_waiting, metrics.num_preemptions)

        assert (found, metrics.pool_usage) == ((40, 3, 7), 0.97), name


def test_llamacpps_names() -> None:
    """It has neither preemptions nor, in newer versions, the pool's usage."""
    old = read_metrics(
        "llamacpp:requests_processing 4\nllamacpp:requests_deferred 9\n"
        "llamacpp:kv_cache_usage_ratio 0.8\n"
    )
    new = read_metrics("llamacpp:requests_processing 4\nllamacpp:requests_deferred 9\n")

    assert (old.engine, old.num_running, old.num_waiting) == ("llama.cpp", 4, 9)
    assert (old.pool_usage, new.pool_usage) == (0.8, None)


def test_a_pool_counted_in_blocks() -> None:
    """Blocks times their tokens."""
    page = "trtllm_kv_cache_max_blocks 1000.0\ntrtllm_kv_cache_tokens_per_block 32.0\n"

    assert read_metrics(f"{page}trtllm_num_requests_running 1.0\n").pool_tokens == 32_000


def test_what_this_server_planned_for_nothing() -> None:
    """Its page says the pool's bytes and what is left of the device."""
    metrics = read_metrics(
        'nanoserve:memory_bytes{kind="planned",model_name="m",part="kv pool"} 3.7748736e+08\n'
        'nanoserve:memory_bytes{kind="measured",model_name="m",part="kv pool"} 3.9e+08\n'
        'nanoserve:memory_bytes{kind="planned",model_name="m",part="unassigned"} 2.0e+10\n'
        "nanoserve:num_requests_running 1.0\n"
    )

    assert (metrics.pool_bytes, metrics.spare_bytes) == (377_487_360, 20_000_000_000)


def test_a_page_quoted_in_an_answer() -> None:
    """Quote marks and table bars before a sample are no part of its name."""
    assert read_metrics(f"> {SCRAPE}".replace("\n", "\n> ")).num_running == 40


def test_the_first_versions_retract_in_other_words() -> None:
    """The lines count how many."""
    metrics = read_metrics(
        "Decode batch. #running-req: 12, #token: 3456, token usage: 0.99, #queue-req: 30\n"
        "Decode out of memory happened. #retracted_reqs: 3, #new_token_ratio: 0.62 -> 0.91\n"
    )

    assert metrics.num_preemptions == 3


def test_lengths_are_of_the_whole_time() -> None:
    """Between two looks none may have finished; those that run count half of their answer."""
    page = (
        "nanoserve:num_requests_running 10\nnanoserve:request_success_total 5\n"
        "nanoserve:prompt_tokens_total 480\nnanoserve:generation_tokens_total 960\n"
    )
    metrics = read_metrics(page * 2)

    assert metrics.num_finished == 0
    assert (metrics.mean_prompt, metrics.mean_answer) == (32, 96)
    assert read_metrics(page.replace("success_total 5", "success_total 0")).mean_prompt is None
