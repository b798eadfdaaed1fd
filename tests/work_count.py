"""How much work a function does, counted: the same figures on every machine, busy or idle.

Speed is judged by the benches; a test that bounds seconds judges the machine with the code.
What is counted are calls, of Python's functions and of C's, and the characters that these
calls are handed. What one call does within C is not seen: where that can run away, as in
regular expressions, a test also reads within `hang_guard`.
"""

import gc
import inspect
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, NamedTuple, TypeVar

MAX_GROWTH = 4.4  # of the work on four times as much, where it grows as its input does
HANG_CPU_S = 30.0
# Methods of a text that need not walk all of it: they start at a place, or end at the first hit.
_PARTIAL = frozenset({"find", "rfind", "index", "rindex", "startswith", "endswith"})
_Input = TypeVar("_Input")


class Work(NamedTuple):
    """What a function did.

    Attributes:
        num_calls: Of functions, in Python and in C.
        num_chars: In the texts that Python's functions were given, and in those of which a
            method was called that walks them.
    """

    num_calls: int
    num_chars: int


def work_of(task: Callable[[], object]) -> Work:
    """Return what `task` does in this thread; no collection of garbage disturbs it."""
    num_calls = num_chars = 0

    def see(frame: FrameType, event: str, arg: Any) -> None:
        nonlocal num_calls, num_chars
        if event == "call":
            num_calls += 1
            num_chars += _num_chars_given(frame)
        elif event == "c_call":
            num_calls += 1
            if arg.__name__ not in _PARTIAL:
                num_chars += _num_chars(getattr(arg, "__self__", None))

    was_collecting = gc.isenabled()
    gc.disable()
    sys.setprofile(see)
    try:
        task()
    finally:
        sys.setprofile(None)
        if was_collecting:
            gc.enable()
    return Work(num_calls, num_chars)


def growth(task: Callable[[_Input], object], small: _Input, large: _Input) -> float:
    """Return how many times the work on `small` that on `large` is, by the worse count.

    Work that grows as its input does, beside a part that is always the same, grows at most
    as the input does; one that grows as its square shows even where it is still a small part.
    """
    task(small)  # what is made once and kept
    before, after = work_of(lambda: task(small)), work_of(lambda: task(large))
    return max(
        after.num_calls / max(before.num_calls, 1), after.num_chars / max(before.num_chars, 1)
    )


@contextmanager
def hang_guard() -> Iterator[None]:
    """Fail what does not come to an end in `HANG_CPU_S` seconds of this process's own.

    A guard against a hang, no judge of speed: what is run in it takes a second at most, on a
    machine of today. The signal also breaks off a regular expression that goes on for ever.
    """

    def stop(number: int, frame: FrameType | None) -> None:
        message = f"no end after {HANG_CPU_S:g} s of processor time"
        raise TimeoutError(message)

    previous = signal.signal(signal.SIGVTALRM, stop)
    signal.setitimer(signal.ITIMER_VIRTUAL, HANG_CPU_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, previous)


def _num_chars_given(frame: FrameType) -> int:
    code = frame.f_code
    if code.co_flags & inspect.CO_GENERATOR:  # called anew for everything it yields
        return 0
    return sum(
        _num_chars(frame.f_locals.get(name)) for name in code.co_varnames[: code.co_argcount]
    )


def _num_chars(value: object) -> int:
    return len(value) if isinstance(value, str | bytes) else 0
