"""The synchronous step: text, aborts, out of memory, faults of one request."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from nanoserve.engine.engine_core import EngineCore
from nanoserve.engine.interface import GenerationRequest, OutputDelta
from nanoserve.sched.scheduler import Scheduler
from nanoserve.sched.step import FinishReason, StepExecution, StepMode, StepPlan, StepResult
from nanoserve.sched.step_pace import StepPace
from tests.builders import (
    AsciiRunner,
    FailingRunner,
    expected_text,
    make_core,
    make_limits,
    make_request,
)
from tests.fakes import ByteDecodeStream, ByteTokenizer, fake_logprobs


class OutOfMemoryError(RuntimeError):
    """Named as torch's."""


def run(core: EngineCore) -> dict[str, list[OutputDelta]]:
    """Step until nothing is left; return the deltas by request."""
    deltas: dict[str, list[OutputDelta]] = {}
    while core.has_work:
        for delta in core.step():
            deltas.setdefault(delta.request_id, []).append(delta)
    return deltas


def text_of(deltas: Sequence[OutputDelta]) -> str:
    return "".join(delta.text for delta in deltas)


def test_each_request_gets_its_own_text() -> None:
    """Requests in one batch answer as they do alone, and end once."""
    core = make_core()
    prompts = {f"r{i}": "x" * (i * 9 + 1) for i in range(12)}
    for request_id, prompt in prompts.items():
        core.add(make_request(request_id, prompt, max_tokens=7))

    deltas = run(core)

    assert {key: text_of(value) for key, value in deltas.items()} == {
        key: expected_text(prompt, 7) for key, prompt in prompts.items()
    }
    ends = [[d.finish_reason for d in value if d.finish_reason] for value in deltas.values()]
    assert ends == [[FinishReason.LENGTH]] * 12


def test_stop_string_releases_the_blocks() -> None:
    """A request that ends on a stop string leaves the scheduler in the same step."""
    core = make_core()
    stop = expected_text("hello", 6)[3:5]
    core.add(make_request(max_tokens=100, stop=(stop,)))

    deltas = run(core)["a"]

    assert text_of(deltas) == expected_text("hello", 6)[:3]
    assert deltas[-1].finish_reason is FinishReason.STOP
    assert sum(len(delta.token_ids) for delta in deltas) == 5
    assert core.snapshot().gauges.num_used_blocks == 0


def test_abort_while_running_releases_the_blocks() -> None:
    """An aborted request ends with ABORT, once, and holds nothing."""
    core = make_core()
    core.add(make_request(max_tokens=100))
    core.step()

    delta = core.abort("a")

    assert delta is not None
    assert delta.finish_reason is FinishReason.ABORT
    assert core.abort("a") is None
    assert core.snapshot().gauges.num_used_blocks == 0
    assert not core.has_work


def test_abort_while_waiting_ends_the_request() -> None:
    """A queued request can be aborted before it ever ran."""
    core = make_core(limits=make_limits(max_num_seqs=1))
    core.add(make_request("first", max_tokens=3))
    core.add(make_request("second", max_tokens=3))
    core.step()

    core.abort("second")

    assert set(run(core)) == {"first"}


def test_prompt_logprobs_are_collected_over_chunks() -> None:
    """The first delta scores every prompt token but the first."""
    core = make_core(limits=make_limits(max_num_seqs=1, max_num_batched_tokens=4))
    core.add(make_request(prompt="twelve bytes", max_tokens=2, num_prompt_logprobs=1))

    deltas = run(core)["a"]

    scores = [fake_logprobs(token_id, 1) for token_id in b"welve bytes"]
    assert deltas[0].prompt_logprobs == (None, *scores)
    assert deltas[1].prompt_logprobs is None


def test_scoring_call_has_one_delta_with_the_scores() -> None:
    """With max_tokens 0 a prompt that fills the context is scored and nothing is drawn."""
    core = make_core(limits=make_limits(max_model_len=12, max_num_seqs=1))
    core.add(make_request(prompt="twelve bytes", max_tokens=0, num_prompt_logprobs=0))

    (delta,) = run(core)["a"]

    scores = [fake_logprobs(token_id, 0) for token_id in b"welve bytes"]
    assert delta.prompt_logprobs == (None, *scores)
    assert (delta.text, delta.token_ids, delta.finish_reason) == ("", (), FinishReason.LENGTH)
    assert core.snapshot().generation_tokens == 0


def test_each_token_comes_with_its_logprobs_where_asked() -> None:
    """A delta's logprobs are those of its tokens; a neighbour that did not ask gets none."""
    core = make_core()
    core.add(make_request("asks", num_logprobs=2))
    core.add(make_request("does not"))

    deltas = run(core)

    for delta in deltas["asks"]:
        assert delta.logprobs == tuple(fake_logprobs(t, 2) for t in delta.token_ids)
    assert all(delta.logprobs == () for delta in deltas["does not"])


