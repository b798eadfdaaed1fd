"""/metrics under load, read by Prometheus' own parser for Python."""

import json
import math
import threading
import urllib.request
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

NUM_REQUESTS = 24
NUM_CLIENTS = 6

Page = dict[str, Any]  # family name to Metric
Values = dict[tuple[Any, ...], float]


def scrape(url: str) -> Page:
    with urllib.request.urlopen(f"{url}/metrics") as response:
        assert response.headers["content-type"].startswith("text/plain; version=")
        text = response.read().decode()
    families = list(text_string_to_metric_families(text))
    names = [family.name for family in families]
    assert len(names) == len(set(names)), "each family once"
    return {family.name: family for family in families}


def generate(url: str, number: int) -> None:
    body: dict[str, Any] = {"prompt": f"Number {number} is", "max_tokens": 8 + number % 9}
    body["stream"] = bool(number % 2)
    headers = {"content-type": "application/json"}
    request = urllib.request.Request(f"{url}/v1/completions", json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request) as response:
        response.read()


def counted(page: Page) -> Values:
    """Return every sample that may only grow, by name and labels."""
    return {
        (sample.name, *sorted(sample.labels.items())): sample.value
        for family in page.values()
        if family.type in ("counter", "histogram")
        for sample in family.samples
        if not sample.name.endswith("_created")
    }


def pages_under_load(url: str) -> list[Page]:
    pages = [scrape(url)]
    is_done = threading.Event()

    def watch() -> None:
        while not is_done.wait(0.05):
            pages.append(scrape(url))

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        with ThreadPoolExecutor(NUM_CLIENTS) as clients:
            list(clients.map(lambda number: generate(url, number), range(NUM_REQUESTS)))
    finally:
        is_done.set()
        watcher.join()
    pages.append(scrape(url))
    return pages


def check_histogram(family: Any) -> None:
    """Buckets are cumulative, and the last one is the count."""
    buckets: dict[tuple[Any, ...], list[tuple[float, float]]] = defaultdict(list)
    counts: dict[tuple[Any, ...], float] = {}
    for sample in family.samples:
        labels = dict(sample.labels)
        bound = labels.pop("le", None)
        if bound is not None:
            buckets[tuple(labels.items())].append((float(bound), sample.value))
        elif sample.name.endswith("_count"):
            counts[tuple(labels.items())] = sample.value
    for labels_key, found in buckets.items():
        assert found == sorted(found)
        assert [value for _, value in found] == sorted(value for _, value in found)
        assert found[-1] == (math.inf, counts[labels_key])


def test_metrics_under_load(url: str, record_property: Any) -> None:
    """Pages parse, counters never fall, histograms add up, and every request is counted."""
    pages = pages_under_load(url)

    record_property("note", f"{len(pages)} pages of {len(pages[0])} families")
    before = counted(pages[0])
    for page in pages:
        after = counted(page)
        assert before.keys() <= after.keys()
        assert [key for key in before if after[key] < before[key]] == []
        for family in page.values():
            assert family.documentation
            assert all(math.isfinite(sample.value) for sample in family.samples)
            if family.type == "histogram":
                check_histogram(family)
        before = after
    first, last = counted(pages[0]), counted(pages[-1])
    ended = [key for key in last if key[0] == "nanoserve:request_success_total"]
    assert sum(last[key] - first[key] for key in ended) == NUM_REQUESTS
    for kind in ("time_to_first_token", "e2e_request_latency"):
        (key,) = [key for key in last if key[0] == f"nanoserve:{kind}_seconds_count"]
        assert last[key] - first[key] == NUM_REQUESTS
