"""What all chunks of one answer share."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class AnswerHead:
    """Id, time and model of an answer.

    Attributes:
        answer_id: "cmpl-…" or "chatcmpl-…".
        created: Unix seconds.
        model: The served name.
    """

    answer_id: str
    created: int
    model: str
