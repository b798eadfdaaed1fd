"""Whether the engine gets on, in one word and one sentence. Read by /health."""

from dataclasses import dataclass
from enum import StrEnum


class HealthStatus(StrEnum):
    """State of the engine as a load balancer sees it."""

    OK = "ok"
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
        """Whether new requests should be sent here."""
        return self.status is HealthStatus.OK
