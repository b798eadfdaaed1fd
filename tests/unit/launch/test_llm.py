"""`LLM`: many prompts through the engine, and what comes back."""

import json
from dataclasses import asdict
from types import SimpleNamespace
from typing import Any

import pytest

from nanoserve.errors import EngineError, InvalidRequestError, PromptTooLongError
from nanoserve.launch.llm import LLM, QUEUED_PER_PLACE
from nanoserve.sched.sampling_params import SamplingParams
from nanoserve.text.chat_template import ChatTemplate
from tests.builders import CHAT_TEMPLATE, AsciiRunner, expected_text, make_core, make_limits
from tests.fakes import ByteTokenizer, fake_logprobs
from tests.unit.launch.test_boot import folder  # noqa: F401 - a fixture


@pytest.fixture
def llm(folder: Any) -> LLM:  # noqa: F811
    return LLM(folder, device="cpu", num_blocks=16)


@pytest.mark.parametrize("prompts", [None, 5, b"ab", [None], [1.5], ["a", 5], [["a"]], [b"a"]])
def test_what_is_no_prompt_is_refused(llm: LLM, prompts: Any) -> None:
    """The message quotes the value, and the next call is answered."""
    with pytest.raises(InvalidRequestError, match="text or a list of token ids"):
        llm.generate(prompts)

    mixed: list[Any] = ["a", [98]]
    assert len(llm.generate(mixed)) == 2


@pytest.mark.parametrize("sampling", [5, {"temperature": 0}, [None]])
def test_what_is_no_sampling_is_refused(llm: LLM, sampling: Any) -> None:
    """The message names what is meant."""
    with pytest.raises(InvalidRequestError, match="it must be SamplingParams"):
        llm.generate(["a"], sampling)


def test_interrupted_call_leaves_nothing_behind(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C in the middle of a step frees the blocks; the next answer is undisturbed."""
    greedy = SamplingParams(temperature=0.0, max_tokens=8)
    expected = llm.generate("a", greedy)[0].outputs[0].token_ids
    core = llm._booted.core

    def interrupt(plan: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(core._runner, "execute", interrupt)
        with pytest.raises(KeyboardInterrupt):
            llm.generate(["b", "c"], greedy)

    assert core.snapshot().gauges.num_used_blocks == 0
    assert llm.generate("a", greedy)[0].outputs[0].token_ids == expected


@pytest.fixture
def runner() -> AsciiRunner:
    return AsciiRunner()


@pytest.fixture
def fake_llm(runner: AsciiRunner, monkeypatch: pytest.MonkeyPatch) -> LLM:
    """Return an `LLM` over fakes: `booted.chat_template` may be changed."""
    booted = SimpleNamespace(
        core=make_core(runner),
        limits=make_limits(),
        tokenizer=ByteTokenizer(),
        chat_template=ChatTemplate(CHAT_TEMPLATE, None, None),
    )
    monkeypatch.setattr("nanoserve.launch.llm.boot", lambda options, listener: booted)
    return LLM()


def test_a_thousand_prompts_are_answered_in_their_order(
    fake_llm: LLM, runner: AsciiRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engine is handed a few at a time, and each prompt gets its own answer."""
    core = fake_llm._booted.core
    most_in_core = 0
    execute = runner.execute

    def watch(step: Any) -> Any:
        nonlocal most_in_core
        most_in_core = max(most_in_core, len(core._requests))
        return execute(step)

    monkeypatch.setattr(runner, "execute", watch)
    prompts = [f"prompt {number}" for number in range(1000)]

    outputs = fake_llm.generate(prompts, SamplingParams(max_tokens=2))

    assert [output.prompt for output in outputs] == prompts
    assert [o.outputs[0].text for o in outputs] == [expected_text(p, 2) for p in prompts]
    assert most_in_core == QUEUED_PER_PLACE * 8


def test_logprobs_come_with_the_tokens_and_the_prompt(fake_llm: LLM) -> None:
    """One entry per token of the answer, one per token of the prompt with None first."""
    sampling = SamplingParams(max_tokens=3, num_logprobs=1, num_prompt_logprobs=0)

    (output,) = fake_llm.generate("abc", sampling)

    (answer,) = output.outputs
    assert answer.logprobs == [fake_logprobs(token_id, 1) for token_id in answer.token_ids]
    assert output.prompt_logprobs == [None, fake_logprobs(98, 0), fake_logprobs(99, 0)]


def test_a_prompt_can_be_scored_without_an_answer(fake_llm: LLM) -> None:
    """With max_tokens 0 there is an empty answer and the prompt's scores."""
    (output,) = fake_llm.generate("ab", SamplingParams(max_tokens=0, num_prompt_logprobs=0))

    assert output.prompt_logprobs == [None, fake_logprobs(98, 0)]
    assert (output.outputs[0].text, output.outputs[0].finish_reason) == ("", "length")


def test_outputs_are_json(fake_llm: LLM) -> None:
    """What `asdict` makes of an output can be written and read back."""
    sampling = SamplingParams(max_tokens=2, n=2, num_logprobs=2, num_prompt_logprobs=1)

    (output,) = fake_llm.generate("ab", sampling)

    read = json.loads(json.dumps(asdict(output), allow_nan=False))
    assert [answer["index"] for answer in read["outputs"]] == [0, 1]
    assert read["outputs"][0]["finish_reason"] == "length"
    assert read["prompt_logprobs"][1]["top"] == [[98, -1.0]]


def test_choices_of_a_seed_have_seeds_of_their_own(fake_llm: LLM, runner: AsciiRunner) -> None:
    """Answer k of a prompt is drawn with seed + k."""
    fake_llm.generate(["a", "b"], SamplingParams(max_tokens=1, n=3, seed=7))

    seeds = [part.seed for step in runner.steps for part in step.scheduled]
    assert seeds == [7, 8, 9] * 2


def test_conversations_are_rendered_by_the_template(fake_llm: LLM) -> None:
    """One conversation or many; the template alone brings special tokens."""
    conversation = [{"role": "user", "content": "hi"}]
    rendered = "<user>hi\n<assistant>"

    (single,) = fake_llm.chat(conversation, SamplingParams(max_tokens=4))
    both = fake_llm.chat([conversation, conversation], SamplingParams(max_tokens=4))

    assert single.prompt == rendered
    assert single.outputs[0].text == expected_text(rendered, 4)
    assert [output.outputs[0].text for output in both] == [single.outputs[0].text] * 2


def test_chat_without_a_template_is_refused(fake_llm: LLM) -> None:
    """The message points to what works."""
    fake_llm._booted.chat_template = None  # type: ignore[misc]

    with pytest.raises(InvalidRequestError, match=r"Use LLM\.generate"):
        fake_llm.chat([{"role": "user", "content": "hi"}])


def test_one_prompt_that_cannot_be_served_starts_none(fake_llm: LLM, runner: AsciiRunner) -> None:
    """All are checked before the first is computed."""
    with pytest.raises(PromptTooLongError):
        fake_llm.generate(["fine", "x" * 600])

    assert runner.steps == []


def test_a_failed_request_ends_the_call_with_its_problem(
    fake_llm: LLM, runner: AsciiRunner
) -> None:
    """The others are given up, and the next call is answered."""
    runner.broken = {"llm-1-1-0"}

    with pytest.raises(EngineError, match="not finite"):
        fake_llm.generate(["a", "b", "c"])

    assert fake_llm._booted.core.snapshot().gauges.num_used_blocks == 0
    assert len(fake_llm.generate("a")) == 1
