"""Rounds over peers: shapes, deaths, interruptions, and the file they are kept in."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from bench.peers.measure import LONG_SHAPE, RATES_SHAPE, Measurement
from bench.peers.peers import Peer, ServerShape
from bench.peers.progress import Progress
from bench.peers.results import Results
from bench.peers.run import Plan, Run

from tests.unit.bench.thin_peer import command_of, peer_of, unused_port

WARM_UP, C_1 = 3, 3  # completions: one that finds out what the server takes, and two
RATES = 1 + WARM_UP + C_1  # with that of the start

Start = tuple[int, int]


@pytest.fixture
def results_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return where results go; logs go beside them. What else runs here disturbs no load."""
    monkeypatch.setenv("NANOSERVE_PEERS", str(tmp_path))
    monkeypatch.setattr("bench.peers.measure._QUIET_FRACTION", 1e9)
    return tmp_path / "results.json"


def watched(name: str, *deaths: int, **changes: object) -> tuple[Peer, list[Start]]:
    """Return a peer and the shapes it is started with.

    Args:
        name: The peer's.
        deaths: At which completion each start dies, the first first; later ones live.
        changes: Other fields of the peer.
    """
    starts: list[Start] = []

    def command(shape: ServerShape, port: int) -> list[str]:
        if port == 8000:  # that of the line for people
            return command_of(port)
        starts.append((shape.max_num_seqs, shape.max_model_len))
        return command_of(port, dict(enumerate(deaths)).get(len(starts) - 1, 0))

    return peer_of(name=name, command=command, **changes), starts


def run(path: Path, *peers: Peer, repeats: int = 1, **more: Any) -> list[dict[str, Any]]:
    """Measure the peers and return the records of the file."""
    is_resumed = more.pop("is_resumed", False)
    with unused_port() as port:
        plan = Plan((1,), repeats, port, **{"has_long": True, **more})
        Run(plan, Results(path, is_resumed=is_resumed)).measure(peers)
    return read(path)


def read(path: Path) -> list[dict[str, Any]]:
    """Return the records of a file."""
    records: list[dict[str, Any]] = json.loads(path.read_text())
    return records


def errors_of(record: dict[str, Any]) -> dict[str, str]:
    """Return the groups that failed."""
    return {name: of["error"] for name, of in record["figures"].items() if "error" in of}


def test_each_load_has_a_server_of_its_shape(results_path: Path) -> None:
    """A peer that is slow to start has one a round, that serves both."""
    quick, quick_starts = watched("quick")
    slow, slow_starts = watched("slow", is_slow_to_start=True)

    records = run(results_path, quick, slow, repeats=2)

    rates, long = ((shape.max_num_seqs, shape.max_model_len) for shape in (RATES_SHAPE, LONG_SHAPE))
    assert quick_starts == [rates, long, rates, long]
    assert slow_starts == [(rates[0], long[1])] * 2
    for record in records:
        assert not errors_of(record)
        assert record["figures"]["c=1"]["output_tokens_per_s"] > 0
        assert record["figures"]["prefix"]["cached_ms"] > 0
        assert record["figures"]["memory"]["peak_rss_mib"] > 1
        assert record["seconds"] > 0
    assert [(record["peer"], record["round"]) for record in records] == [
        *(("quick", 1), ("slow", 1), ("quick", 2), ("slow", 2))
    ]


@pytest.mark.parametrize("is_slow", [False, True])
def test_a_server_that_dies_is_started_again(results_path: Path, is_slow: bool) -> None:
    """What it had failed at is measured then; its start is a figure once."""
    peer, starts = watched("mortal", 1 + WARM_UP + 1, is_slow_to_start=is_slow)

    (record,) = run(results_path, peer)

    assert len(starts) == 3  # the one that died, and one for each load
    assert not errors_of(record)
    assert record["figures"]["c=1"]["output_tokens_per_s"] > 0
    assert record["figures"]["prefix"]["cold_ms"] > 0
    assert record["taken_again_after"].startswith("c=1: ")