def test_request_whose_logits_are_broken_fails_alone() -> None:
    """It ends with what the runner said; its neighbour is served as if nothing had happened."""
    runner = AsciiRunner()
    core = make_core(runner)
    core.add(make_request("bad", num_prompt_logprobs=0))
    core.add(make_request("good"))
    runner.broken = {"bad"}

    deltas = run(core)

    (failed,) = deltas["bad"]
    assert (failed.finish_reason, failed.error) == (
        FinishReason.ERROR,
        "The logits are not finite.",
    )
    assert failed.prompt_logprobs is None
    assert text_of(deltas["good"]) == expected_text("hello", 5)
    assert core.snapshot().finished[FinishReason.ERROR] == 1


class _Grammar:
    """Allows `answer` and then the stop id 0; raises where it is told to."""

    def __init__(self, answer: bytes, fault: str = "") -> None:
        self.answer = answer
        self.fault = fault
        self.num_accepted = 0

    def allowed_tokens(self) -> bytes:
        if self.fault == "allowed" and self.num_accepted == 2:
            message = "no such rule"
            raise RuntimeError(message)
        token_id = self.answer[self.num_accepted] if self.num_accepted < len(self.answer) else 0
        return (1 << token_id).to_bytes(32, "little")

    def accept(self, token_id: int) -> None:
        if self.fault == "accept" and self.num_accepted == 2:
            message = "no such token"
            raise ValueError(message)
        assert token_id == self.answer[self.num_accepted]
        self.num_accepted += 1


def with_grammar(request_id: str, grammar: _Grammar) -> GenerationRequest:
    request = make_request(request_id, max_tokens=20, stop_token_ids=(0,))
    return replace(request, grammar=grammar)


def test_grammar_decides_what_may_be_drawn() -> None:
    """The answer follows it to the stop id, chunked prefill or not; a neighbour is free."""
    core = make_core(limits=make_limits(max_num_seqs=2, max_num_batched_tokens=3))
    core.add(with_grammar("bound", _Grammar(b'{"a":1}')))
    core.add(make_request("free"))

    deltas = run(core)

    assert text_of(deltas["bound"]) == '{"a":1}'
    assert deltas["bound"][-1].stop_reason == 0
    assert text_of(deltas["free"]) == expected_text("hello", 5)


@pytest.mark.parametrize("fault", ["allowed", "accept"])
def test_fault_in_a_grammar_is_that_requests_error(fault: str) -> None:
    """Before the draw or after it, the request fails alone and its blocks are free."""
    core = make_core()
    core.add(with_grammar("bad", _Grammar(b"abcdef", fault)))
    core.add(with_grammar("good", _Grammar(b"abcdef")))

    deltas = run(core)

    assert deltas["bad"][-1].finish_reason is FinishReason.ERROR
    assert "no such" in (deltas["bad"][-1].error or "")
    assert text_of(deltas["good"]) == "abcdef"
    assert core.snapshot().gauges.num_used_blocks == 0


def test_priority_and_salt_reach_the_scheduler() -> None:
    """The more urgent request overtakes in the queue; another salt finds no prefix."""
    core = make_core(limits=make_limits(max_num_seqs=1))
    core.add(make_request("running", "twelve bytes", max_tokens=2))
    core.step()
    core.add(make_request("later", "twelve bytes"))
    core.add(replace(make_request("urgent", "twelve bytes"), priority=-1, salt=b"other"))

    deltas = run(core)

    assert list(deltas) == ["running", "urgent", "later"]
    assert deltas["urgent"][0].num_cached_tokens == 0
    assert deltas["later"][0].num_cached_tokens == 8


def test_prefix_hit_is_reported() -> None:
    """The second of two equal prompts says how many tokens it did not compute."""
    core = make_core()
    core.add(make_request("a", "twelve bytes"))
    run(core)
    core.add(make_request("b", "twelve bytes"))

    deltas = run(core)["b"]

    assert deltas[-1].num_cached_tokens == 8
    assert core.snapshot().cached_prompt_tokens == 8


@pytest.mark.parametrize("error", [MemoryError("no"), OutOfMemoryError("no")])
def test_out_of_memory_fails_the_newest_and_goes_on(error: Exception) -> None:
    """The older half is served as if nothing had happened."""
    core = make_core(FailingRunner({1: error}))
    for name in ("old", "middle", "new"):
        core.add(make_request(name, name))

    deltas = run(core)

    assert text_of(deltas["old"]) == expected_text("old", 5)
    for name in ("middle", "new"):
        assert deltas[name][-1].finish_reason is FinishReason.ERROR
        assert "memory" in (deltas[name][-1].error or "")
    assert core.snapshot().gauges.num_used_blocks == 0


