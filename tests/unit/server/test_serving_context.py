"""What every handler is given."""

import asyncio
import threading

import pytest

from nanoserve.errors import UnknownModelError
from tests.builders import make_context, make_engine


def test_work_runs_in_a_text_thread() -> None:
    """The event loop's thread stays free, and arguments and results pass through."""
    context = make_context(make_engine())

    def work(number: int, *, factor: int) -> tuple[int, str]:
        return number * factor, threading.current_thread().name

    result, thread_name = asyncio.run(context.off_loop(work, 6, factor=7))
    context.text_threads.shutdown()

    assert result == 42
    assert thread_name.startswith("nanoserve-text")


def test_only_the_served_model_is_known() -> None:
    """No name means the one that is served; another is refused with the list."""
    context = make_context(make_engine())

    context.check_model(None)
    context.check_model("fake")
    with pytest.raises(UnknownModelError) as caught:
        context.check_model("Fake")

    assert caught.value.served == ("fake",)
