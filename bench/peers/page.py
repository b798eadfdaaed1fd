"""docs/benchmarks.md from the file of results: medians over rounds, losses included."""

import json
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

_HEAD = """\
# Beside other servers

This page is written by `python -m bench.peers run`.
It measures every peer on the same machine in turn, round after round, through the socket and with the client of `nanoserve bench serve`.
Each figure is the median over the rounds, and where it could not be taken in all of them, it says in how many; rates drift within minutes on a shared machine, so only figures of one run compare, and those of one class of weights.
Every peer serves the same model, SmolLM2-135M-Instruct, made from the same file.
"""
_COMMANDS = """
## How to repeat it

    python -m bench.peers install      # each peer in an environment of its own, in a cache
    python -m bench.peers run          # --peers, --concurrency and --repeats choose less
    python -m bench.peers run --resume # what an interrupted run lacks

Prompts are random tokens, answers are greedy and run to their full length: 128 prompt and 128 output tokens, as many requests as there are streams (two for one stream).
Servers of the first two tables are started for 32 requests of 512 tokens, those of the third for 9 of 2,048, where a server has to be told; vLLM, which takes more than a minute to start, once a round for 32 of 2,048.
No server outlives its round.
Where a load fails or a server dies, that load is taken once more, whole, on a server started anew; what fails again is said above and in no figure.
OpenVINO GenAI has no HTTP server, nor has transformers' `generate`: `openvino_server.py` and `transformers_server.py` in `bench/peers` put them behind a socket, without turning tokens into text; `generate` runs one batch to its end before the next.
Peak memory is the sum of VmHWM over the processes of a server, after its rates were measured; pages shared by two processes count twice.
A figure is taken again, once, where other processes took more than a tenth of a core, and the quieter one is kept.
"""
_CLASSES = ("bf16", "8-bit", "4-bit")
_OWN = "nanoserve"
_DISTURBED = 0.1  # of a core

Record = Mapping[str, Any]


def write_page(results: Path, page: Path) -> None:
    """Write the page from the records in `results`."""
    page.write_text(render(json.loads(results.read_text())))


def render(records: Sequence[Record]) -> str:
    """Return the page."""
    by_peer: dict[str, list[Record]] = defaultdict(list)
    for record in records:
        by_peer[record["peer"]].append(record)
    order = sorted(by_peer, key=lambda n: (_CLASSES.index(by_peer[n][-1]["weights"]), n))
    peers = {name: by_peer[name] for name in order}
    dates = sorted({record["date"] for record in records})
    machines = sorted({record["machine"] for record in records})
    return "\n".join(
        [
            _HEAD,
            f"Machine: {'; '.join(machines)}. Date: {', '.join(dates)}. "
            f"Rounds: {_num_rounds(peers)}.",
            *_rates(peers),
            *_gaps(peers),
            *_long(peers),
            *_ratios(peers),
            *_failures(peers),
            _COMMANDS,
            *_versions(peers),
            "",
        ]
    )


def _levels(peers: Mapping[str, Sequence[Record]]) -> list[int]:
    names = {name for rounds in peers.values() for record in rounds for name in record["figures"]}
    return sorted(int(name[2:]) for name in names if name.startswith("c="))


def _num_rounds(peers: Mapping[str, Sequence[Record]]) -> int:
    return max((len(rounds) for rounds in peers.values()), default=0)


def _values(rounds: Iterable[Record], group: str, name: str) -> list[float]:
    groups = (record["figures"].get(group, {}) for record in rounds)
    return [figures[name] for figures in groups if "error" not in figures and name in figures]


def _median(rounds: Iterable[Record], group: str, name: str) -> float | None:
    values = _values(rounds, group, name)
    return statistics.median(values) if values else None


def _of(rounds: Iterable[Record], group: str, name: str, total: int) -> str:
    """Return in how many of all rounds a figure was taken; '' where in all or in none."""
    count = len(_values(rounds, group, name))
    return f" ({count} of {total})" if 0 < count < total else ""


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    return ["", _row(header), _row(["---"] * len(header)), *map(_row, rows)]


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _cell(value: float | None, unit: str = "", digits: int = 0) -> str:
    return "-" if value is None else f"{value:,.{digits}f}{unit}"


def _rates(peers: Mapping[str, Sequence[Record]]) -> list[str]:
    levels, total = _levels(peers), _num_rounds(peers)
    columns = [
        *((f"c={c}", "output_tokens_per_s", "", 1) for c in levels),
        ("start", "first_token_s", " s", 1),
        ("memory", "peak_rss_mib", " MiB", 0),
    ]
    rows = [
        [name, rounds[-1]["weights"], *(_figure(rounds, *column, total) for column in columns)]
        for name, rounds in peers.items()
    ]
    header = ["", "weights", *(f"c={c}" for c in levels), "start to first token", "peak RSS"]
    return ["", "## Output tokens/s, prefill included", *_table(header, rows)]


