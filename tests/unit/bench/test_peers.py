"""Peers' processes and their thin servers, with the client that measures them."""

import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from time import monotonic

import pytest
from bench.peers import peers as peers_module
from bench.peers import thin_http
from bench.peers.measure import LONG_SHAPE, RATES_SHAPE, START_PROMPT, Measurement, rate_groups
from bench.peers.peers import all_peers, default_names
from bench.peers.server_process import (
    ServerFailedError,
    ServerProcess,
    StartFailedError,
    free_port,
    machine_cpu_s,
)

from nanoserve.bench.serve_bench_options import ServeBenchOptions
from nanoserve.bench.serve_report import ServeReport
from nanoserve.bench.servebench import run_bench
from tests.unit.bench.thin_peer import command_of, peer_of, unused_port

TIMEOUT_S = 100.0
HANGING = """
import asyncio, sys
sys.path.insert(0, sys.argv[1])
from thin_http import listen

async def accept(answer):
    await asyncio.Event().wait()

async def main():
    await listen(int(sys.argv[2]), "hanging", accept)
    await asyncio.Event().wait()

asyncio.run(main())
"""
BUSY = """
import os, subprocess, sys
while True:
    subprocess.run([sys.executable, "-S", "-c", ""])
    os.write(1, b".")
"""
NUM_CHILDREN = 10  # take a tenth of a second of processor time, and a tick is a hundredth
FORKING = """
import signal, subprocess, sys
child = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True); signal.pause()"
subprocess.Popen([sys.executable, "-c", child], stdout=subprocess.PIPE).stdout.readline()
print("forked", flush=True)
signal.pause()
"""


@pytest.fixture
def port() -> Iterator[int]:
    """Yield a port that nothing listens on."""
    with unused_port() as port:
        yield port


