"""Signals, the engine's death, and what clients see of them."""

import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from subprocess import PIPE, Popen
from typing import Any

import httpx
import pytest

from nanoserve.server.serve import ONE_SIGNAL_S
from tests.builders import (
    TIMEOUT_S,
    FailingRunner,
    GatedRunner,
    expected_text,
    make_engine,
    make_limits,
)
from tests.socket.conftest import Served

Serve = Callable[..., Served]
ROOT = Path(__file__).resolve().parents[2]
STREAM = {"prompt": "hello", "max_tokens": 200, "stream": True}


@contextmanager
def process(
    fail_at: int = -1,
    drain_seconds: float = 600.0,
    held_call: int = -1,
    signal_gap_s: float = ONE_SIGNAL_S,
    launcher: tuple[str, ...] = (),
) -> Iterator[tuple[Any, httpx.Client]]:
    """Run `served_main`; yield the process and a client that it answers."""
    arguments = map(str, (fail_at, drain_seconds, held_call, signal_gap_s))
    command = [*launcher, sys.executable, "-m", "tests.socket.served_main", *arguments]
    environment = os.environ | {"PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"}
    with Popen(command, cwd=ROOT, env=environment, stdin=PIPE, stdout=PIPE, stderr=PIPE) as child:
        try:
            assert child.stdout is not None
            port = int(child.stdout.readline())
            url = f"http://127.0.0.1:{port}"
            with httpx.Client(base_url=url, timeout=TIMEOUT_S) as client:
                assert client.get("/health").status_code == 200
                yield child, client
        finally:
            child.kill()


def release(child: Any) -> None:
    """Let the step go on that is held, where the process has not ended without it."""
    with suppress(BrokenPipeError):
        os.write(child.stdin.fileno(), b"\n")


def health_of_drain(client: httpx.Client) -> httpx.Response:
    """Return what /health says once the signal has arrived."""
    deadline_s = time.monotonic() + TIMEOUT_S
    while (health := client.get("/health")).status_code == 200:
        assert time.monotonic() < deadline_s, "the signal changed nothing"
    return health


def text_of(frames: list[str]) -> str:
    chunks = [json.loads(frame.removeprefix("data: ")) for frame in frames]
    return "".join(chunk["choices"][0]["text"] for chunk in chunks)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_drains_running_streams(number: signal.Signals) -> None:
    """/health is 503 and new calls are refused at once; the stream ends whole; exit 0."""
    with process(held_call=20) as (child, client):
        with client.stream("POST", "/v1/completions", json=STREAM) as response:
            lines = (line for line in response.iter_lines() if line)
            frames = [next(lines)]
            child.send_signal(number)
            health = health_of_drain(client)
            refused = client.post("/v1/completions", json={"prompt": "x"})
            release(child)  # the stream waits in its midst till now
            frames += lines
        exit_code = child.wait(TIMEOUT_S)

    assert health.status_code == 503
    assert health.json()["status"] == "draining"
    assert refused.status_code == 503
    assert refused.json()["error"]["type"] == "server_error"
    assert frames.pop() == "data: [DONE]"
    assert text_of(frames) == expected_text("hello", 200)
    assert exit_code == 0


def test_a_server_outlives_a_terminal_it_is_told_to() -> None:
    """What nohup ignores stays ignored while it serves."""
    with process(launcher=("nohup",)) as (child, _):
        status = Path(f"/proc/{child.pid}/status").read_text()

    ignored = int(status.partition("SigIgn:")[2].split()[0], 16)
    assert ignored & (1 << (signal.SIGHUP - 1))


def test_a_signal_that_comes_twice_is_one() -> None:
    """Sent to a group and passed on by make, it drains as one does; exit 0."""
    gap_s = ONE_SIGNAL_S / 4  # three of them are within the time of one
    with process(held_call=20, signal_gap_s=gap_s) as (child, client):
        with client.stream("POST", "/v1/completions", json=STREAM) as response:
            lines = (line for line in response.iter_lines() if line)
            frames = [next(lines)]
            for number in (signal.SIGTERM, signal.SIGINT):  # two alike may be delivered as one
                child.send_signal(number)
            health_of_drain(client)
            child.stdin.write(b"\n")
            child.stdin.flush()
            frames += lines
        exit_code = child.wait(TIMEOUT_S)
        log = child.stderr.read().decode()

    assert frames.pop() == "data: [DONE]"
    assert text_of(frames) == expected_text("hello", 200)
    assert log.count("Draining for at most") == 1
    assert "Second signal" not in log
    assert exit_code == 0


