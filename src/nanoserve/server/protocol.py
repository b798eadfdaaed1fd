"""What clients may send: OpenAI's request fields, typed strictly.

Owns names and types. Ranges belong to `SamplingParams`, the vocabulary and the context to
`sched.admission`, and what is refused although it is well formed to `convert`. A field
that is declared nowhere here is refused by name.
"""

from collections.abc import Sequence
from typing import Annotated, Any, Literal, TypeVar

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    WrapValidator,
    model_validator,
)
from pydantic_core import ErrorDetails, PydanticCustomError

from nanoserve.errors import InvalidRequestError

MAX_PROMPTS = 128  # prompts of one completion call
MAX_FIELDS = 64  # of one object; a body has at most 35 that are known
MAX_BIASES = 1024  # entries of logit_bias


T = TypeVar("T")


def _at_most(value: Any, limit: int, what: str) -> Any:
    """Refuse a huge object as a whole: pydantic would collect an error per member."""
    if isinstance(value, dict) and len(value) > limit:
        raise _too_many(len(value), what, "object", limit)
    return value


def _too_many(count: int, what: str, owner: str, limit: int) -> PydanticCustomError:
    text = "has {count} {what}; one {owner} may have {limit}"
    return PydanticCustomError(
        "too_many", text, {"count": count, "what": what, "owner": owner, "limit": limit}
    )


ListOf = Annotated[list[T], Field(fail_fast=True)]  # one error, not one per item
Biases = Annotated[
    dict[str, float], BeforeValidator(lambda value: _at_most(value, MAX_BIASES, "entries"))
]


class StrictModel(BaseModel):
    """No coercion ("0.7" is no number, true is no int) and no unknown field."""

    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _check_num_fields(cls, value: Any) -> Any:
        return _at_most(value, MAX_FIELDS, "fields")


class StreamOptions(StrictModel):
    """Options of a stream."""

    include_usage: bool | None = False
    continuous_usage_stats: bool | None = False
    include_obfuscation: Any = None  # padding against traffic analysis: not the answer


class GenerationFields(StrictModel):
    """Fields that both endpoints take."""

    model: str | None = None
    n: int | None = 1
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int | None = 0
    min_p: float = 0.0
    seed: int | None = None
    stop: str | ListOf[str] | None = None
    stop_token_ids: ListOf[int] | None = None
    ignore_eos: bool | None = False
    stream: bool | None = False
    stream_options: StreamOptions | None = None

    # Honoured at their neutral value only; see convert.NEUTRAL_VALUES.
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: Biases | None = None
    min_tokens: int | None = 0
    include_stop_str_in_output: bool | None = False
    priority: int | None = 0

    # Cannot change the answer: accepted and not read.
    user: Any = None
    metadata: Any = None
    store: Any = None
    service_tier: Any = None
    safety_identifier: Any = None
    prompt_cache_key: Any = None
    prompt_cache_retention: Any = None


def _check_prompt(value: Any, _handler: Any) -> Any:
    """Check the four shapes of a prompt by hand: bounded work, and one clear message."""
    if isinstance(value, str):
        return value
    if not isinstance(value, list) or not value:
        raise _wrong_prompt()
    if type(value[0]) is int:
        _check_ids(value)
        return value
    if len(value) > MAX_PROMPTS:
        raise _too_many(len(value), "prompts", "call", MAX_PROMPTS)
    if isinstance(value[0], str):
        if not all(isinstance(text, str) for text in value):
            raise _wrong_prompt()
        return value
    for ids in value:
        if not isinstance(ids, list):
            raise _wrong_prompt()
        _check_ids(ids)
    return value


def _check_ids(ids: Sequence[Any]) -> None:
    if set(map(type, ids)) - {int}:  # exact: bool is an int to isinstance
        raise _wrong_prompt()


def _wrong_prompt() -> PydanticCustomError:
    text = "must be a string, or a list of strings, of token ids, or of lists of token ids"
    return PydanticCustomError("prompt_type", text)


Prompt = Annotated[str | list[str] | list[int] | list[list[int]], WrapValidator(_check_prompt)]


class CompletionRequest(GenerationFields):
    """Body of POST /v1/completions."""

    prompt: Prompt
    max_tokens: int | None = None

    # Honoured at their neutral value only.
    best_of: int | None = None
    echo: bool | None = False
    logprobs: int | None = None
    suffix: str | None = None


class TextPart(StrictModel):
    """A piece of a message's content."""

    type: Literal["text"]
    text: str


class ChatMessage(StrictModel):
    """One turn of a conversation. The last five are what clients send back as null."""

    role: Literal["developer", "system", "user", "assistant", "tool"]
    content: str | ListOf[TextPart]
    name: str | None = None
    tool_call_id: str | None = None
    refusal: None = None
    annotations: Annotated[list[Any], Field(max_length=0)] | None = None
    audio: None = None
    function_call: None = None
    tool_calls: Annotated[list[Any], Field(max_length=0)] | None = None


class ChatTemplateOptions(StrictModel):
    """Variables that a client may hand to the chat template."""

    enable_thinking: bool | None = None


class ChatCompletionRequest(GenerationFields):
    """Body of POST /v1/chat/completions."""

    messages: Annotated[list[ChatMessage], Field(min_length=1, fail_fast=True)]
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    chat_template_kwargs: ChatTemplateOptions | None = None

    # Honoured at their neutral value only.
    logprobs: bool | None = False
    top_logprobs: int | None = 0
    tools: list[Any] | None = None
    tool_choice: Any = None
    functions: list[Any] | None = None
    function_call: Any = None
    response_format: Any = None
    modalities: ListOf[str] | None = None

    # Cannot change the answer: accepted and not read.
    parallel_tool_calls: Any = None


Fields = TypeVar("Fields", bound=GenerationFields)


def validate_fields(model: type[Fields], value: dict[str, Any]) -> Fields:
    """Check a parsed body against a request model.

    Raises:
        InvalidRequestError: Names the first wrong field and what it must be.
    """
    try:
        return model.model_validate(value)
    except ValidationError as error:
        details = error.errors(include_url=False, include_input=False)
        raise _invalid(details) from None


def _invalid(details: list[ErrorDetails]) -> InvalidRequestError:
    """Make one error of the first wrong field; a union names what each arm wanted."""
    first = details[0]
    if not first["loc"]:
        message = f"The request body {first['msg']}."
        return InvalidRequestError(message)
    field = str(first["loc"][0])
    if first["type"] == "extra_forbidden":
        message = (
            f"Unknown field '{_path(first)}'. It is refused because it might change the answer."
        )
        return InvalidRequestError(message, _path(first))
    wishes = [detail for detail in details if detail["loc"][:1] == (field,)]
    problems = dict.fromkeys(f"{_path(detail)}: {detail['msg']}" for detail in wishes[:4])
    return InvalidRequestError(f"{'; or '.join(problems)}.", field)


def _path(detail: ErrorDetails) -> str:
    """Return the place of an error without pydantic's names for the arms of a union."""
    steps = [str(step) for step in detail["loc"]]
    return ".".join(step for step in steps if step not in ("str", "int") and "[" not in step)