def test_out_of_memory_of_a_single_request_is_its_own_error() -> None:
    """With one request running it fails alone, and the engine serves the next."""
    core = make_core(FailingRunner({0: MemoryError()}))
    core.add(make_request("a"))
    failed = run(core)
    core.add(make_request("b"))

    assert failed["a"][-1].finish_reason is FinishReason.ERROR
    assert text_of(run(core)["b"]) == expected_text("hello", 5)


def test_smaller_step_counts_as_it_ran() -> None:
    """What is said of the repeated step is kept: its mode, its padding."""
    runner = FailingRunner({1: MemoryError()})
    runner.execution = StepExecution(StepMode.REPLAYED, padded_rows=3)
    core = make_core(runner)
    for name in ("a", "b"):
        core.add(make_request(name, max_tokens=2))
    core.step()
    core.step()

    steps = core.snapshot().steps

    assert steps.num_decode_steps[StepMode.REPLAYED] == 1
    assert steps.padded_rows == 6


def test_out_of_memory_twice_in_a_step_is_raised() -> None:
    """When the smaller step fails as well, the loop must end."""
    core = make_core(FailingRunner({0: MemoryError(), 1: MemoryError()}))
    core.add(make_request("a"))
    core.add(make_request("b"))

    with pytest.raises(MemoryError):
        core.step()


def test_other_exceptions_are_raised() -> None:
    """A fault of the runner is not one request's fault."""
    core = make_core(FailingRunner({0: RuntimeError("device lost")}))
    core.add(make_request())

    with pytest.raises(RuntimeError, match="device lost"):
        core.step()


class _FragileTokenizer(ByteTokenizer):
    """Its first stream breaks on the third token."""

    def __init__(self) -> None:
        self.num_streams = 0

    def decode_stream(self) -> ByteDecodeStream:
        self.num_streams += 1
        return _BreakingStream() if self.num_streams == 1 else ByteDecodeStream()


class _BreakingStream(ByteDecodeStream):
    def __init__(self) -> None:
        super().__init__()
        self.num_pushed = 0

    def push(self, token_id: int) -> str:
        self.num_pushed += 1
        if self.num_pushed == 3:
            message = "bad token"
            raise ValueError(message)
        return super().push(token_id)


def test_fault_in_decoding_is_that_requests_error() -> None:
    """Another request in the same batch is served."""
    core = make_core(codec=_FragileTokenizer())
    core.add(make_request("bad"))
    core.add(make_request("good"))

    deltas = run(core)

    assert deltas["bad"][-1].finish_reason is FinishReason.ERROR
    assert "bad token" in (deltas["bad"][-1].error or "")
    assert text_of(deltas["good"]) == expected_text("hello", 5)


def test_preempted_requests_are_counted_once() -> None:
    """Under preemption, TTFT and e2e are observed once per request and no token is lost."""
    limits = make_limits(num_blocks=12, max_num_batched_tokens=16)
    core = make_core(limits=limits)
    for i in range(8):
        core.add(make_request(f"r{i}", "prompt" + str(i), max_tokens=30))

    deltas = run(core)

    stats = core.snapshot()
    assert stats.gauges.num_preemptions > 0
    assert (stats.ttft_s.count, stats.e2e_s.count) == (8, 8)
    assert stats.generation_tokens == 8 * 30
    assert stats.finished[FinishReason.LENGTH] == 8
    for i in range(8):
        assert text_of(deltas[f"r{i}"]) == expected_text("prompt" + str(i), 30)


class TimedRunner(AsciiRunner):
    """Takes half a second for each decode and a tenth for each token of a prompt."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 0.0

    def execute(self, step: StepPlan) -> StepResult:
        lens = [len(part.token_ids) for part in step.scheduled]
        self.now_s += sum(0.5 if length == 1 else 0.1 * length for length in lens)
        return super().execute(step)


def test_the_scheduler_is_told_what_a_step_cost() -> None:
    """Seconds from plan to tokens, apart for prompts and decodes: the next prompt is cut by them."""
    runner = TimedRunner()
    scheduler = Scheduler(make_limits(), pace=StepPace())
    core = EngineCore(scheduler, runner, ByteTokenizer(), lambda: runner.now_s)
    core.add(make_request("a", "x" * 40, max_tokens=50))
    for _ in range(3):
        core.step()

    core.add(make_request("b", "y" * 100, max_tokens=1))
    core.step()

    running = scheduler.request("b")
    assert running is not None
    # One prompt beside one decode gets four times its half second: 20 tokens, in eights.
    assert running.num_computed_tokens in (16, 24)
