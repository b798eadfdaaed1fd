"""Whether the engine gets on, in one word and one sentence. Read by /health."""

from dataclasses import dataclass
from enum import StrEnum

from nanoserve.plan.boot_checks import DecodeWindow, check_replays_dominate


class HealthStatus(StrEnum):
    """State of the engine as a load balancer sees it."""

    OK = "ok"
    DEGRADED = "degraded"  # serves, but slower than the boot promised
    STARTING = "starting"
    DRAINING = "draining"  # finishes what it has, takes nothing new
    STALLED = "stalled"  # has work, and no step has ended for too long
    STOPPED = "stopped"
    DEAD = "dead"  # the loop ended with an exception


@dataclass(frozen=True, slots=True)
class Health:
    """One answer to "are you well?".

    Attributes:
        status: The word.
        detail: Why, with numbers; '' where there is nothing to say.
    """

    status: HealthStatus
    detail: str = ""

    @property
    def is_ok(self) -> bool:
        """Whether new requests should be sent here: a degraded engine answers them, slowly."""
        return self.status in (HealthStatus.OK, HealthStatus.DEGRADED)


def judge_loop(silence_s: float, stall_after_s: float, window: DecodeWindow | None) -> Health:
    """Judge a loop that is meant to run.

    There is no least number of steps: a server whose first step records a graph while its
    client waits is degraded until enough replays have followed.

    Args:
        silence_s: How long work has waited for a step to end; 0 without work.
        stall_after_s: Longest silence that still is healthy.
        window: The last decode steps where they were to be replayed, None elsewhere.
    """
    if silence_s > stall_after_s:
        detail = f"There is work, and no step has finished for {silence_s:.0f} s."
        return Health(HealthStatus.STALLED, detail)
    problem = None if window is None else check_replays_dominate(window)
    return Health(HealthStatus.OK) if problem is None else Health(HealthStatus.DEGRADED, problem)
