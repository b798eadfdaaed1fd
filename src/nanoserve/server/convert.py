"""Request fields to prompts and sampling: every field is honoured or refused.

Pure but for the codec and the template it is handed; called off the event loop, since
long prompts cost time. Types have been checked in `protocol`.
"""

import json
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

from nanoserve.engine.interface import TextCodec
from nanoserve.errors import InvalidRequestError, PromptTooLongError
from nanoserve.sched.admission import EngineLimits, admit_or_refuse
from nanoserve.sched.sampling_params import SamplingParams
from nanoserve.server.protocol import (
    ChatCompletionRequest,
    ChatMessage,
    CompletionRequest,
    GenerationFields,
)

MAX_CHOICES = 128  # prompts * n of one call
_LARGEST_VOCABULARY = 2**31 - 1  # ids are 32-bit everywhere below
_MAX_COMPOSED_CHARS = 4  # that Unicode normalisation makes one character of
DEFAULT_COMPLETION_TOKENS = 16  # as in OpenAI's API

# Fields that change the answer and are not implemented: the values that change nothing.
NEUTRAL_VALUES: dict[str, tuple[Any, ...]] = {
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "repetition_penalty": (1,),
    "logit_bias": (None, {}),
    "min_tokens": (0, None),
    "include_stop_str_in_output": (False, None),
    "priority": (0, None),
    "echo": (False, None),
    "suffix": (None, ""),
    "logprobs": (None, False),
    "top_logprobs": (0, None),
    "tools": (None, []),
    "tool_choice": ("none", None),
    "functions": (None, []),
    "function_call": ("none", None),
    "response_format": (None, {"type": "text"}),
    "modalities": (None, ["text"]),
}


class ChatRenderer(Protocol):
    """What the server needs of a chat template."""

    def render(
        self,
        messages: list[dict[str, Any]],
        *,
        add_generation_prompt: bool = True,
        **variables: Any,
    ) -> str:
        """Return the conversation as the model was trained to read it."""
        ...


def refuse_unsupported(fields: GenerationFields) -> None:
    """Refuse fields whose value asks for something that is not implemented.

    Raises:
        InvalidRequestError: Names the field, its value and the one that is possible.
    """
    for name, neutral in NEUTRAL_VALUES.items():
        value = getattr(fields, name, neutral[0])
        possible = json.dumps(neutral[0])
        if not any(value == allowed and type(value) in _like(allowed) for allowed in neutral):
            message = f"{name} is not supported by this server; leave it out or send {possible}."
            raise InvalidRequestError(message, name)
    if fields.stream_options is not None and not fields.stream:
        message = "stream_options is only possible with stream=true."
        raise InvalidRequestError(message, "stream_options")


def _like(allowed: Any) -> tuple[type, ...]:
    """Return the types that may equal a neutral value: 0 is no False for `logprobs`."""
    is_number = isinstance(allowed, (int, float)) and not isinstance(allowed, bool)
    return (int, float) if is_number else (type(allowed),)


def completion_sampling(fields: CompletionRequest) -> SamplingParams:
    """Return how a completion is sampled.

    Raises:
        InvalidRequestError: A field is out of range or not supported.
    """
    refuse_unsupported(fields)
    if fields.best_of is not None and fields.best_of != (fields.n or 1):
        message = (
            f"best_of is {fields.best_of}; this server supports only best_of = n ({fields.n})."
        )
        raise InvalidRequestError(message, "best_of")
    default = DEFAULT_COMPLETION_TOKENS
    return _sampling(fields, default if fields.max_tokens is None else fields.max_tokens)


def chat_sampling(fields: ChatCompletionRequest) -> SamplingParams:
    """Return how a chat answer is sampled; `max_tokens` None is what is left of the context.

    Raises:
        InvalidRequestError: A field is out of range or not supported.
    """
    refuse_unsupported(fields)
    if fields.max_completion_tokens is not None:
        if fields.max_completion_tokens < 1:
            message = (
                f"max_completion_tokens is {fields.max_completion_tokens}; it must be at least 1."
            )
            raise InvalidRequestError(message, "max_completion_tokens")
        return _sampling(fields, fields.max_completion_tokens)
    return _sampling(fields, fields.max_tokens)


