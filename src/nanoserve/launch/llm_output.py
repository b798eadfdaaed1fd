"""What `LLM` returns: answers that grow with the engine's deltas.

`dataclasses.asdict` of these is plain JSON: no number in it is infinite or NaN.
"""

from dataclasses import dataclass, field

from nanoserve.engine.interface import OutputDelta
from nanoserve.errors import EngineError
from nanoserve.sched.step import FinishReason, TokenLogprobs


@dataclass(slots=True)
class CompletionOutput:
    """One answer.

    Attributes:
        index: Which of the `n` answers.
        text: The answer, without the stop string that ended it unless it is to be included.
        token_ids: Its tokens, a stop id and those under a stop string included.
        finish_reason: `stop` or `length`; None while it is generated.
        stop_reason: The stop string or id that ended it, if one did.
        logprobs: How likely each of `token_ids` was; empty unless asked for.
    """

    index: int
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None
    logprobs: list[TokenLogprobs] = field(default_factory=list)


@dataclass(slots=True)
class RequestOutput:
    """All answers to one prompt.

    Attributes:
        prompt: The text, for a conversation as the template renders it; None where token
            ids were given.
        prompt_token_ids: The prompt's tokens.
        outputs: One per answer, `n` in all.
        num_cached_tokens: Prompt tokens taken from the prefix cache by the first answer.
        prompt_logprobs: How likely each prompt token was, None for the first; only where
            the sampling parameters ask for it.
    """

    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    num_cached_tokens: int = 0
    prompt_logprobs: list[TokenLogprobs | None] | None = None

    def gain(self, index: int, delta: OutputDelta) -> None:
        """Add what answer `index` gained in one step.

        Raises:
            EngineError: The engine failed it.
        """
        if delta.finish_reason is FinishReason.ERROR:
            raise EngineError(delta.error or "The engine failed a request without saying why.")
        answer = self.outputs[index]
        answer.text += delta.text
        answer.token_ids += delta.token_ids
        answer.logprobs += delta.logprobs
        answer.finish_reason = delta.finish_reason
        answer.stop_reason = delta.stop_reason
        if index == 0:
            self.num_cached_tokens = delta.num_cached_tokens
            if delta.prompt_logprobs is not None:
                self.prompt_logprobs = list(delta.prompt_logprobs)
