"""`batch_front`: the application called in this process, many lines at once."""

import json
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from nanoserve.cli import batch_front
from nanoserve.cli.batch_front import LINES_PER_PLACE, answer_batch
from nanoserve.engine.async_bridge import AsyncEngine
from nanoserve.engine.interface import GenerationRequest
from nanoserve.engine.output_stream import OutputStream
from nanoserve.engine.reservation import Reservation
from nanoserve.launch.batch_answers import AnswerFile
from nanoserve.launch.batch_file import BatchLine
from nanoserve.sched.step import StepPlan, StepResult
from nanoserve.server.app import build_app
from tests.batch_process import fake_booted
from tests.builders import TIMEOUT_S, AsciiRunner, make_context, make_engine

NUM_IN_FLIGHT = LINES_PER_PLACE * 8


class WatchingRunner(AsciiRunner):
    """Notes the most requests that one step held; the first step waits for all in flight."""

    def __init__(self, all_submitted: threading.Event) -> None:
        super().__init__()
        self.most_at_once = 0
        self._all_submitted = all_submitted

    def execute(self, step: StepPlan) -> StepResult:
        assert self._all_submitted.wait(TIMEOUT_S)
        self.most_at_once = max(self.most_at_once, len(step.scheduled))
        return super().execute(step)


@pytest.mark.parametrize(
    ("url", "body"),
    [
        ("/v1/completions", {"prompt": ["a", "b"], "max_tokens": 4, "n": 2, "model": "fake"}),
        ("/v1/completions", {"prompt": "x" * 600}),
        ("/v1/completions", {"prompt": "a", "temperature": 1e999}),
        ("/v1/completions", {"prompt": "\ud800"}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "č🎉"}]}),
        ("/v1/chat/completions", {"messages": []}),
    ],
)
def test_an_answer_is_the_one_over_http(tmp_path: Path, url: str, body: dict[str, Any]) -> None:
    """Status and body are equal, but for the id and the time."""
    engine = make_engine()
    engine.start()
    with TestClient(build_app(make_context(engine))) as client:
        over_http = client.post(url, content=json.dumps(body).encode())
    engine.shutdown()
    path = tmp_path / "out.jsonl"
    with AnswerFile(path) as answers:
        lines = iter([BatchLine(1, "a", url, body)])
        answer_batch(fake_booted(AsciiRunner()), "fake", lines, answers, lambda: None)

    response = json.loads(path.read_text())["response"]

    assert response["status_code"] == over_http.status_code
    expected = over_http.json()
    for answer in (response["body"], expected):
        answer.pop("id", None)
        answer.pop("created", None)
    assert response["body"] == expected


def test_many_lines_are_in_flight_and_not_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The batch is full while there are lines, and lines are read as places become free."""
    all_submitted = threading.Event()
    num_submitted = 0

    class CountingEngine(AsyncEngine):
        def submit(
            self, requests: Sequence[GenerationRequest], places: Reservation | None = None
        ) -> OutputStream:
            nonlocal num_submitted
            stream = super().submit(requests, places)
            num_submitted += 1
            if num_submitted == NUM_IN_FLIGHT:
                all_submitted.set()
            return stream

    monkeypatch.setattr(batch_front, "AsyncEngine", CountingEngine)
    runner = WatchingRunner(all_submitted)
    num_read = num_answered = most_ahead = 0

    def read() -> Any:
        nonlocal num_read, most_ahead
        for number in range(100):
            num_read += 1
            most_ahead = max(most_ahead, num_read - num_answered)
            yield BatchLine(number, f"c{number}", "/v1/completions", {"prompt": "a"})

    def advance() -> None:
        nonlocal num_answered
        num_answered += 1

    with AnswerFile(tmp_path / "out.jsonl") as answers:
        statuses = answer_batch(fake_booted(runner), "fake", read(), answers, advance)

    assert statuses == {200: 100}
    assert num_answered == 100
    assert runner.most_at_once == 8
    assert most_ahead == NUM_IN_FLIGHT
