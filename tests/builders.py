"""Engines over fakes, and runners that stop, fail or wait on command."""

import threading
import time
from collections.abc import Callable
from typing import Any

from nanoserve.engine.async_bridge import AsyncEngine
from nanoserve.engine.engine_core import EngineCore
from nanoserve.engine.interface import GenerationRequest
from nanoserve.sched.admission import EngineLimits
from nanoserve.sched.sampling_params import SamplingParams
from nanoserve.sched.scheduler import Scheduler
from nanoserve.sched.step import ScheduledRequest, StepPlan, StepResult
from nanoserve.server.serving_context import ServingContext
from nanoserve.text.chat_template import ChatTemplate
from tests.fakes import ByteTokenizer, FakeRunner

TIMEOUT_S = 60.0  # for waits on events, on a machine however busy; who needs it has failed
END_ID = 4  # a byte that no text holds
TOOL_TEMPLATE = "{{ tools | tojson }}<tool_call>{% for m in messages %}{{ m }}{% endfor %}"
CHAT_TEMPLATE = "{% for m in messages %}<{{ m.role }}>{{ m.content }}\n{% endfor %}<assistant>"

HOSTILE_TEMPLATE = """{{ bos_token }}{% set word = messages[0].content %}
{%- if word == 'take for ever' %}
{%- for i in range(40000) %}{% set x = 'x' * 4000000 %}{% endfor %}
{%- elif word == 'take all memory' %}
{%- set ns = namespace(all=[]) %}
{%- for i in range(1000) %}{% set ns.all = [ns.all, ('x' * 1000000) | list] %}{% endfor %}
{%- elif word == 'refuse' %}{{ raise_exception('Only users may speak') }}
{%- endif %}
{{- word }} {{ add_generation_prompt }} {{ enable_thinking }}"""


class AsciiRunner(FakeRunner):
    """Draws printable ASCII only, so that every token is one character of text."""

    def next_token(self, last_token_id: int, position: int) -> int:
        return 33 + (last_token_id * 31 + position * 7 + 1) % 90


class GatedRunner(AsciiRunner):
    """Executes a step for each `gate.release()`; `open` lets everything through.

    Attributes:
        gate: Released for each step.
        arrived: Set once a step has come to the gate.
    """

    def __init__(self) -> None:
        super().__init__()
        self.gate = threading.Semaphore(0)
        self.arrived = threading.Event()
        self.is_open = False

    def open(self) -> None:
        self.is_open = True
        self.gate.release()

    def execute(self, step: StepPlan) -> StepResult:
        self.arrived.set()
        if not self.is_open and not self.gate.acquire(timeout=TIMEOUT_S):
            message = "nobody opened the gate"
            raise TimeoutError(message)
        return super().execute(step)


class FailingRunner(AsciiRunner):
    """Raises what `errors` holds for a call, counted from 0."""

    def __init__(self, errors: dict[int, BaseException]) -> None:
        super().__init__()
        self.errors = errors
        self.num_calls = 0

    def execute(self, step: StepPlan) -> StepResult:
        call, self.num_calls = self.num_calls, self.num_calls + 1
        if call in self.errors:
            raise self.errors[call]
        return super().execute(step)


class ScriptedRunner(FakeRunner):
    """Answers every request with the bytes of `text`, then ends it with `END_ID`."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self._tokens: list[int] = [*text.encode(), END_ID]
        self._prompt_lens: dict[str, int] = {}

    def draw(self, request: ScheduledRequest) -> int:
        start = self._prompt_lens.setdefault(request.request_id, request.context_len)
        return self._tokens[request.context_len - start]


def scripted_engine(text: str, **options: Any) -> AsyncEngine:
    """Return an engine whose answer to everything is `text`."""
    limits = make_limits(max_model_len=2048, eos_token_ids=frozenset({END_ID}))
    return make_engine(ScriptedRunner(text), limits, **options)


def make_limits(**changes: Any) -> EngineLimits:
    fields: dict[str, Any] = {
        "num_blocks": 512,
        "block_size": 4,
        "max_num_seqs": 8,
        "max_num_batched_tokens": 64,
        "max_model_len": 512,
        "vocab_size": 256,
    }
    return EngineLimits(**(fields | changes))


def make_core(
    runner: FakeRunner | None = None,
    limits: EngineLimits | None = None,
    codec: ByteTokenizer | None = None,
    **options: Any,
) -> EngineCore:
    scheduler = Scheduler(limits or make_limits())
    return EngineCore(scheduler, runner or AsciiRunner(), codec or ByteTokenizer(), **options)


def make_engine(
    runner: FakeRunner | None = None,
    limits: EngineLimits | None = None,
    max_in_flight: int = 256,
    clock: Callable[[], float] = time.monotonic,
    **options: Any,
) -> AsyncEngine:
    limits = limits or make_limits()
    core = make_core(runner, limits, clock=clock)
    return AsyncEngine(core, limits, max_in_flight, clock, **options)


def make_boot_info() -> dict[str, Any]:
    """Return what a boot says of itself, as far as the server looks into it."""
    return {
        "device": {"kind": "cuda", "name": "a card", "total_bytes": 1000, "num_cores": 2},
        "decode_mode": "captured",
        "kv_pool": {"num_blocks": 512, "block_bytes": 1, "bound_by": "slots"},
        "budget": [
            {
                "name": "weights",
                "planned_bytes": 300,
                "measured_bytes": 310,
                "residual_bytes": 10,
            },
            {
                "name": "unassigned",
                "planned_bytes": 700,
                "measured_bytes": None,
                "residual_bytes": None,
            },
        ],
    }


def make_context(engine: AsyncEngine, **changes: Any) -> ServingContext:
    fields: dict[str, Any] = {
        "engine": engine,
        "codec": ByteTokenizer(),
        "chat_template": ChatTemplate(CHAT_TEMPLATE, None, None),
        "model_name": "fake",
        "version": "0.0",
    }
    return ServingContext(**(fields | changes))


def make_request(
    request_id: str = "a", prompt: str = "hello", **sampling: Any
) -> GenerationRequest:
    params = SamplingParams(**({"max_tokens": 5} | sampling))
    return GenerationRequest(request_id, tuple(prompt.encode()), params)


def expected_text(prompt: str, num_tokens: int) -> str:
    """Return what `AsciiRunner` answers to a prompt."""
    return bytes(AsciiRunner().continuation(prompt.encode(), num_tokens)).decode()


def wait_for(engine: AsyncEngine, condition: Callable[[], bool]) -> None:
    """Return once `condition` holds; it is looked at whenever the engine may have moved."""
    deadline_s = time.monotonic() + TIMEOUT_S
    while not condition():
        assert time.monotonic() < deadline_s, "the condition was never met"
        engine.wait_until_idle(0.01)


def counter(values: list[float]) -> Callable[[], float]:
    """Return a clock that shows `values[0]`, which the test may change."""
    return lambda: values[0]
