"""A template that goes on for ever costs one call, and the next is rendered as ever."""

import os
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest

from nanoserve.errors import EngineError, InvalidRequestError
from nanoserve.text import template_process
from nanoserve.text.chat_template import ChatTemplate
from nanoserve.text.template_process import TemplateProcess, rendered_apart
from tests.builders import HOSTILE_TEMPLATE

NUM_OPEN_FILES = 1024
HELLO = [{"role": "user", "content": 'größe 👍\n"quoted"'}]


@pytest.fixture(scope="module")
def process() -> Iterator[TemplateProcess]:
    template = ChatTemplate(HOSTILE_TEMPLATE, bos_token="<s>", eos_token=None)
    with closing(TemplateProcess(template)) as shared:
        yield shared


def test_it_renders_as_its_template_does(process: TemplateProcess) -> None:
    """Messages, options and special tokens arrive as they were sent."""
    text = process.render(HELLO, add_generation_prompt=True, enable_thinking=False)

    assert text == '<s>größe 👍\n"quoted" True False'
    assert process.source == HOSTILE_TEMPLATE


@pytest.mark.parametrize("content", ["take for ever", "take all memory"])
def test_a_rendering_without_end_is_refused_and_the_next_one_served(
    process: TemplateProcess, content: str
) -> None:
    """Time and memory have an end, which is a refusal of the messages."""
    with pytest.raises(InvalidRequestError) as caught:
        process.render([{"role": "user", "content": content}])

    assert caught.value.param == "messages"
    assert process.render(HELLO).startswith("<s>größe")


def test_what_the_template_refuses_is_refused_in_its_words(process: TemplateProcess) -> None:
    """A refusal is no failure of the worker."""
    with pytest.raises(InvalidRequestError, match="Only users may speak") as caught:
        process.render([{"role": "user", "content": "refuse"}])

    assert caught.value.param == "messages"


def test_a_worker_that_has_ended_is_replaced(process: TemplateProcess) -> None:
    """Whoever ended it, the next conversation finds another."""
    process.close()

    assert process.render(HELLO).startswith("<s>größe")


def test_a_worker_may_start_beside_a_thousand_connections() -> None:
    """Its pipe is one of many open files."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = NUM_OPEN_FILES + 100
    if resource.RLIM_INFINITY != hard < wanted:
        pytest.skip(f"this process may open {hard} files")
    if resource.RLIM_INFINITY != soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    try:
        with ExitStack() as stack:
            for _ in range(NUM_OPEN_FILES):
                stack.enter_context(Path(os.devnull).open("rb"))
            process = stack.enter_context(closing(TemplateProcess(ChatTemplate("hi", None, None))))

            assert process.render(HELLO) == "hi"
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_signal_to_the_servers_group_is_not_the_workers(process: TemplateProcess) -> None:
    """Else a drain would blame the conversation that is being rendered."""
    worker_pid = process._worker._process.pid

    assert os.getpgid(worker_pid) != os.getpgid(0)


class EndedProcess(subprocess.Popen[bytes]):
    """A process that is over before anything is sent to it."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.wait()


@pytest.mark.parametrize(
    ("code", "process_class"),
    [("", EndedProcess), ("import sys; sys.stdin.readline()", subprocess.Popen)],
    ids=["before its template is sent", "after it has read its template"],
)
def test_a_worker_that_cannot_start_is_our_mistake(
    monkeypatch: pytest.MonkeyPatch, code: str, process_class: type[subprocess.Popen[bytes]]
) -> None:
    """Nobody waits for a process that is not there, and no client is blamed."""
    monkeypatch.setattr(template_process, "_COMMAND", (sys.executable, "-c", code))
    monkeypatch.setattr(subprocess, "Popen", process_class)

    with rendered_apart(ChatTemplate("hi", None, None)) as process:
        assert process is not None
        with pytest.raises(EngineError, match="could not be started"):
            process.render(HELLO)


def test_a_worker_that_gets_no_time_is_our_mistake(monkeypatch: pytest.MonkeyPatch) -> None:
    """A conversation is not refused for it, and its late answer is not the next one's."""
    with closing(TemplateProcess(ChatTemplate("{{ messages }}", None, None))) as process:
        process.render([])
        os.kill(process._worker._process.pid, signal.SIGSTOP)  # else it may still be in time
        with monkeypatch.context() as patch:
            patch.setattr(template_process, "_MAX_WAIT_S", 0.0)
            with pytest.raises(EngineError, match="This machine took more than 0 s"):
                process.render(HELLO)

        assert process.render([]) == "[]"


def test_no_template_needs_no_process() -> None:
    """A model that cannot chat starts nothing."""
    with rendered_apart(None) as process:
        assert process is None
