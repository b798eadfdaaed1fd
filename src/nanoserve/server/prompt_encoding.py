"""Prompts and conversations to token ids.

Pure but for the codec and the template it is handed; called off the event loop, since
long prompts cost time.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from nanoserve.engine.interface import TextCodec
from nanoserve.errors import InvalidRequestError, PromptTooLongError
from nanoserve.sched.admission import EngineLimits, admit_or_refuse
from nanoserve.sched.sampling_params import SamplingParams
from nanoserve.server.chat_protocol import ChatCompletionRequest, ChatMessage, EarlierToolCall
from nanoserve.server.json_body import parse_object
from nanoserve.server.protocol import CompletionRequest

_MAX_COMPOSED_CHARS = 4  # that Unicode normalisation makes one character of


@dataclass(frozen=True, slots=True)
class EncodedPrompt:
    """A prompt as the model reads it.

    Attributes:
        token_ids: At least one where it can be served.
        text: As it was sent or rendered, special tokens written out; decoded without them
            where ids were sent.
    """

    token_ids: tuple[int, ...]
    text: str


class ChatRenderer(Protocol):
    """What the server needs of a chat template."""

    @property
    def source(self) -> str:
        """The template itself."""
        ...

    def render(
        self,
        messages: list[dict[str, Any]],
        *,
        add_generation_prompt: bool = True,
        **variables: Any,
    ) -> str:
        """Return the conversation as the model was trained to read it."""
        ...


def split_prompts(fields: CompletionRequest) -> list[str | list[int]]:
    """Return the prompts of a call, each a text or a list of token ids."""
    prompt: Any = fields.prompt  # its shape has been checked
    is_one = isinstance(prompt, str) or isinstance(prompt[0], int)
    return [prompt] if is_one else list(prompt)


def encode_prompts(
    prompts: Sequence[str | list[int]], codec: TextCodec, limit_tokens: int
) -> Iterator[EncodedPrompt]:
    """Yield each prompt; texts get the tokenizer's own special tokens.

    Raises:
        PromptTooLongError: A text is so long that it need not be tokenised to refuse it.
    """
    for prompt in prompts:
        if isinstance(prompt, str):
            _check_length(prompt, codec, limit_tokens, "prompt")
            yield EncodedPrompt(tuple(codec.encode(prompt)), prompt)
        else:
            yield EncodedPrompt(tuple(prompt), _text_of(prompt, codec))


def _text_of(token_ids: Sequence[int], codec: TextCodec) -> str:
    """Return the text of ids; '' for ids that are refused later."""
    is_known = all(0 <= token_id < codec.vocab_size for token_id in token_ids)
    return codec.decode(token_ids) if is_known else ""


def fewest_tokens(num_chars: int, codec: TextCodec) -> int:
    """Return the least number of tokens that a text of `num_chars` can have."""
    longest = codec.longest_token_chars * _MAX_COMPOSED_CHARS
    return -(-num_chars // longest)


def _check_length(text: str, codec: TextCodec, limit_tokens: int, param: str) -> None:
    """Refuse a text that has more tokens than `limit_tokens` even if all are the longest."""
    num_tokens = fewest_tokens(len(text), codec)
    if num_tokens > limit_tokens:
        raise PromptTooLongError(limit_tokens, num_tokens, 1, param, is_counted=False)


def encode_chat(
    fields: ChatCompletionRequest,
    codec: TextCodec,
    template: ChatRenderer | None,
    limit_tokens: int,
) -> EncodedPrompt:
    """Render a conversation and tokenise it; the template brings its own BOS.

    Raises:
        InvalidRequestError: There is no template, or it refuses the conversation.
        PromptTooLongError: The text need not be tokenised to refuse it.
    """
    text = render_chat(fields, template)
    _check_length(text, codec, limit_tokens, "messages")
    return EncodedPrompt(tuple(codec.encode(text, add_special_tokens=False)), text)


def render_chat(
    fields: ChatCompletionRequest,
    template: ChatRenderer | None,
    add_generation_prompt: bool = True,
) -> str:
    """Return the conversation as the model reads it; tools are shown unless ruled out.

    Raises:
        InvalidRequestError: There is no template, or it refuses the conversation.
    """
    if template is None:
        message = "This model has no chat template. Use /v1/completions."
        raise InvalidRequestError(message, "messages")
    options = fields.chat_template_kwargs
    variables = {} if options is None else options.model_dump(exclude_none=True)
    if fields.tools and fields.tool_choice != "none":
        variables["tools"] = [tool.model_dump(exclude_none=True) for tool in fields.tools]
    called = {
        call.id: call.function.name
        for message in fields.messages
        for call in message.tool_calls or ()
    }
    messages = [_plain_message(message, called) for message in fields.messages]
    return template.render(messages, add_generation_prompt=add_generation_prompt, **variables)


def _plain_message(message: ChatMessage, called: Mapping[str, str]) -> dict[str, Any]:
    """Return a message as templates expect it: text content, and no developer role.

    Args:
        message: As it was sent.
        called: The function's name of each tool call: some templates want it with the result.
    """
    content = message.content
    if isinstance(content, list):
        content = "\n".join(part.text for part in content)
    calls = [_plain_call(call) for call in message.tool_calls or ()]
    optional = {
        "name": message.name or called.get(message.tool_call_id or ""),
        "tool_call_id": message.tool_call_id,
        "reasoning_content": message.reasoning_content,
        "tool_calls": calls or None,
    }
    present = {key: value for key, value in optional.items() if value is not None}
    role = "system" if message.role == "developer" else message.role
    return {"role": role, "content": content or "", **present}


def _plain_call(call: EarlierToolCall) -> dict[str, Any]:
    """Return a call with its arguments as an object, which templates write out again."""
    try:
        arguments = parse_object((call.function.arguments or "{}").encode())
    except InvalidRequestError:
        message = f"The arguments of tool call {call.id!r} in messages are no JSON object."
        raise InvalidRequestError(message, "messages") from None
    function = {"name": call.function.name, "arguments": arguments}
    return {"id": call.id, "type": "function", "function": function}


def admit_prompt(
    limits: EngineLimits, token_ids: tuple[int, ...], sampling: SamplingParams, param: str
) -> SamplingParams:
    """Check a prompt against the engine's limits; return its sampling, resolved.

    Args:
        limits: Of the engine.
        token_ids: Of the prompt.
        sampling: Of the call.
        param: The field the prompt came from.

    Raises:
        InvalidRequestError: The prompt is empty or has an impossible token id.
        PromptTooLongError: The prompt and its output pass the context.
    """
    try:
        return admit_or_refuse(limits, token_ids, sampling)
    except PromptTooLongError as error:
        raise PromptTooLongError(
            error.limit_tokens, error.prompt_tokens, error.requested_tokens, param
        ) from None
