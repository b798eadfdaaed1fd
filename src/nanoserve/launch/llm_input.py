"""What Python callers give `LLM`, where nothing has checked their types."""

import operator
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from nanoserve.errors import InvalidRequestError
from nanoserve.sched.sampling_params import SamplingParams

Prompt = str | Sequence[int]
Message = Mapping[str, Any]  # role and content, as a chat template reads them


def as_prompts(prompts: Prompt | Sequence[Prompt]) -> list[str | list[int]]:
    """Return a list of prompts; a single text or a single list of ids is a batch of one.

    Raises:
        InvalidRequestError: Something is neither a text nor a list of token ids.
    """
    if isinstance(prompts, str):
        return [prompts]
    items = list(_iterable(prompts))
    if items and all(isinstance(item, int) for item in items):
        return [_token_ids(items)]
    return [item if isinstance(item, str) else _token_ids(item) for item in items]


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


def as_conversations(
    messages: Sequence[Message] | Sequence[Sequence[Message]],
) -> list[list[dict[str, Any]]]:
    """Return a list of conversations; a single list of messages is a batch of one.

    Raises:
        InvalidRequestError: Something is no list of messages, or a list is empty.
    """
    if not _is_list(messages):
        raise _no_conversation(messages)
    items: list[Any] = list(messages)
    if items and all(isinstance(item, Mapping) for item in items):
        items = [items]
    for item in items:
        if not _is_list(item) or not all(isinstance(message, Mapping) for message in item):
            raise _no_conversation(item)
    return [[dict(message) for message in item] for item in items]


def _is_list(value: object) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str | bytes) and len(value) > 0


def _no_conversation(value: object) -> InvalidRequestError:
    message = (
        f"A conversation is a list of messages, each with role and content; {value!r:.80} is none."
    )
    return InvalidRequestError(message, "messages")


def as_samplings(
    sampling: SamplingParams | Sequence[SamplingParams] | None, num_prompts: int
) -> list[SamplingParams]:
    """Return one set of parameters for each prompt.

    Raises:
        InvalidRequestError: They are no `SamplingParams`, or not as many as the prompts.
    """
    if sampling is None or isinstance(sampling, SamplingParams):
        return [sampling or SamplingParams()] * num_prompts
    given: Any = sampling
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
