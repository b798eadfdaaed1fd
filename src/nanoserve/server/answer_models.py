"""What clients get: OpenAI's response objects and stream chunks.

Only keys that may be absent have a default, and a key that was not set is not sent: so
`usage` of a chunk is absent, null or a number of tokens, as the client asked.
"""

from typing import Literal

from pydantic import BaseModel

from nanoserve.sched.step import FinishReason

FinishReasonField = Literal["stop", "length"]


class PromptTokensDetails(BaseModel):
    """Where the prompt's tokens came from."""

    cached_tokens: int


class Usage(BaseModel):
    """Tokens of one call. Sampled stop ids count; each prompt counts once, whatever n."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails


class CompletionChoice(BaseModel):
    """One answer, or a piece of it."""

    index: int
    text: str
    logprobs: None
    finish_reason: FinishReasonField | None


class CompletionBody(BaseModel):
    """A completion, or one chunk of its stream."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: Usage | None = None


class ChatAnswerMessage(BaseModel):
    """The assistant's turn."""

    role: Literal["assistant"]
    content: str
    refusal: None


class ChatChoice(BaseModel):
    """One answer."""

    index: int
    message: ChatAnswerMessage
    logprobs: None
    finish_reason: FinishReasonField | None


class ChatBody(BaseModel):
    """A chat answer."""

    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage


class ChatDelta(BaseModel):
    """What a chunk adds to the assistant's turn."""

    role: Literal["assistant"] | None = None
    content: str | None = None


class ChatChunkChoice(BaseModel):
    """One answer's share of a chunk."""

    index: int
    delta: ChatDelta
    logprobs: None
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
