"""A command from its start to its exit code: known errors, and signals that end it.

SIGTERM and SIGHUP have the system's effect on a Python process, death on the spot, which leaves
what a command was writing, a compiler it had called and a terminal without a cursor. Here they
end a command as Ctrl-C does, from the inside. `server.serve` has its own way once it serves.
"""

import errno
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType

from nanoserve.error_reasons import reason_of
from nanoserve.errors import NanoserveError, OptionError
from nanoserve.serve_extra import missing_extra

_SIGNALS = (signal.SIGTERM, signal.SIGHUP)
_SIGNAL_CODE = 128  # and the signal's number, as shells count


class _Stopped(SystemExit):
    """A signal ends the command."""

    def __init__(self, number: int) -> None:
        self.name = signal.Signals(number).name
        super().__init__(_SIGNAL_CODE + number)


def run_command(command: Callable[[], object]) -> None:
    """Run the command line; an error we know is one message and its exit code.

    In a thread other than the main one signals are left alone: Python lets no other set them.

    Raises:
        SystemExit: With the exit code, where it is not 0.
    """
    if sys.stderr is None:  # closed by who started it: `print` would fall back on stdout
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115  # until the process ends
    try:
        with _ended_by_signals():
            command()
    except NanoserveError as error:
        _say(str(error))
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        sys.exit(_SIGNAL_CODE + signal.SIGINT)
    except _Stopped as stop:
        _say(f"{stop.name} ended it.")
        raise
    except ModuleNotFoundError as error:
        message = missing_extra(error)
        if message is None:
            raise
        _say(message)
        sys.exit(OptionError.exit_code)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EIO):
            raise
        _say(f"what is printed cannot be written: {reason_of(error)}")
        sys.exit(NanoserveError.exit_code)
    finally:
        _leave_interrupts()


def _say(message: str) -> None:
    with suppress(OSError):  # its terminal may have gone away, or its disk be full
        print(f"nanoserve: {message}", file=sys.stderr, flush=True)


@contextmanager
def _ended_by_signals() -> Iterator[None]:
    """Let a signal raise `_Stopped` in the body; one that is ignored, as by nohup, stays so.

    What follows the first changes nothing: sent to a group it comes twice, where a parent such as
    make passes it on, and when Python gets to the second says little of when it was sent.
    """
    is_ending = False

    def stop(number: int, frame: FrameType | None) -> None:
        nonlocal is_ending
        if not is_ending:
            is_ending = True
            raise _Stopped(number)

    is_main = threading.current_thread() is threading.main_thread()
    ours = [one for one in _SIGNALS if is_main and signal.getsignal(one) is signal.SIG_DFL]
    for number in ours:
        signal.signal(number, stop)
    try:
        yield
    finally:
        for number in ours:
            if signal.getsignal(number) is stop and not is_ending:
                signal.signal(number, signal.SIG_DFL)


def _leave_interrupts() -> None:
    """Let Ctrl-C have the system's effect from here on: there is no more to clean up.

    A Python that ends and is interrupted prints where it was.
    """
    is_main = threading.current_thread() is threading.main_thread()
    if is_main and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
