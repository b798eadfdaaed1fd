"""Offline generation: `LLM("smollm2").generate([...])` without a server.

Runs the same engine core as the server, in the caller's thread.
"""

import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from nanoserve.engine.interface import GenerationRequest, OutputDelta
from nanoserve.errors import EngineError, InvalidRequestError, OptionError
from nanoserve.launch.boot import boot
from nanoserve.launch.stages import BootListener
from nanoserve.options import DEFAULT_MODEL, EngineOptions
from nanoserve.plan.boot_plan import BootPlan
from nanoserve.sched.admission import admit_or_refuse
from nanoserve.sched.sampling_params import SamplingParams
from nanoserve.sched.step import FinishReason
from nanoserve.text.tokenizer import Tokenizer

Prompt = str | Sequence[int]


@dataclass(slots=True)
class CompletionOutput:
    """One answer.

    Attributes:
        index: Which of the `n` answers.
        text: The answer, without the stop string that ended it.
        token_ids: Its tokens, a stop id included.
        finish_reason: `stop` or `length`; None while it is generated.
        stop_reason: The stop string or id that ended it, if one did.
    """

    index: int
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None


@dataclass(slots=True)
class RequestOutput:
    """All answers to one prompt.

    Attributes:
        prompt: The text, or None where token ids were given.
        prompt_token_ids: The prompt's tokens.
        outputs: One per answer, `n` in all.
        num_cached_tokens: Prompt tokens taken from the prefix cache by the first answer.
        prompt_logprobs: Log-probability of each prompt token, None for the first; only
            where the sampling parameters ask for it.
    """

    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    num_cached_tokens: int = 0
    prompt_logprobs: list[float | None] | None = None


class LLM:
    """A model loaded in this process.

    Args:
        model: Preset name, local folder, .gguf file or hub id.
        listener: Told how the boot goes.
        **options: Fields of `EngineOptions`.

    Raises:
        OptionError: An option that does not exist, or an impossible value.
        NanoserveError: The boot was refused.

    Example:
        `LLM("smollm2").generate(["The capital of France is"], SamplingParams(temperature=0))`
    """

    def __init__(
        self,
        model: str | Path = DEFAULT_MODEL,
        listener: BootListener | None = None,
        **options: object,
    ) -> None:
        known = {option.name for option in fields(EngineOptions)}
        if unknown := sorted(options.keys() - known):
            message = f"LLM has no option {unknown[0]!r}. Options: {', '.join(sorted(known))}."
            raise OptionError(message)
        name = str(model) if isinstance(model, Path) else model
        engine_options = EngineOptions(model=name, **options)  # type: ignore[arg-type]
        self._booted = boot(engine_options, listener)
        self._num_calls = 0

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's tokenizer."""
        return self._booted.tokenizer

    @property
    def plan(self) -> BootPlan:
        """What the boot decided."""
        return self._booted.plan

    @property
    def num_blocks(self) -> int:
        """KV blocks that were allocated."""
        return self._booted.limits.num_blocks

    @property
    def num_preemptions(self) -> int:
        """How often a running request had to give its blocks back, since the boot."""
        return self._booted.core.snapshot().gauges.num_preemptions

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        show_progress: bool = True,
    ) -> list[RequestOutput]:
        """Answer every prompt; results are in the prompts' order.

        Args:
            prompts: A text, a list of token ids, or a list of either.
            sampling: For all prompts, or one per prompt; None takes the defaults.
            show_progress: Whether a terminal shows a bar.

        Raises:
            RequestError: A prompt or its sampling cannot be served; nothing was generated.
            EngineError: The engine failed a request.
        """
        batch = _as_batch(prompts)
        outputs, requests = self._prepare(batch, _as_samplings(sampling, len(batch)))
        owners: dict[str, tuple[RequestOutput, CompletionOutput]] = {}
        for output, request, index in requests:
            owners[request.request_id] = (output, output.outputs[index])
            self._booted.core.add(request)
        try:
            with _progress_bar(len(owners), show_progress) as advance:
                self._run(owners, advance)
        finally:
            for request_id in owners:
                self._booted.core.abort(request_id)
        return outputs

    def _prepare(
        self, prompts: Sequence[Prompt], samplings: Sequence[SamplingParams]
    ) -> tuple[list[RequestOutput], list[tuple[RequestOutput, GenerationRequest, int]]]:
        self._num_calls += 1
        outputs, requests = [], []
        for number, (prompt, sampling) in enumerate(zip(prompts, samplings, strict=True)):
            text = prompt if isinstance(prompt, str) else None
            token_ids = _token_ids(prompt) if text is None else self.tokenizer.encode(text)
            admitted = admit_or_refuse(self._booted.limits, tuple(token_ids), sampling)
            answers = [CompletionOutput(index) for index in range(sampling.n)]
            output = RequestOutput(text, token_ids, answers)
            outputs.append(output)
            for index in range(sampling.n):
                request_id = f"llm-{self._num_calls}-{number}-{index}"
                request = GenerationRequest(
                    request_id, tuple(token_ids), admitted.for_choice(index)
                )
                requests.append((output, request, index))
        return outputs, requests

    def _run(
        self, owners: dict[str, tuple[RequestOutput, CompletionOutput]], advance: Callable[[], None]
    ) -> None:
        core = self._booted.core
        while core.has_work:
            for delta in core.step():
                output, answer = owners[delta.request_id]
                _gain(output, answer, delta)
                if delta.finish_reason is not None:
                    advance()


