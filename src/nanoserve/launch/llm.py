"""Offline generation: `LLM("smollm2").generate([...])` without a server.

Runs the same engine core as the server, in the caller's thread.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from itertools import islice
from pathlib import Path
from typing import Any

from nanoserve.engine.interface import GenerationRequest
from nanoserve.errors import InvalidRequestError, OptionError
from nanoserve.launch.boot import BootListener, boot
from nanoserve.launch.llm_input import Message, Prompt, as_conversations, as_prompts, as_samplings
from nanoserve.launch.llm_output import CompletionOutput, RequestOutput
from nanoserve.launch.progress_bar import progress_bar
from nanoserve.options import DEFAULT_MODEL, EngineOptions
from nanoserve.plan.boot_plan import BootPlan
from nanoserve.sched.admission import admit_or_refuse
from nanoserve.sched.sampling_params import SamplingParams
from nanoserve.text.tokenizer import Tokenizer

QUEUED_PER_PLACE = 2  # requests in the engine for each that may run: the queue is never empty


@dataclass(frozen=True, slots=True)
class _Job:
    """One answer to generate, and where it goes."""

    request: GenerationRequest
    output: RequestOutput
    index: int


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

        Any number of prompts will do: the engine is handed them as places become free.

        Args:
            prompts: A text, a list of token ids, or a list of either.
            sampling: For all prompts, or one per prompt; None takes the defaults.
            show_progress: Whether a terminal shows a bar.

        Raises:
            RequestError: A prompt or its sampling cannot be served; nothing was generated.
            EngineError: The engine failed a request.
        """
        outputs = []
        for prompt in as_prompts(prompts):
            text = prompt if isinstance(prompt, str) else None
            token_ids = self.tokenizer.encode(prompt) if isinstance(prompt, str) else prompt
            outputs.append(RequestOutput(text, token_ids, []))
        return self._answer(outputs, sampling, show_progress)

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        sampling: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        template_kwargs: dict[str, Any] | None = None,
        show_progress: bool = True,
    ) -> list[RequestOutput]:
        """Answer every conversation with the assistant's next turn.

        Args:
            messages: One conversation, or a list of them; a message is a dict with `role`
                and `content`.
            sampling: For all conversations, or one per conversation; None takes the defaults.
            template_kwargs: Further variables of the model's chat template.
            show_progress: Whether a terminal shows a bar.

        Raises:
            RequestError: The model has no chat template, or a conversation or its sampling
                cannot be served; nothing was generated.
            EngineError: The engine failed a request.
        """
        template = self._booted.chat_template
        if template is None:
            message = "This model has no chat template. Use LLM.generate."
            raise InvalidRequestError(message, "messages")
        outputs = []
        for conversation in as_conversations(messages):
            text = template.render(conversation, **(template_kwargs or {}))
            token_ids = self.tokenizer.encode(text, add_special_tokens=False)  # it has its own
            outputs.append(RequestOutput(text, token_ids, []))
        return self._answer(outputs, sampling, show_progress)

    def _answer(
        self,
        outputs: list[RequestOutput],
        sampling: SamplingParams | Sequence[SamplingParams] | None,
        show_progress: bool,
    ) -> list[RequestOutput]:
        """Fill `outputs`, whose prompts are set; all are admitted before any is started."""
        samplings = [
            admit_or_refuse(self._booted.limits, output.prompt_token_ids, params)
            for output, params in zip(outputs, as_samplings(sampling, len(outputs)), strict=True)
        ]
        self._num_calls += 1
        total = sum(params.n for params in samplings)
        with progress_bar("generate", total, show_progress) as advance:
            self._run(self._jobs(outputs, samplings), advance)
        return outputs

    def _jobs(
        self, outputs: Iterable[RequestOutput], samplings: Iterable[SamplingParams]
    ) -> Iterator[_Job]:
        for number, (output, sampling) in enumerate(zip(outputs, samplings, strict=True)):
            token_ids = tuple(output.prompt_token_ids)
            for index in range(sampling.n):
                output.outputs.append(CompletionOutput(index))
                request_id = f"llm-{self._num_calls}-{number}-{index}"
                request = GenerationRequest(request_id, token_ids, sampling.for_choice(index))
                yield _Job(request, output, index)

    def _run(self, jobs: Iterator[_Job], advance: Callable[[], None]) -> None:
        core = self._booted.core
        most = QUEUED_PER_PLACE * self._booted.limits.max_num_seqs
        running: dict[str, _Job] = {}
        try:
            while True:
                for job in islice(jobs, most - len(running)):
                    running[job.request.request_id] = job
                    core.add(job.request)
                if not running:
                    return
                for delta in core.step():
                    job = running[delta.request_id]
                    job.output.gain(job.index, delta)
                    if delta.finish_reason is not None:
                        del running[delta.request_id]
                        advance()
        finally:
            for request_id in running:
                core.abort(request_id)