def _sampling(fields: GenerationFields, max_tokens: int | None) -> SamplingParams:
    stop = fields.stop or ()
    return SamplingParams(
        max_tokens=max_tokens,
        temperature=fields.temperature,
        top_p=fields.top_p,
        top_k=_top_k(fields.top_k),
        min_p=fields.min_p,
        seed=fields.seed,
        n=1 if fields.n is None else fields.n,
        stop=(stop,) if isinstance(stop, str) else tuple(stop),
        stop_token_ids=tuple(fields.stop_token_ids or ()),
        ignore_eos=bool(fields.ignore_eos),
    )


def _top_k(top_k: int | None) -> int:
    """Return 0 for "all": None, vLLM's -1, and more than any vocabulary has."""
    return 0 if top_k is None or top_k == -1 or top_k > _LARGEST_VOCABULARY else top_k


def split_prompts(fields: CompletionRequest) -> list[str | list[int]]:
    """Return the prompts of a call, each a text or a list of token ids."""
    prompt: Any = fields.prompt  # its shape has been checked
    is_one = isinstance(prompt, str) or isinstance(prompt[0], int)
    return [prompt] if is_one else list(prompt)


def check_num_choices(num_choices: int, max_in_flight: int) -> None:
    """Refuse a call whose answers could never be in flight together.

    Raises:
        InvalidRequestError: prompts * n passes the bound.
    """
    limit = min(MAX_CHOICES, max_in_flight)
    if num_choices > limit:
        message = f"The call asks for {num_choices} answers (prompts * n); it may ask for {limit}."
        raise InvalidRequestError(message, "n")


def encode_prompts(
    prompts: Sequence[str | list[int]], codec: TextCodec, limit_tokens: int
) -> Iterator[tuple[int, ...]]:
    """Yield the token ids of each prompt; texts get the tokenizer's own special tokens.

    Raises:
        PromptTooLongError: A text is so long that it need not be tokenised to refuse it.
    """
    for prompt in prompts:
        if isinstance(prompt, str):
            _check_length(prompt, codec, limit_tokens, "prompt")
            yield tuple(codec.encode(prompt))
        else:
            yield tuple(prompt)


def _check_length(text: str, codec: TextCodec, limit_tokens: int, param: str) -> None:
    """Refuse a text that has more tokens than `limit_tokens` even if all are the longest."""
    longest = codec.longest_token_chars * _MAX_COMPOSED_CHARS
    fewest_tokens = -(-len(text) // longest)
    if fewest_tokens > limit_tokens:
        raise PromptTooLongError(limit_tokens, fewest_tokens, 1, param, is_counted=False)


def encode_chat(
    fields: ChatCompletionRequest,
    codec: TextCodec,
    template: ChatRenderer | None,
    limit_tokens: int,
) -> tuple[int, ...]:
    """Render a conversation and return its token ids; the template brings its own BOS.

    Raises:
        InvalidRequestError: There is no template, or it refuses the conversation.
        PromptTooLongError: The text need not be tokenised to refuse it.
    """
    if template is None:
        message = "This model has no chat template. Use /v1/completions."
        raise InvalidRequestError(message, "messages")
    options = fields.chat_template_kwargs
    variables = {} if options is None else options.model_dump(exclude_none=True)
    messages = [_plain_message(message) for message in fields.messages]
    text = template.render(messages, add_generation_prompt=True, **variables)
    _check_length(text, codec, limit_tokens, "messages")
    return tuple(codec.encode(text, add_special_tokens=False))


def _plain_message(message: ChatMessage) -> dict[str, Any]:
    """Return a message as templates expect it: text content, and no developer role."""
    content = message.content
    if not isinstance(content, str):
        content = "\n".join(part.text for part in content)
    role = "system" if message.role == "developer" else message.role
    optional = {"name": message.name, "tool_call_id": message.tool_call_id}
    present = {key: value for key, value in optional.items() if value is not None}
    return {"role": role, "content": content, **present}


def admit_prompts(
    limits: EngineLimits, prompts: Sequence[tuple[int, ...]], sampling: SamplingParams, param: str
) -> list[SamplingParams]:
    """Check each prompt against the engine's limits; return its sampling, resolved.

    Args:
        limits: Of the engine.
        prompts: Token ids.
        sampling: Of the call.
        param: The field the prompts came from.

    Raises:
        InvalidRequestError: A prompt is empty or has an impossible token id.
        PromptTooLongError: A prompt and its output pass the context.
    """
    try:
        return [admit_or_refuse(limits, prompt, sampling) for prompt in prompts]
    except PromptTooLongError as error:
        raise PromptTooLongError(
            error.limit_tokens, error.prompt_tokens, error.requested_tokens, param
        ) from None
