"""Request fields to sampling: every field is honoured or refused.

Pure. Types have been checked in `protocol`, ranges are checked by `SamplingParams`; where
the wire has another name for a parameter, the error says the wire's.
"""

import json
import re
from typing import Any

from nanoserve.errors import InvalidRequestError
from nanoserve.sched.sampling_params import MAX_LOGPROBS, MAX_N, SamplingParams
from nanoserve.server.chat_protocol import ChatCompletionRequest
from nanoserve.server.protocol import CompletionRequest, GenerationFields

MAX_CHOICES = 128  # prompts * n of one call
MAX_COMPLETION_LOGPROBS = 5  # as in OpenAI's API
DEFAULT_COMPLETION_TOKENS = 16  # as in OpenAI's API
MAX_PRIORITY = 2**31 - 1
_LARGEST_VOCABULARY = 2**31 - 1  # ids are 32-bit everywhere below
_TOKEN_ID = re.compile(r"-?[0-9]{1,10}")

# Fields that change the answer and are not implemented: the values that change nothing.
NEUTRAL_VALUES: dict[str, tuple[Any, ...]] = {
    "suffix": (None, ""),
    "functions": (None, []),
    "function_call": ("none", None),
    "modalities": (None, ["text"]),
}


def refuse_unsupported(fields: GenerationFields) -> None:
    """Refuse fields whose value asks for something that is not implemented.

    Raises:
        InvalidRequestError: Names the field, its value and the one that is possible.
    """
    for name, neutral in NEUTRAL_VALUES.items():
        if getattr(fields, name, neutral[0]) not in neutral:
            possible = json.dumps(neutral[0])
            message = f"{name} is not supported by this server; leave it out or send {possible}."
            raise InvalidRequestError(message, name)
    if fields.stream_options is not None and not fields.stream:
        message = "stream_options is only possible with stream=true."
        raise InvalidRequestError(message, "stream_options")


def completion_sampling(fields: CompletionRequest) -> SamplingParams:
    """Return how a completion is sampled; `n` is the number to generate, `best_of` or `n`.

    Raises:
        InvalidRequestError: A field is out of range or not supported.
    """
    refuse_unsupported(fields)
    _check_range("logprobs", fields.logprobs, 0, MAX_COMPLETION_LOGPROBS)
    max_tokens = DEFAULT_COMPLETION_TOKENS if fields.max_tokens is None else fields.max_tokens
    scores_prompt = bool(fields.echo) and (fields.logprobs is not None or max_tokens == 0)
    if max_tokens == 0 and not fields.echo:
        message = "max_tokens is 0; it must be at least 1 (0 only with echo)."
        raise InvalidRequestError(message, "max_tokens")
    chooses = _num_samples(fields) > num_shown(fields)
    return _sampling(
        fields,
        max_tokens=max_tokens,
        n=_num_samples(fields),
        num_logprobs=0 if chooses and fields.logprobs is None else fields.logprobs,
        num_prompt_logprobs=(fields.logprobs or 0) if scores_prompt else None,
    )


def num_shown(fields: GenerationFields) -> int:
    """Return how many answers of each prompt the client gets."""
    return 1 if fields.n is None else fields.n


def _num_samples(fields: CompletionRequest) -> int:
    """Return how many answers of each prompt are generated, of which the best are shown."""
    shown = num_shown(fields)
    _check_range("n", shown, 1, MAX_N)
    best_of = shown if fields.best_of is None else fields.best_of
    if best_of < shown:
        message = f"best_of is {best_of}; it must be at least n, {shown}."
        raise InvalidRequestError(message, "best_of")
    _check_range("best_of", best_of, None, MAX_N)
    if best_of > shown and fields.stream:
        message = f"best_of is {best_of} and n is {shown}: which are best is not known in a stream."
        raise InvalidRequestError(message, "best_of")
    return best_of


def chat_sampling(fields: ChatCompletionRequest) -> SamplingParams:
    """Return how a chat answer is sampled; `max_tokens` None is what is left of the context.

    Raises:
        InvalidRequestError: A field is out of range or not supported.
    """
    refuse_unsupported(fields)
    _check_range("max_completion_tokens", fields.max_completion_tokens, 1, None)
    _check_range("top_logprobs", fields.top_logprobs, 0, MAX_LOGPROBS)
    if fields.top_logprobs is not None and not fields.logprobs:
        message = "top_logprobs is only possible with logprobs=true."
        raise InvalidRequestError(message, "top_logprobs")
    newer = fields.max_completion_tokens
    return _sampling(
        fields,
        max_tokens=fields.max_tokens if newer is None else newer,
        n=num_shown(fields),
        num_logprobs=(fields.top_logprobs or 0) if fields.logprobs else None,
    )


def _sampling(fields: GenerationFields, **resolved: int | None) -> SamplingParams:
    """Return the parameters; `resolved` are those that endpoints spell differently."""
    stop = () if fields.stop is None else fields.stop
    _check_range("priority", fields.priority, -MAX_PRIORITY, MAX_PRIORITY)
    parameters: dict[str, Any] = resolved
    return SamplingParams(
        temperature=fields.temperature,
        top_p=fields.top_p,
        top_k=_top_k(fields.top_k),
        min_p=fields.min_p,
        seed=fields.seed,
        presence_penalty=fields.presence_penalty,
        frequency_penalty=fields.frequency_penalty,
        repetition_penalty=fields.repetition_penalty,
        logit_bias=_logit_bias(fields.logit_bias or {}),
        stop=(stop,) if isinstance(stop, str) else tuple(stop),
        stop_token_ids=tuple(fields.stop_token_ids or ()),
        include_stop=bool(fields.include_stop_str_in_output),
        ignore_eos=bool(fields.ignore_eos),
        min_tokens=fields.min_tokens or 0,
        **parameters,
    )


def _top_k(top_k: int | None) -> int:
    """Return 0 for "all": None, vLLM's -1, and more than any vocabulary has."""
    return 0 if top_k is None or top_k == -1 or top_k > _LARGEST_VOCABULARY else top_k


def _logit_bias(biases: dict[str, float]) -> tuple[tuple[int, float], ...]:
    for key in biases:
        if not _TOKEN_ID.fullmatch(key):
            message = f"logit_bias has the key {key!r}; keys are token ids."
            raise InvalidRequestError(message, "logit_bias")
    by_id = {int(key): bias for key, bias in biases.items()}
    if len(by_id) < len(biases):
        message = "logit_bias has two keys for one token id, such as '5' and '05'."
        raise InvalidRequestError(message, "logit_bias")
    return tuple(by_id.items())


def _check_range(name: str, value: int | None, low: int | None, high: int | None) -> None:
    if value is None:
        return
    if low is not None and value < low:
        allowed = f"at least {low}" if high is None else f"between {low} and {high}"
    elif high is not None and value > high:
        allowed = f"at most {high}" if low is None else f"between {low} and {high}"
    else:
        return
    message = f"{name} is {value}; it must be {allowed}."
    raise InvalidRequestError(message, name)


def check_num_choices(num_choices: int, max_in_flight: int) -> None:
    """Refuse a call whose answers could never be in flight together.

    Raises:
        InvalidRequestError: prompts * n passes the bound.
    """
    limit = min(MAX_CHOICES, max_in_flight)
    if num_choices > limit:
        message = (
            f"The call asks for {num_choices} answers (prompts * n, or * best_of); "
            f"it may ask for {limit}."
        )
        raise InvalidRequestError(message, "n")
