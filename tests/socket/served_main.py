"""A server process over fakes, for tests of signals and exit codes.

Prints its port once it listens. Arguments: the call at which the runner fails (-1: at none),
the seconds of a drain, those that a step takes at least, so that an answer lasts, the call
that waits for a byte on standard input (-1: none does), and the seconds between two signals, as
the server is told, however fast they came.
"""

import itertools
import os
import socket
import sys
import threading

from nanoserve.sched.step import StepPlan, StepResult
from nanoserve.server.app import build_app
from nanoserve.server.serve import serve
from tests.builders import FailingRunner, make_context, make_engine


class SlowRunner(FailingRunner):
    """Takes its time, like a model."""

    def __init__(self, errors: dict[int, BaseException], step_s: float, held_call: int) -> None:
        super().__init__(errors)
        self._step_s = step_s
        self._held_call = held_call

    def execute(self, step: StepPlan) -> StepResult:
        if self.num_calls == self._held_call:
            os.read(sys.stdin.fileno(), 1)
        threading.Event().wait(self._step_s)
        return super().execute(step)


def main() -> int:
    fail_at, held_call = int(sys.argv[1]), int(sys.argv[4])
    drain_seconds, step_s, signal_gap_s = map(float, (*sys.argv[2:4], sys.argv[5]))
    errors: dict[int, BaseException] = {}
    if fail_at >= 0:
        errors[fail_at] = RuntimeError("device lost")
    engine = make_engine(SlowRunner(errors, step_s, held_call))
    listener = socket.create_server(("127.0.0.1", 0))
    engine.start()
    sys.stdout.write(f"{listener.getsockname()[1]}\n")
    sys.stdout.flush()
    app = build_app(make_context(engine))
    clock = itertools.count(0.0, signal_gap_s).__next__
    return serve(app, engine, listener, drain_seconds=drain_seconds, clock=clock)


if __name__ == "__main__":
    sys.exit(main())