def test_a_load_that_always_kills_costs_only_its_own_figures(results_path: Path) -> None:
    """And neither the other loads nor the peers after it."""
    in_ttft = RATES + 3
    peer, starts = watched("mortal", in_ttft, 3, is_slow_to_start=True)

    mortal, next_one = run(results_path, peer, peer_of(name="next"))

    assert len(starts) == 2
    assert mortal["figures"]["c=1"]["output_tokens_per_s"] > 0
    assert set(errors_of(mortal)) == {"ttft_512", "server"}
    assert "prefix" not in mortal["figures"]
    assert not errors_of(next_one)


def test_a_peer_that_does_not_start_is_tried_twice_and_left(results_path: Path) -> None:
    """Its log says why; every round has a record of it."""
    tried: list[int] = []

    def command(_: ServerShape, port: int) -> list[str]:
        tried.append(port)
        return [sys.executable, "-c", "1/0"]

    broken, *others = run(results_path, peer_of(name="broken", command=command), peer_of())

    assert "ZeroDivisionError" in broken["figures"]["start"]["error"]
    assert len(tried) == 3  # twice, and for the line for people
    assert not errors_of(others[0])


def test_figures_of_the_first_attempt_are_not_lost_to_the_second(results_path: Path) -> None:
    """A level that was measured stays where the server dies earlier the next time."""
    peer, starts = watched("mortal", RATES + 2, 2)
    with unused_port() as port:
        plan = Plan((1, 2), 1, port, has_long=False)
        Run(plan, Results(results_path, is_resumed=False)).measure([peer])
    (record,) = read(results_path)

    assert len(starts) == 2
    assert set(errors_of(record)) == {"c=2", "server"}
    assert "error" not in record["figures"]["warm-up"]
    assert record["figures"]["c=1"]["output_tokens_per_s"] > 0


def test_an_interrupted_run_keeps_what_it_has_and_is_resumed(
    results_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only what is missing is measured then."""

    def interrupt(_: Measurement) -> None:
        raise KeyboardInterrupt

    peer, _ = watched("thin")
    with monkeypatch.context() as patch:
        patch.setattr(Measurement, "long_prompts", interrupt)
        with pytest.raises(KeyboardInterrupt):
            run(results_path, peer)
    (before,) = read(results_path)
    again, starts = watched("thin")
    first, second = run(results_path, again, repeats=2, is_resumed=True)

    assert before["figures"]["memory"]
    assert first["seconds"] > before["seconds"] > 0
    assert "ttft_512" not in before["figures"]
    assert first["figures"]["c=1"] == before["figures"]["c=1"]
    assert first["figures"]["ttft_512"]["ttft_ms"] > 0
    assert second["figures"]["c=1"] != first["figures"]["c=1"]
    assert len(starts) == 1 + 2  # long prompts of round 1, and both loads of round 2


def test_a_new_run_puts_earlier_results_aside(results_path: Path) -> None:
    """Figures of two runs do not compare; those of before are kept beside."""
    run(results_path, peer_of(name="before"), has_long=False)
    records = run(results_path, peer_of(name="after"), has_long=False)
    (aside,) = results_path.parent.glob("results-*.json")

    assert [record["peer"] for record in records] == ["after"]
    assert [record["peer"] for record in read(aside)] == ["before"]


def test_a_run_says_how_long_it_will_take(capsys: pytest.CaptureFixture[str]) -> None:
    """From earlier runs at first, then from its own rounds."""
    now_s = 100.0
    earlier: list[dict[str, Any]] = [
        {"peer": "a", "seconds": 60.0},
        {"peer": "a", "seconds": 180.0},
        {"peer": "b"},
    ]
    progress = Progress(["a", "b", "a", "b"], earlier, lambda: now_s)

    assert progress.left == "4 rounds to come, about 8 min"  # b is taken for an average peer
    progress.end_round("a", 60.0)
    progress.end_round("b", 300.0)
    assert progress.left == "2 rounds to come, about 6 min"
    progress.skip_round("b")
    assert progress.left == "1 round to come, about 1 min"
    now_s += 125
    progress.line("done", of="a: ")
    assert capsys.readouterr().out == "[  2:05] a: done\n"
