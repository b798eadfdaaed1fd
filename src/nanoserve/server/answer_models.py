"""What clients get: OpenAI's response objects and stream chunks.

Only keys that may be absent have a default, and a key that was not set is not sent: so
`usage` of a chunk is absent, null or a number of tokens, as the client asked.
"""

from typing import Literal

from pydantic import BaseModel

from nanoserve.sched.step import FinishReason

FinishReasonField = Literal["stop", "length", "tool_calls"]


class PromptTokensDetails(BaseModel):
    """Where the prompt's tokens came from."""

    cached_tokens: int


class Usage(BaseModel):
    """Tokens of one call. Sampled stop ids count; each prompt counts once, whatever n."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails


class CompletionLogprobs(BaseModel):
    """Lists of one entry per token; null where a prompt's first token follows nothing."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class CompletionChoice(BaseModel):
    """One answer, or a piece of it."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: FinishReasonField | None


class CompletionBody(BaseModel):
    """A completion, or one chunk of its stream."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: Usage | None = None


class ChatTopLogprob(BaseModel):
    """A token that might have stood there, with its UTF-8 bytes."""

    token: str
    logprob: float
    bytes: list[int]


class ChatTokenLogprob(ChatTopLogprob):
    """A token of the answer, and the likeliest for its place."""

    top_logprobs: list[ChatTopLogprob]


class ChatLogprobs(BaseModel):
    """One record per token of the answer."""

    content: list[ChatTokenLogprob]
    refusal: None


class FunctionCall(BaseModel):
    """A function and its arguments as JSON text."""

    name: str
    arguments: str


class ToolCall(BaseModel):
    """A call that the model makes."""

    id: str
    type: Literal["function"]
    function: FunctionCall


class ChatAnswerMessage(BaseModel):
    """The assistant's turn; `content` is null where it does nothing but call tools."""

    role: Literal["assistant"]
    content: str | None
    refusal: None
    reasoning_content: str | None = None
    tool_calls: list[ToolCall] | None = None


class ChatChoice(BaseModel):
    """One answer."""

    index: int
    message: ChatAnswerMessage
    logprobs: ChatLogprobs | None
    finish_reason: FinishReasonField | None


class ChatBody(BaseModel):
    """A chat answer."""

    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage


class FunctionCallDelta(BaseModel):
    """The name, once, and pieces of the arguments."""

    name: str | None = None
    arguments: str


class ToolCallDelta(BaseModel):
    """What a chunk adds to a call; id, type and name come with its first piece."""

    index: int
    id: str | None = None
    type: Literal["function"] | None = None
    function: FunctionCallDelta


class ChatDelta(BaseModel):
    """What a chunk adds to the assistant's turn."""

    role: Literal["assistant"] | None = None
    content: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[ToolCallDelta] | None = None


class ChatChunkChoice(BaseModel):
    """One answer's share of a chunk."""

    index: int
    delta: ChatDelta
    logprobs: ChatLogprobs | None
    finish_reason: FinishReasonField | None


class ChatChunk(BaseModel):
    """One chunk of a chat answer's stream."""

    id: str
    object: Literal["chat.completion.chunk"]
    created: int
    model: str
    choices: list[ChatChunkChoice]
    usage: Usage | None = None


def wire_reason(reason: FinishReason | None) -> FinishReasonField | None:
    """Return the wire's word for an answer that was completed; None while it goes on.

    Raises:
        ValueError: The answer was cut short: that is an error on the wire, no reason.
    """
    match reason:
        case None:
            return None
        case FinishReason.STOP:
            return "stop"
        case FinishReason.LENGTH:
            return "length"
        case _:
            message = f"an answer that ended with '{reason}' has no finish_reason"
            raise ValueError(message)


class ErrorDetail(BaseModel):
    """What went wrong."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorBody(BaseModel):
    """The envelope of every error."""

    error: ErrorDetail


class ModelCard(BaseModel):
    """The model that is served, and how long prompt and output may be together."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    max_model_len: int


class ModelList(BaseModel):
    """All models: the one."""

    object: Literal["list"]
    data: list[ModelCard]


class VersionBody(BaseModel):
    """The version of nanoserve."""

    version: str