def test_end_of_the_drain_cuts_with_an_error_frame() -> None:
    """A stream that outlasts the drain ends with an error and no [DONE]; exit 0."""
    with process(drain_seconds=0.1, held_call=20) as (child, client):
        with client.stream("POST", "/v1/completions", json=STREAM) as response:
            lines = (line for line in response.iter_lines() if line)
            next(lines)
            child.send_signal(signal.SIGINT)
            last = list(lines)[-1]
        release(child)
        exit_code = child.wait(TIMEOUT_S)

    assert "shutting down" in json.loads(last.removeprefix("data: "))["error"]["message"]
    assert exit_code == 0


def test_second_signal_ends_now() -> None:
    """Not even a long drain keeps the process; exit 0, and no traceback is printed."""
    with (
        process(held_call=20) as (child, client),
        client.stream("POST", "/v1/completions", json=STREAM) as response,
    ):
        lines = response.iter_lines()
        frames = [next(lines)]
        child.send_signal(signal.SIGTERM)
        health_of_drain(client)
        child.send_signal(signal.SIGTERM)
        with suppress(httpx.TransportError):  # cut in the midst of it
            frames += lines
        release(child)
        exit_code = child.wait(TIMEOUT_S)
        log = child.stderr.read().decode()

    assert exit_code == 0
    assert "data: [DONE]" not in frames  # it did not wait for the stream
    assert "Second signal" in log
    assert "Traceback" not in log


def test_dead_engine_ends_the_process() -> None:
    """The waiting stream gets an error frame, and the exit code is not 0."""
    with process(fail_at=20) as (child, client):
        with client.stream("POST", "/v1/completions", json=STREAM) as response:
            last = [line for line in response.iter_lines() if line][-1]
        exit_code = child.wait(TIMEOUT_S)

    assert "device lost" in json.loads(last.removeprefix("data: "))["error"]["message"]
    assert exit_code == 1


def test_death_in_flight_is_an_error_for_everyone(serve_in_thread: Serve) -> None:
    """Unary calls get 500, streams an error frame, /health and new calls 503."""
    runner = FailingRunner({4: RuntimeError("device lost")})
    served = serve_in_thread(make_engine(runner, make_limits(max_num_seqs=2)))

    def one(is_stream: bool) -> httpx.Response:
        return served.http.post("/v1/completions", json=STREAM | {"stream": is_stream})

    with ThreadPoolExecutor(8) as pool:
        responses = list(pool.map(one, [True, False] * 4))

    for response in responses:
        cut_after_start = response.status_code == 200
        last = [line for line in response.text.splitlines() if line][-1]
        error = json.loads(last.removeprefix("data: "))["error"]
        assert cut_after_start or response.status_code in (500, 503)
        assert "device lost" in error["message"]
    assert served.http.get("/health").status_code == 503
    assert served.http.get("/health").json()["status"] == "dead"
    assert served.http.post("/v1/completions", json={"prompt": "x"}).status_code == 503


def test_error_before_the_first_token_has_a_status(serve_in_thread: Serve) -> None:
    """A stream whose request fails at once is a 500 with JSON, not a 200."""
    served = serve_in_thread(make_engine(FailingRunner({0: MemoryError("no")})))

    response = served.http.post("/v1/completions", json=STREAM)

    assert response.status_code == 500
    assert "memory" in response.json()["error"]["message"]
    assert served.http.post("/v1/completions", json={"prompt": "x"}).status_code == 200


def test_health_answers_while_a_step_hangs(serve_in_thread: Serve) -> None:
    """/health, /metrics and /v1/models do not wait for the engine's thread."""
    runner = GatedRunner()
    served = serve_in_thread(make_engine(runner))
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(served.http.post, "/v1/completions", json={"prompt": "x"})
        assert runner.arrived.wait(TIMEOUT_S)

        statuses = [served.http.get(path).status_code for path in ("/health", "/metrics")]
        runner.open()
        assert waiting.result(TIMEOUT_S).status_code == 200

    assert statuses == [200, 200]
