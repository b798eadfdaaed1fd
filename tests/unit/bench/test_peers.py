"""Peers' processes and their thin servers, with the client that measures them."""

import socket
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from bench.peers import peers as peers_module
from bench.peers import thin_http
from bench.peers.measure import RATES_SHAPE, START_PROMPT, Measurement
from bench.peers.peers import Peer, all_peers, default_names
from bench.peers.run import Plan, Run
from bench.peers.server_process import ServerFailedError, ServerProcess, machine_cpu_s

from nanoserve.bench.serve_bench_options import ServeBenchOptions
from nanoserve.bench.servebench import run_bench

SERVER = """
import asyncio, sys
sys.path.insert(0, sys.argv[1])
from thin_http import listen

async def accept(answer):
    while not answer.is_over:
        answer.write([7])
        await asyncio.sleep(0)

async def main():
    await listen(int(sys.argv[2]), "thin", accept)
    await asyncio.Event().wait()

asyncio.run(main())
"""
TIMEOUT_S = 100.0


@pytest.fixture
def free_port() -> int:
    """Return a port that nothing listens on."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return int(listening.getsockname()[1])


def command_of(port: int) -> list[str]:
    """Return the command of a server that says 7 until it may stop."""
    return [sys.executable, "-c", SERVER, str(Path(thin_http.__file__).parent), str(port)]


def peer_of(**changes: object) -> Peer:
    """Return a peer that is that server."""
    python = Path(sys.executable)
    peer = Peer("thin", "bf16", lambda _, port: command_of(port), python, ("nanoserve", python))
    return replace(peer, **changes)  # type: ignore[arg-type]


def test_a_server_is_started_weighed_paused_and_stopped(free_port: int, tmp_path: Path) -> None:
    """The client of `bench serve` understands a thin server; time and memory are its own."""
    server = ServerProcess(command_of(free_port), {}, free_port, tmp_path / "log")
    try:
        assert 0 < server.wait_for_token(START_PROMPT, TIMEOUT_S) < TIMEOUT_S
        options = ServeBenchOptions(url=server.url, num_requests=3, output_tokens="5")
        assert run_bench(options).figures()["output_tokens"] == 15
        assert 2**20 < server.peak_rss_bytes() < 2**30
        assert 0 < server.cpu_s() < machine_cpu_s()
        server.pause()
        server.resume()
        assert not run_bench(options).errors
    finally:
        server.stop()

    assert server.peak_rss_bytes() == 0


def test_a_server_that_does_not_start_says_what_its_log_says(
    free_port: int, tmp_path: Path
) -> None:
    """Rather than waiting for the time to run out."""
    command = [sys.executable, "-c", "raise SystemExit('no such model')"]
    server = ServerProcess(command, {}, free_port, tmp_path / "log")

    with pytest.raises(ServerFailedError, match="no such model"):
        server.wait_for_token(START_PROMPT, TIMEOUT_S)


def test_rates_are_measured_at_each_level(free_port: int, tmp_path: Path) -> None:
    """Each with what other processes took meanwhile."""
    figures: dict[str, dict[str, float]] = {}
    server = ServerProcess(command_of(free_port), {}, free_port, tmp_path / "log")
    try:
        server.wait_for_token(START_PROMPT, TIMEOUT_S)
        Measurement(peer_of(), server, 1, figures).rates([1, 2])
    finally:
        server.stop()

    assert figures["c=1"]["output_tokens_per_s"] > 0
    assert figures["c=2"]["num_ended_early"] == 0
    assert figures["c=2"]["others_cpu_fraction"] >= 0


def test_rounds_are_kept_in_the_file_failed_ones_too(
    free_port: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second run goes on counting; a peer that is slow to start is started once."""
    monkeypatch.setenv("NANOSERVE_PEERS", str(tmp_path))
    starts: list[int] = []

    def counted(_: object, port: int) -> list[str]:
        starts.append(port)
        return command_of(port)

    broken = peer_of(name="broken", command=lambda *_: [sys.executable, "-c", "1/0"])
    kept = peer_of(name="kept", command=counted, is_slow_to_start=True)
    plan = Plan((1,), repeats=2, port=free_port, has_long=False)
    for _ in range(2):
        run = Run(plan, tmp_path / "results.json")
        run.measure([kept, broken])

    rounds = [(record["peer"], record["round"]) for record in run.records]
    assert rounds == [(name, number) for number in (1, 2, 3, 4) for name in ("kept", "broken")]
    assert "ZeroDivisionError" in run.records[1]["figures"]["start"]["error"]
    assert run.records[0]["figures"]["memory"]["peak_rss_mib"] > 1
    assert starts.count(free_port) == 2  # once in each run; the page asks with another port


def test_every_peer_has_a_command_and_takes_more_flags() -> None:
    """Our own decode modes are measured where they are asked for by name."""
    peers = all_peers({"nanoserve-int8": "--threads 1"})

    for peer in peers.values():
        assert all(isinstance(word, str) for word in peer.command(RATES_SHAPE, 8000))
    assert peers["nanoserve-int8"].command(RATES_SHAPE, 8000)[-2:] == ["--threads", "1"]
    left_out = set(peers) - set(default_names(peers))
    assert left_out == {f"nanoserve-bf16-{mode}" for mode in peers_module.DECODE_MODES}
