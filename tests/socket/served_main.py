"""A server process over fakes, for tests of signals and exit codes.

Prints its port once it listens. A step takes at least `STEP_S`, so that an
answer lasts; with an argument, the runner fails at that call.
"""

import socket
import sys
import threading

from nanoserve.sched.step import StepPlan, StepResult
from nanoserve.server.app import build_app
from nanoserve.server.serve import serve
from tests.builders import FailingRunner, make_context, make_engine

STEP_S = 0.005


class SlowRunner(FailingRunner):
    """Takes its time, like a model."""

    def execute(self, step: StepPlan) -> StepResult:
        threading.Event().wait(STEP_S)
        return super().execute(step)


def main() -> int:
    fail_at, drain_seconds = int(sys.argv[1]), float(sys.argv[2])
    errors: dict[int, BaseException] = {}
    if fail_at >= 0:
        errors[fail_at] = RuntimeError("device lost")
    engine = make_engine(SlowRunner(errors))
    listener = socket.create_server(("127.0.0.1", 0))
    engine.start()
    sys.stdout.write(f"{listener.getsockname()[1]}\n")
    sys.stdout.flush()
    app = build_app(make_context(engine))
    return serve(app, engine, listener, drain_seconds=drain_seconds)


if __name__ == "__main__":
    sys.exit(main())
