"""A server process over fakes, for tests of signals and exit codes.

Prints its port once it listens. Arguments: the call at which the runner fails (-1: at none),
the seconds of a drain, the call that waits for a byte on standard input (-1: none does), so
that an answer lasts, and the seconds between two signals, as the server is told, however fast
they came.
"""

import itertools
import os
import socket
import sys

from nanoserve.sched.step import StepPlan, StepResult
from nanoserve.server.app import build_app
from nanoserve.server.serve import serve
from tests.builders import FailingRunner, make_context, make_engine


class HeldRunner(FailingRunner):
    """Waits at one of its steps until it is told to go on."""

    def __init__(self, errors: dict[int, BaseException], held_call: int) -> None:
        super().__init__(errors)
        self._held_call = held_call

    def execute(self, step: StepPlan) -> StepResult:
        if self.num_calls == self._held_call:
            os.read(sys.stdin.fileno(), 1)
        return super().execute(step)


def main() -> int:
    fail_at, held_call = int(sys.argv[1]), int(sys.argv[3])
    drain_seconds, signal_gap_s = float(sys.argv[2]), float(sys.argv[4])
    errors: dict[int, BaseException] = {}
    if fail_at >= 0:
        errors[fail_at] = RuntimeError("device lost")
    engine = make_engine(HeldRunner(errors, held_call))
    listener = socket.create_server(("127.0.0.1", 0))
    engine.start()
    sys.stdout.write(f"{listener.getsockname()[1]}\n")
    sys.stdout.flush()
    app = build_app(make_context(engine))
    clock = itertools.count(0.0, signal_gap_s).__next__
    return serve(app, engine, listener, drain_seconds=drain_seconds, clock=clock)


if __name__ == "__main__":
    sys.exit(main())
