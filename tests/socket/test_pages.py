"""Metrics, models, version and the OpenAPI document."""

from collections.abc import Callable

from prometheus_client.parser import text_string_to_metric_families

from tests.builders import make_engine, make_limits
from tests.socket.conftest import Served

Serve = Callable[..., Served]


def samples(served: Served) -> dict[str, float]:
    """Return the values of /metrics by name, those of one name added up but for buckets."""
    values: dict[str, float] = {}
    for family in text_string_to_metric_families(served.http.get("/metrics").text):
        for sample in family.samples:
            key = sample.name + sample.labels.get("le", "")
            values[key] = values.get(key, 0.0) + sample.value
    return values


def test_metrics_add_up(serve_in_thread: Serve) -> None:
    """Counts agree with the answers: requests, tokens, TTFT and e2e once each."""
    served = serve_in_thread(make_engine(limits=make_limits(num_blocks=16, max_model_len=64)))
    usages = [
        served.http.post(
            "/v1/completions", json={"prompt": f"prompt {i}", "max_tokens": 40, "n": 4}
        ).json()["usage"]
        for i in range(5)
    ]

    found = samples(served)

    assert found["nanoserve:request_success_total"] == 20
    assert found["nanoserve:generation_tokens_total"] == sum(
        usage["completion_tokens"] for usage in usages
    )
    assert found["nanoserve:num_preemptions_total"] > 0
    for name in ("time_to_first_token_seconds", "e2e_request_latency_seconds"):
        assert found[f"nanoserve:{name}_count"] == 20
        assert found[f"nanoserve:{name}_bucket+Inf"] == 20
    assert found["nanoserve:num_requests_running"] == 0
    assert found["nanoserve:num_requests_waiting"] == 0
    assert found["nanoserve:kv_cache_usage_perc"] == 0


def test_models_and_version(serve_in_thread: Serve) -> None:
    """The model's card says how long a request may be."""
    served = serve_in_thread()

    card = served.http.get("/v1/models").json()["data"][0]

    assert (card["id"], card["max_model_len"]) == ("fake", 512)
    assert served.http.get("/v1/models/fake").json() == card
    assert served.http.get("/version").json() == {"version": "0.0"}


def test_openapi_document_has_the_request_schemas(serve_in_thread: Serve) -> None:
    """Every reference in the document leads somewhere."""
    served = serve_in_thread()

    document = served.http.get("/openapi.json")

    schemas = document.json()["components"]["schemas"]
    assert "temperature" in schemas["CompletionRequest"]["properties"]
    references = document.text.split('"$ref":"#/components/schemas/')[1:]
    assert references
    assert {reference.partition('"')[0] for reference in references} <= set(schemas)
