"""A batch over fakes in a process of its own, which stalls after some steps to be killed.

Run as `python -m tests.batch_process IN OUT NUM_STEPS`; says `stalled` when it does.
"""

import os
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, cast

import pytest

from nanoserve.cli import batch
from nanoserve.options import EngineOptions
from nanoserve.sched.step import StepPlan, StepResult
from nanoserve.text.chat_template import ChatTemplate
from tests.builders import CHAT_TEMPLATE, AsciiRunner, make_core, make_limits
from tests.fakes import ByteTokenizer, FakeRunner

if TYPE_CHECKING:
    from nanoserve.launch.boot import BootedEngine


class StallingRunner(AsciiRunner):
    """Executes `num_steps` steps and then none, ever; says so once there is an answer."""

    def __init__(self, num_steps: int, answers: Path) -> None:
        super().__init__()
        self.num_steps = num_steps
        self.answers = answers

    def execute(self, step: StepPlan) -> StepResult:
        if len(self.steps) == self.num_steps:
            while not self.answers.stat().st_size:  # another thread writes them, in its time
                threading.Event().wait(0.01)
            os.write(sys.stdout.fileno(), b"stalled\n")
            threading.Event().wait()
        return super().execute(step)


class FakeBooted:
    """What a boot returns, as far as a batch reads it."""

    def __init__(self, runner: FakeRunner) -> None:
        self.core = make_core(runner)
        self.limits = make_limits()
        self.tokenizer = ByteTokenizer()
        self.chat_template = ChatTemplate(CHAT_TEMPLATE, None, None)
        self.grammar_compiler = None
        self.model_name = "fake"


def fake_booted(runner: FakeRunner) -> "BootedEngine":
    return cast("BootedEngine", FakeBooted(runner))


def main() -> None:
    input_path, output_path, num_steps = sys.argv[1:]
    booted = fake_booted(StallingRunner(int(num_steps), Path(output_path)))
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(batch, "import_boot", lambda listener: lambda options, listener: booted)
        batch.run_batch(Path(input_path), Path(output_path), EngineOptions(), None)


if __name__ == "__main__":
    main()
