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
