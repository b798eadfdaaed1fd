"""The Prometheus page of a snapshot."""

from prometheus_client.parser import text_string_to_metric_families

from nanoserve.engine.stats import EngineStats, Gauges
from nanoserve.sched.step import FinishReason
from nanoserve.server.metrics import render_metrics


def _page() -> dict[tuple[str, str], float]:
    stats = EngineStats()
    stats.record_submitted("a", num_prompt_tokens=7, now_s=0.0)
    for now_s in (0.2, 0.3, 100.0):
        stats.record_token("a", num_cached_tokens=4, now_s=now_s)
    stats.record_finished("a", FinishReason.STOP, now_s=500.0)
    gauges = Gauges(num_running=2, num_waiting=3, num_blocks=8, num_used_blocks=2)
    page = render_metrics(stats.snapshot(gauges), 'quo"ted').decode()
    return {
        (
            sample.name,
            sample.labels.get("le", sample.labels.get("finished_reason", "")),
        ): sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
    }


def test_page_has_vllms_names() -> None:
    """Gauges, counters and histograms carry their values."""
    page = _page()

    expected = {
        "num_requests_running": 2,
        "num_requests_waiting": 3,
        "kv_cache_usage_perc": 0.25,
        "prompt_tokens_total": 7,
        "generation_tokens_total": 3,
        "prefix_cache_queries_total": 7,
        "prefix_cache_hits_total": 4,
        "num_preemptions_total": 0,
        "time_to_first_token_seconds_count": 1,
        "inter_token_latency_seconds_count": 2,
        "e2e_request_latency_seconds_sum": 500,
    }
    assert {name: page[f"nanoserve:{name}", ""] for name in expected} == expected


def test_every_reason_is_shown() -> None:
    """Reasons that have not happened are 0, so that rates can be taken."""
    page = _page()

    shown = {
        reason: page["nanoserve:request_success_total", reason.value] for reason in FinishReason
    }
    assert shown == dict.fromkeys(FinishReason, 0) | {FinishReason.STOP: 1}


def test_buckets_are_cumulative() -> None:
    """Each bucket holds the ones below it, and +Inf is the count."""
    page = _page()
    name = "nanoserve:inter_token_latency_seconds_bucket"

    assert page[name, "0.075"] == 0
    assert page[name, "0.15"] == 1
    assert page[name, "10.0"] == 1
    assert page[name, "+Inf"] == 2