def _figure(
    rounds: Sequence[Record], group: str, name: str, unit: str, digits: int, total: int
) -> str:
    cell = _cell(_median(rounds, group, name), unit, digits)
    return cell + _of(rounds, group, name, total)


def _gaps(peers: Mapping[str, Sequence[Record]]) -> list[str]:
    levels, total = _levels(peers), _num_rounds(peers)
    rows = []
    for name, rounds in peers.items():
        cells = [name]
        for c in levels:
            p50 = _median(rounds, f"c={c}", "itl_p50_ms")
            p99 = _median(rounds, f"c={c}", "itl_p99_ms")
            of = _of(rounds, f"c={c}", "itl_p50_ms", total)
            cells.append(f"{_cell(p50, digits=1)} / {_cell(p99, digits=1)}{of}")
        rows.append(cells)
    header = ["", *(f"c={c}" for c in levels)]
    return ["", "## Gaps between tokens, p50 / p99 in ms", *_table(header, rows)]


def _long(peers: Mapping[str, Sequence[Record]]) -> list[str]:
    rows, total = [], _num_rounds(peers)
    for name, rounds in peers.items():
        quiet = _median(rounds, "interference", "quiet_itl_p99_ms")
        disturbed = _median(rounds, "interference", "disturbed_itl_p99_ms")
        cold = _median(rounds, "prefix", "cold_ms")
        cached = _median(rounds, "prefix", "cached_ms")
        rows.append(
            [
                name,
                _figure(rounds, "ttft_512", "ttft_ms", " ms", 0, total),
                _figure(rounds, "prefix", "cold_ms", " ms", 0, total),
                _cell(cached, " ms"),
                _ratio(cached, cold),
                _figure(rounds, "interference", "quiet_itl_p99_ms", " ms", 1, total),
                _cell(disturbed, " ms", 1),
                _ratio(disturbed, quiet),
                _cell(_median(rounds, "interference", "intruder_ttft_p50_ms"), " ms"),
            ]
        )
    if all(set(row[1:]) == {"-"} for row in rows):
        return []
    header = [
        "",
        "TTFT, 512 tokens",
        "TTFT, 1,516 tokens, cold",
        "1,500 of them cached",
        "ratio",
        "ITL p99 of 8 streams",
        "the same while 2,000-token prompts arrive",
        "ratio",
        "TTFT of those",
    ]
    return ["", "## First tokens, cached prefixes, interference", *_table(header, rows)]


def _ratio(value: float | None, base: float | None) -> str:
    return _cell(value / base if value is not None and base else None, digits=2)


def _ratios(peers: Mapping[str, Sequence[Record]]) -> list[str]:
    """Return nanoserve's rates over those of the best peer of the class."""
    levels = _levels(peers)
    rows = []
    for weights in _CLASSES:
        of_class = {n: r for n, r in peers.items() if r[-1]["weights"] == weights}
        cells = []
        for c in levels:
            rate = _rate_at(c)
            own = [v for n, r in of_class.items() if n.startswith(_OWN) and (v := rate(r))]
            others = [v for n, r in of_class.items() if not n.startswith(_OWN) and (v := rate(r))]
            cells.append(_ratio(max(own, default=None), max(others, default=None)))
        rows.append([weights, *cells])
    if all(set(row[1:]) == {"-"} for row in rows):
        return []
    header = ["weights", *(f"c={c}" for c in levels)]
    title = "## nanoserve's output tokens/s over the best peer's of the same class"
    return ["", title, *_table(header, rows)]


def _rate_at(level: int) -> Callable[[Sequence[Record]], float | None]:
    return lambda rounds: _median(rounds, f"c={level}", "output_tokens_per_s")


def _failures(peers: Mapping[str, Sequence[Record]]) -> list[str]:
    lines = []
    for name, rounds in peers.items():
        for record in rounds:
            if note := record.get("note"):
                lines.append(f"- {name}, round {record['round']}: {note}")
            if error := record.get("taken_again_after"):
                lines.append(
                    f"- {name}, round {record['round']}: taken again after {_last_line(error)}"
                )
            for group, figures in record["figures"].items():
                if error := figures.get("error"):
                    lines.append(f"- {name}, round {record['round']}, {group}: {_last_line(error)}")
                if (others := figures.get("others_cpu_fraction", 0.0)) > _DISTURBED:
                    share = f"{100 * others:.0f} % of a core"
                    lines.append(
                        f"- {name}, round {record['round']}, {group}: disturbed, other processes "
                        f"took {share}"
                    )
                if early := figures.get("num_ended_early"):
                    lines.append(f"- {name}, round {record['round']}, {group}: {early} ended early")
    return ["", "## What failed, ended early or was disturbed", "", *lines] if lines else []


def _last_line(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1][:200] if lines else ""


def _versions(peers: Mapping[str, Sequence[Record]]) -> list[str]:
    rows = [[n, rounds[-1]["version"], f"`{rounds[-1]['command']}`"] for n, rounds in peers.items()]
    return ["## Versions and commands", *_table(["", "version", "command"], rows)]
