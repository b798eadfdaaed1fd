"""`python -m bench.peers install|run|page`: see `--help` of each."""

import argparse
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from bench.peers.install import NAMES, install
from bench.peers.model_files import make_models
from bench.peers.page import write_page
from bench.peers.peers import all_peers, default_names
from bench.peers.places import peers_folder
from bench.peers.results import Results
from bench.peers.run import Plan, Run, pin_to_cores

_PAGE = Path(__file__).parents[2] / "docs" / "benchmarks.md"


def main(words: Sequence[str]) -> None:
    """Read the command line and do what it says."""
    parser = argparse.ArgumentParser(prog="python -m bench.peers", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    installing = commands.add_parser("install", help="install peers and make their model files")
    installing.add_argument("names", nargs="*", default=list(NAMES), help=", ".join(NAMES))
    installing.add_argument(
        "--torch-index", help="https://download.pytorch.org/whl/cpu, unless pip is set up for it"
    )
    running = commands.add_parser("run", help="measure peers in turn; write the page")
    running.add_argument(
        "--peers", default="", help="names with commas between (default: all but decode modes)"
    )
    running.add_argument("--concurrency", default="1,4,16,32")
    running.add_argument("--repeats", type=int, default=3)
    running.add_argument("--port", type=int, default=8000, help="the first that is used")
    running.add_argument("--rates-only", action="store_true", help="no first tokens, no intruders")
    running.add_argument("--note", default="", help="said on the page of these rounds")
    running.add_argument(
        "--flags", action="append", default=[], help="more flags of one: nanoserve-bf16=--threads 2"
    )
    running.add_argument(
        "--resume",
        action="store_true",
        help="keep the results there are and measure what they lack (default: put them aside)",
    )
    for command in (running, commands.add_parser("page", help="write the page again")):
        command.add_argument("--results", type=Path, default=peers_folder() / "results.json")
        command.add_argument("--page", type=Path, default=_PAGE)
    asked = parser.parse_args(words)
    if asked.command == "install":
        for name in asked.names:
            install(name, asked.torch_index)
        make_models()
        return
    if asked.command == "run":
        _run(asked)
    write_page(asked.results, asked.page)


def _run(asked: argparse.Namespace) -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # stops the servers
    peers = all_peers(dict(flags.split("=", 1) for flags in asked.flags))
    names = asked.peers.split(",") if asked.peers else default_names(peers)
    unknown = [name for name in names if name not in peers]
    if unknown:
        sys.exit(f"There is no peer {', '.join(unknown)}. Known: {', '.join(peers)}.")
    missing = [name for name in names if not peers[name].needs.exists()]
    if missing:
        sys.exit(f"Not installed: {', '.join(missing)}. Run: python -m bench.peers install")
    levels = tuple(int(level) for level in asked.concurrency.split(","))
    plan = Plan(levels, asked.repeats, asked.port, not asked.rates_only, asked.note)
    pin_to_cores()
    results = Results(asked.results, is_resumed=asked.resume)
    if results.put_aside:
        print(f"The results of before are in {results.put_aside} now.")
    Run(plan, results).measure([peers[name] for name in names])


if __name__ == "__main__":
    main(sys.argv[1:])