@pytest.fixture(autouse=True)
def in_company(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take every load once, whatever else runs on this machine."""
    monkeypatch.setattr("bench.peers.measure._QUIET_FRACTION", 1e9)


def test_a_server_is_started_weighed_and_stopped(port: int, tmp_path: Path) -> None:
    """The client of `bench serve` understands a thin server; time and memory are its own."""
    server = ServerProcess(command_of(port), {}, port, tmp_path / "log")
    try:
        assert 0 < server.wait_for_token(START_PROMPT, TIMEOUT_S) < TIMEOUT_S
        options = ServeBenchOptions(url=server.url, num_requests=3, output_tokens="5")
        assert run_bench(options).figures()["output_tokens"] == 15
        assert 2**20 < server.peak_rss_bytes() < 2**30
        assert 0 < server.cpu_s() < machine_cpu_s()
        assert server.is_answering(START_PROMPT)
    finally:
        server.stop()

    assert server.peak_rss_bytes() == 0


def test_a_server_that_does_not_start_says_what_its_log_says(port: int, tmp_path: Path) -> None:
    """Rather than waiting for the time to run out."""
    command = [sys.executable, "-c", "raise SystemExit('no such model')"]
    server = ServerProcess(command, {}, port, tmp_path / "log")

    with pytest.raises(StartFailedError, match="no such model"):
        server.wait_for_token(START_PROMPT, TIMEOUT_S)


def test_rates_are_measured_at_each_level(port: int, tmp_path: Path) -> None:
    """Each with what other processes took meanwhile."""
    figures: dict[str, dict[str, float]] = {}
    server = ServerProcess(command_of(port), {}, port, tmp_path / "log")
    try:
        server.wait_for_token(START_PROMPT, TIMEOUT_S)
        Measurement(peer_of(), server, 1, figures, lambda _: None).rates([1, 2])
    finally:
        server.stop()

    assert figures["c=1"]["output_tokens_per_s"] > 0
    assert figures["c=2"]["num_ended_early"] == 0
    assert figures["c=2"]["others_cpu_fraction"] >= 0
    assert set(figures) == set(rate_groups([1, 2]))


def wait_until_listening(port: int) -> None:
    started_s = monotonic()
    while monotonic() - started_s < TIMEOUT_S:
        with socket.socket() as connection:
            if connection.connect_ex(("127.0.0.1", port)) == 0:
                return
    pytest.fail("nothing listens")


def test_a_server_that_hangs_does_not_answer(port: int, tmp_path: Path) -> None:
    """It is there and lists its model, but no token comes."""
    command = [sys.executable, "-c", HANGING, str(Path(thin_http.__file__).parent), str(port)]
    server = ServerProcess(command, {}, port, tmp_path / "log")
    try:
        wait_until_listening(port)
        with pytest.raises(StartFailedError, match="no token within 3 s"):
            server.wait_for_token(START_PROMPT, 3.0)
    finally:
        server.stop()


def test_children_that_outlive_a_server_are_stopped_too(port: int, tmp_path: Path) -> None:
    """Else they would take processor time from the peer after it."""
    log = tmp_path / "log"
    server = ServerProcess([sys.executable, "-c", FORKING], {}, port, log)
    started_s = monotonic()
    while "forked" not in server.end_of_log() and monotonic() - started_s < TIMEOUT_S:
        pass
    assert server.peak_rss_bytes() > 0

    server.stop()

    assert server.peak_rss_bytes() == 0


def test_a_busy_server_is_told_from_an_idle_one(
    port: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What children that have ended took is counted with it, however little a full machine lets."""
    log = tmp_path / "log"
    server = ServerProcess([sys.executable, "-c", BUSY], {}, port, log)

    def until_children_ended(_: float) -> None:
        """Wait, in place of a time, until the server has done what takes some ticks."""
        end_bytes, started_s = log.stat().st_size + NUM_CHILDREN, monotonic()
        while log.stat().st_size < end_bytes and monotonic() - started_s < TIMEOUT_S:
            pass

    try:
        with monkeypatch.context() as patch:
            patch.setattr("bench.peers.server_process._IDLE_FRACTION", 0.0)
            patch.setattr("time.sleep", until_children_ended)
            assert not server.is_idle_within(1.0)
    finally:
        server.stop()
    idle = ServerProcess([sys.executable, "-c", FORKING], {}, port, tmp_path / "log")
    try:
        assert idle.is_idle_within(TIMEOUT_S)
    finally:
        idle.stop()


@pytest.mark.parametrize(("is_idle", "num_taken"), [(True, 2), (False, 1)])
def test_a_disturbed_load_is_taken_again_once_the_server_is_idle(
    port: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_idle: bool, num_taken: int
) -> None:
    """A server that goes on with the streams of before would be measured beside them."""
    monkeypatch.setattr("bench.peers.measure._QUIET_FRACTION", -1.0)
    monkeypatch.setattr(ServerProcess, "is_idle_within", lambda *_: is_idle)
    taken: list[int] = []

    def counted(options: ServeBenchOptions) -> ServeReport:
        taken.append(options.num_streams)
        return run_bench(options)

    monkeypatch.setattr("bench.peers.measure.run_bench", counted)
    server = ServerProcess(command_of(port), {}, port, tmp_path / "log")
    try:
        server.wait_for_token(START_PROMPT, TIMEOUT_S)
        Measurement(peer_of(), server, 1, {}, lambda _: None).rates([3])
    finally:
        server.stop()

    assert taken.count(3) == num_taken


def test_loads_end_when_the_server_has_died(port: int, tmp_path: Path) -> None:
    """The group that failed says so; those after it are not tried."""
    figures: dict[str, dict[str, float]] = {}
    groups: list[str] = []
    dies_at = 5  # the start, three requests of the warm-up, and the first at c=1
    server = ServerProcess(command_of(port, dies_at), {}, port, tmp_path / "log")
    try:
        server.wait_for_token(START_PROMPT, TIMEOUT_S)
        with pytest.raises(ServerFailedError, match="no answer any more after c=1 failed"):
            Measurement(peer_of(), server, 1, figures, groups.append).rates([1, 2])
    finally:
        server.stop()

    assert groups == ["warm-up", "c=1"]
    assert "error" not in figures["warm-up"]
    assert "error" in figures["c=1"]


def test_a_port_that_another_server_holds_is_passed_over() -> None:
    """Else that server would be measured."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        taken = int(listening.getsockname()[1])
        assert free_port(taken) > taken


def test_one_shape_serves_every_load() -> None:
    """Of a server that is started once; vLLM is told it."""
    both = RATES_SHAPE | LONG_SHAPE
    words = all_peers({})["vllm-bf16"].command(both, 8000)

    assert (both.max_num_seqs, both.max_model_len) == (32, 2048)
    assert words[words.index("--max-model-len") + 1] == "2048"
    assert words[words.index("--max-num-seqs") + 1] == "32"


def test_every_peer_has_a_command_and_takes_more_flags() -> None:
    """Our own decode modes are measured where they are asked for by name."""
    peers = all_peers({"nanoserve-int8": "--threads 1"})

    for peer in peers.values():
        assert all(isinstance(word, str) for word in peer.command(RATES_SHAPE, 8000))
    assert peers["nanoserve-int8"].command(RATES_SHAPE, 8000)[-2:] == ["--threads", "1"]
    left_out = set(peers) - set(default_names(peers))
    assert left_out == {f"nanoserve-bf16-{mode}" for mode in peers_module.DECODE_MODES}
