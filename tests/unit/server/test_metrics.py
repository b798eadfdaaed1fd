"""The Prometheus page of a snapshot."""

from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from nanoserve.engine.stats import EngineStats, Gauges
from nanoserve.sched.step import FinishReason, StepExecution, StepMode, StepPlan
from nanoserve.server.metrics import render_metrics
from tests.builders import make_boot_info, make_limits


def _samples(page: bytes) -> list[Sample]:
    families = text_string_to_metric_families(page.decode())
    return [sample for family in families for sample in family.samples]


def _page() -> dict[tuple[str, str], float]:
    stats = EngineStats()
    stats.record_submitted("a", num_prompt_tokens=7, now_s=0.0)
    for now_s in (0.2, 0.3, 100.0):
        stats.record_token("a", num_cached_tokens=4, now_s=now_s)
    stats.record_finished("a", FinishReason.STOP, now_s=500.0)
    gauges = Gauges(num_running=2, num_waiting=3, num_blocks=8, num_used_blocks=2)
    page = render_metrics(stats.snapshot(gauges), 'quo"ted')
    return {
        (
            sample.name,
            sample.labels.get("le", sample.labels.get("finished_reason", "")),
        ): sample.value
        for sample in _samples(page)
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


def test_decode_steps_are_counted_by_mode() -> None:
    """Modes that have not run are 0; padding, evictions and the age of the step beside them."""
    stats = EngineStats()
    execution = StepExecution(StepMode.LATE, padded_rows=3, num_evicted=1)
    stats.record_step(StepPlan(0, ()), execution, now_s=2.0)
    seen = stats.snapshot(Gauges()).as_seen(4.5, num_incoming=0, num_rejected=0)

    samples = _samples(render_metrics(seen, "m"))

    values = {sample.name: sample.value for sample in samples}
    steps = {
        sample.labels["mode"]: sample.value
        for sample in samples
        if sample.name == "nanoserve:decode_steps_total"
    }
    assert steps == {"eager": 0, "bucketed": 0, "replayed": 0, "late": 1}
    assert values["nanoserve:num_steps_total"] == 1
    assert values["nanoserve:prefill_steps_total"] == 0
    assert values["nanoserve:padded_rows_total"] == 3
    assert values["nanoserve:graphs_evicted_total"] == 1
    assert values["nanoserve:last_step_age_seconds"] == 2.5


def test_age_is_absent_before_the_first_step() -> None:
    """There is no number for what has not happened."""
    assert ("nanoserve:last_step_age_seconds", "") not in _page()


def test_budget_lines_are_gauges() -> None:
    """Each line is planned, measured and the rest; what nobody measured is left out."""
    page = render_metrics(EngineStats().snapshot(Gauges()), "m", make_boot_info()["budget"])

    shown = {
        (sample.labels["part"], sample.labels["kind"]): sample.value
        for sample in _samples(page)
        if sample.name == "nanoserve:memory_bytes"
    }
    assert shown == {
        ("weights", "planned"): 300,
        ("weights", "measured"): 310,
        ("weights", "residual"): 10,
        ("unassigned", "planned"): 700,
    }


def test_the_page_says_what_the_engine_works_within() -> None:
    """Whoever sizes the pool by the page needs a block's tokens and the slots."""
    limits = make_limits(block_size=16, max_num_seqs=24)
    page = _samples(render_metrics(EngineStats().snapshot(Gauges()), "m", (), limits))
    values = {sample.name: sample.value for sample in page}

    assert values["nanoserve:block_size"] == 16
    assert values["nanoserve:max_num_seqs"] == 24