def _gain(output: RequestOutput, answer: CompletionOutput, delta: OutputDelta) -> None:
    """Add what a request gained in one step to its answer."""
    if delta.finish_reason is FinishReason.ERROR:
        raise EngineError(delta.error or "The engine failed a request without saying why.")
    answer.text += delta.text
    answer.token_ids += delta.token_ids
    answer.finish_reason = delta.finish_reason
    answer.stop_reason = delta.stop_reason
    if answer.index == 0:
        output.num_cached_tokens = delta.num_cached_tokens
    if delta.prompt_logprobs is not None:
        output.prompt_logprobs = list(delta.prompt_logprobs)


def _as_batch(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    """Return a list of prompts; a single text or a single list of ids is a batch of one."""
    if isinstance(prompts, str):
        return [prompts]
    items = list(_iterable(prompts))
    if items and all(isinstance(item, int) for item in items):
        return [items]
    return items


def _iterable(value: object) -> Iterable[Any]:
    if isinstance(value, bytes) or not isinstance(value, Iterable):
        raise _no_prompt(value)
    return value


def _token_ids(prompt: object) -> list[int]:
    try:
        return [operator.index(token_id) for token_id in _iterable(prompt)]
    except TypeError:
        raise _no_prompt(prompt) from None


def _no_prompt(value: object) -> InvalidRequestError:
    message = f"A prompt is a text or a list of token ids; {value!r:.80} is neither."
    return InvalidRequestError(message, "prompt")


def _as_samplings(
    sampling: SamplingParams | Sequence[SamplingParams] | None, num_prompts: int
) -> list[SamplingParams]:
    if sampling is None or isinstance(sampling, SamplingParams):
        return [sampling or SamplingParams()] * num_prompts
    given: Any = sampling  # a caller's types are not checked
    is_list = isinstance(given, Sequence)
    if not is_list or not all(isinstance(item, SamplingParams) for item in given):
        message = f"sampling is {sampling!r:.80}; it must be SamplingParams, or a list of them."
        raise InvalidRequestError(message, "sampling")
    if len(sampling) != num_prompts:
        message = (
            f"There are {num_prompts} prompts and {len(sampling)} sampling parameters; "
            "give one for all or one for each."
        )
        raise InvalidRequestError(message, "sampling")
    return list(sampling)


@contextmanager
def _progress_bar(total: int, show: bool) -> Iterator[Callable[[], None]]:
    """Yield a function that moves the bar on by one; stderr, and only on a terminal."""
    console = Console(stderr=True)
    columns = (TextColumn("generate"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, disable=not (show and console.is_terminal)) as bar:
        task = bar.add_task("generate", total=total)
        yield lambda: bar.advance(task)
