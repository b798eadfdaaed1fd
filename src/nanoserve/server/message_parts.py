"""What an assistant's message is made of, piece by piece, in the order of the text.

The same parts make a whole message and the deltas of a stream, so the two cannot disagree.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ContentPart:
    """Text for the reader."""

    text: str


@dataclass(frozen=True, slots=True)
class ReasoningPart:
    """Text that the model wrote between think tags."""

    text: str


@dataclass(frozen=True, slots=True)
class CallStart:
    """A tool call begins.

    Attributes:
        index: Counts the calls of the message, from 0.
        call_id: Made up here; a tool's answer refers to it.
        name: Of the function.
    """

    index: int
    call_id: str
    name: str


@dataclass(frozen=True, slots=True)
class CallArguments:
    """More of the JSON text of a call's arguments."""

    index: int
    text: str


MessagePart = ContentPart | ReasoningPart | CallStart | CallArguments


def held_length(text: str, marker: str) -> int:
    """Return how many characters at the end of `text` may be the start of `marker`."""
    longest = min(len(text), len(marker) - 1)
    return next((n for n in range(longest, 0, -1) if marker.startswith(text[-n:])), 0)
