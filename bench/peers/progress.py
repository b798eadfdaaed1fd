"""What a run says while it goes on: elapsed time, and how long the rest will take."""

import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

_UNKNOWN_S = 90.0  # a round of a peer of which nothing is known


class Progress:
    """Prints lines, and learns from each round how long the others will take."""

    def __init__(
        self,
        rounds: Iterable[str],
        earlier: Sequence[Mapping[str, Any]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Take the name of the peer of every round that is to come, and records of earlier runs."""
        self._waiting = list(rounds)
        self._earlier = _seconds_of(earlier)
        self._measured: dict[str, list[float]] = defaultdict(list)
        self._clock = clock
        self._began_s = clock()

    def line(self, text: str, of: str = "") -> None:
        """Print what is said of something, with the time since the run began."""
        minutes, seconds = divmod(int(self._clock() - self._began_s), 60)
        print(f"[{minutes:3d}:{seconds:02d}] {of}{text}", flush=True)

    def end_round(self, peer: str, seconds: float) -> None:
        """Take a round off those that are to come."""
        self._waiting.remove(peer)
        self._measured[peer].append(seconds)

    def skip_round(self, peer: str) -> None:
        """Take a round off that needs nothing."""
        self._waiting.remove(peer)

    @property
    def left(self) -> str:
        """How many rounds are to come, and about how many minutes they take."""
        minutes = self._left_s() / 60
        number = len(self._waiting)
        return f"{number} round{'s' * (number != 1)} to come, about {minutes:.0f} min"

    def _left_s(self) -> float:
        """Return the sum over rounds: as this run measured the peer, else an earlier run."""
        known = {**self._earlier, **self._measured}
        others = [seconds for of_peer in known.values() for seconds in of_peer]
        default = [statistics.mean(others) if others else _UNKNOWN_S]
        return sum(statistics.mean(known.get(peer, default)) for peer in self._waiting)


def _seconds_of(records: Sequence[Mapping[str, Any]]) -> dict[str, list[float]]:
    by_peer: dict[str, list[float]] = defaultdict(list)
    for record in records:
        if "seconds" in record:
            by_peer[record["peer"]].append(record["seconds"])
    return dict(by_peer)
