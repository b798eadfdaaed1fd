"""The bound on prompt tokens that wait."""

import pytest

from nanoserve.errors import QueueFullError
from nanoserve.server.prompt_queue import PromptQueue, QueuedCall
from tests.builders import make_request


@pytest.fixture
def rejected() -> list[int]:
    return []


@pytest.fixture
def queue(rejected: list[int]) -> PromptQueue:
    return PromptQueue(10, rejected.append)


def test_first_token_makes_room(queue: PromptQueue) -> None:
    """Each request's tokens count until its first delta; ends afterwards change nothing."""
    call = QueuedCall(queue)
    call.expect(1, 2)
    call.add([make_request("a", "12345"), make_request("b", "123")])
    assert queue.num_tokens == 8

    call.start("a")
    call.start("a")
    assert queue.num_tokens == 3

    call.close()
    call.close()
    assert queue.num_tokens == 0


def test_full_queue_turns_calls_away(queue: PromptQueue, rejected: list[int]) -> None:
    """Before tokenising by what is certain, after it by what is counted; both are counted."""
    QueuedCall(queue).add([make_request("a", "12345678")])
    early, late = QueuedCall(queue), QueuedCall(queue)

    with pytest.raises(QueueFullError, match="8 prompt tokens are in flight and the limit is 10"):
        early.expect(3, 1)
    late.expect(2, 2)
    with pytest.raises(QueueFullError):
        late.add([make_request("b", "123"), make_request("c", "1")])

    late.close()
    assert rejected == [1, 2]
    assert queue.num_tokens == 8


def test_empty_queue_takes_any_call(queue: PromptQueue) -> None:
    """A prompt longer than the bound is served alone rather than never."""
    call = QueuedCall(queue)

    call.expect(50, 1)
    call.add([make_request("a", "x" * 50)])

    assert queue.num_tokens == 50
