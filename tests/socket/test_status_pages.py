"""/health and /memory: what the loop has done and where the bytes are, while it serves."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from nanoserve.plan.memory_budget import MemoryReading
from nanoserve.sched.step import StepExecution, StepMode
from tests.builders import (
    TIMEOUT_S,
    AsciiRunner,
    GatedRunner,
    counter,
    make_boot_info,
    make_engine,
    wait_for,
)
from tests.socket.conftest import Served

Serve = Callable[..., Served]
LATE = StepExecution(StepMode.LATE, padded_rows=1)
REPLAYED = StepExecution(StepMode.REPLAYED)


def complete(served: Served, prompt: str, max_tokens: int) -> None:
    """Have one answer: a prefill step for its first token, a decode step for each other."""
    body = {"prompt": prompt, "max_tokens": max_tokens}
    assert served.http.post("/v1/completions", json=body).status_code == 200


def test_late_captures_degrade_until_replays_dominate(serve_in_thread: Serve) -> None:
    """The server answers on with 200, says why it is slow, and is well again in time."""
    runner = AsciiRunner()
    served = serve_in_thread(make_engine(runner, expects_replays=True))
    runner.execution = LATE
    complete(served, "hello", max_tokens=5)
    degraded = served.http.get("/health")
    runner.execution = REPLAYED
    complete(served, "other", max_tokens=450)
    well = served.http.get("/health")

    assert (degraded.status_code, well.status_code) == (200, 200)
    assert degraded.json()["status"] == "degraded"
    assert "4 of the last 4 decode steps were not replayed" in degraded.json()["detail"]
    assert "error" not in degraded.json()
    assert (well.json()["status"], well.json()["detail"]) == ("ok", "")
    steps = well.json()["loop"]["steps"]
    assert steps["decode"] == {"eager": 0, "bucketed": 0, "replayed": 449, "late": 4}
    assert (steps["total"], steps["prefill"]) == (455, 2)


def test_eager_steps_are_well_without_capture(serve_in_thread: Serve) -> None:
    """Where nobody asked for graphs, nothing is missed."""
    served = serve_in_thread()
    complete(served, "hello", max_tokens=5)

    body = served.http.get("/health").json()

    assert (body["status"], body["boot"]) == ("ok", None)
    assert body["loop"]["steps"]["decode"]["eager"] == 4
    assert body["loop"]["blocks"]["total"] == 512


def test_stalled_engine_is_503_with_the_whole_body(serve_in_thread: Serve) -> None:
    """Whoever looks why sees boot and loop, and the envelope of every error."""
    now, runner = [0.0], GatedRunner()
    engine = make_engine(runner, clock=counter(now), stall_after_s=60.0)
    served = serve_in_thread(engine, boot_info=make_boot_info())
    with ThreadPoolExecutor(1) as pool:
        body = {"prompt": "x", "max_tokens": 2}
        waiting = pool.submit(served.http.post, "/v1/completions", json=body)
        runner.gate.release()
        wait_for(engine, lambda: engine.stats().steps.num_steps == 1)
        now[0] = 61.0
        response = served.http.get("/health")
        runner.open()
        assert waiting.result(TIMEOUT_S).status_code == 200

    stalled = response.json()
    assert response.status_code == 503
    assert (stalled["status"], stalled["error"]["code"]) == ("stalled", "stalled")
    assert stalled["boot"] == make_boot_info()
    assert (stalled["loop"]["running"], stalled["loop"]["last_step_age_s"]) == (1, 61.0)


def test_memory_asks_the_device(serve_in_thread: Serve) -> None:
    """Each call has the boot's budget and a fresh reading."""
    free_bytes = iter((200, 150))
    served = serve_in_thread(
        boot_info=make_boot_info(),
        read_memory=lambda: MemoryReading(1000, next(free_bytes), own_bytes=700),
    )

    first, second = (served.http.get("/memory").json() for _ in range(2))

    assert (first["now"]["free_bytes"], second["now"]["free_bytes"]) == (200, 150)
    assert (first["now"]["own_bytes"], first["now"]["other_processes_bytes"]) == (700, 100)
    assert (first["device"], first["total_bytes"]) == ("a card", 1000)
    assert [line["name"] for line in first["budget"]] == ["weights", "unassigned"]
    assert first["kv_pool"]["num_blocks"] == 512


def test_memory_without_a_device_to_ask(serve_in_thread: Serve) -> None:
    """There is a page, and what is not known is null."""
    served = serve_in_thread()

    response = served.http.get("/memory")

    assert response.status_code == 200
    assert (response.json()["now"], response.json()["budget"]) == (None, [])


def test_metrics_show_the_budget(serve_in_thread: Serve) -> None:
    """The gauges come from the same payload as /memory."""
    served = serve_in_thread(boot_info=make_boot_info())

    page = served.http.get("/metrics").text

    assert 'memory_bytes{kind="residual",model_name="fake",part="weights"} 10.0' in page
