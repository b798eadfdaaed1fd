"""What clients may send: OpenAI's request fields, typed strictly.

Owns names and types. Ranges belong to `SamplingParams`, the vocabulary and the context to
`sched.admission`, and what is refused although it is well formed to `convert`. A field
that is declared nowhere is refused by name. The fields of chat are in `chat_protocol`.
"""

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, WithJsonSchema, WrapValidator
from pydantic_core import PydanticCustomError

from nanoserve.sched.sampling_params import MAX_BIASES
from nanoserve.server.strict_model import ListOf, StrictModel, check_num_members, too_many

MAX_PROMPTS = 128  # prompts of one completion call
MAX_GUIDED_CHOICES = 1024  # alternatives of one call

Biases = Annotated[
    dict[str, float], BeforeValidator(lambda value: check_num_members(value, MAX_BIASES, "entries"))
]


class StreamOptions(StrictModel):
    """Options of a stream."""

    include_usage: bool | None = False
    continuous_usage_stats: bool | None = False
    include_obfuscation: Any = None  # padding against traffic analysis: not the answer


class JsonSchemaFormat(StrictModel):
    """The schema of an answer; an answer follows it whether or not it is `strict`."""

    name: str
    description: str | None = None
    json_schema: dict[str, Any] | None = Field(None, alias="schema")
    strict: bool | None = None


class TextFormat(StrictModel):
    """Free text."""

    type: Literal["text"]


class JsonObjectFormat(StrictModel):
    """Any JSON object."""

    type: Literal["json_object"]


class SchemaFormat(StrictModel):
    """JSON that follows a schema."""

    type: Literal["json_schema"]
    json_schema: JsonSchemaFormat


ResponseFormat = Annotated[
    TextFormat | JsonObjectFormat | SchemaFormat, Field(discriminator="type")
]


class StructuredOutputs(StrictModel):
    """vLLM's newer spelling of the `guided_` fields; one of them at a time."""

    json_: str | dict[str, Any] | None = Field(None, alias="json")
    regex: str | None = None
    choice: ListOf[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None


class GenerationFields(StrictModel):
    """Fields that both endpoints take."""

    model: str | None = None
    n: int | None = 1
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int | None = 0
    min_p: float = 0.0
    seed: int | None = None
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: Biases | None = None
    stop: str | ListOf[str] | None = None
    stop_token_ids: ListOf[int] | None = None
    include_stop_str_in_output: bool | None = False
    ignore_eos: bool | None = False
    min_tokens: int | None = 0
    priority: int | None = 0
    stream: bool | None = False
    stream_options: StreamOptions | None = None

    # What the answer must follow: one of these at a time; see grammar_fields.
    response_format: ResponseFormat | None = None
    guided_json: str | dict[str, Any] | None = None
    guided_regex: str | None = None
    guided_choice: ListOf[str] | None = None
    guided_grammar: str | None = None
    structured_outputs: StructuredOutputs | None = None

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
        raise too_many(len(value), "prompts", "call", MAX_PROMPTS)
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


_TEXT_SCHEMA = {"type": "string", "minLength": 1}
_IDS_SCHEMA = {"type": "array", "items": {"type": "integer", "minimum": 0}, "minItems": 1}
_PROMPT_SCHEMA = {
    "anyOf": [
        _TEXT_SCHEMA,
        _IDS_SCHEMA,
        *(
            {"type": "array", "items": one, "minItems": 1, "maxItems": MAX_PROMPTS}
            for one in (_TEXT_SCHEMA, _IDS_SCHEMA)
        ),
    ]
}
Prompt = Annotated[
    str | list[str] | list[int] | list[list[int]],
    WrapValidator(_check_prompt),
    WithJsonSchema(_PROMPT_SCHEMA),
]


class CompletionRequest(GenerationFields):
    """Body of POST /v1/completions."""

    prompt: Prompt
    max_tokens: int | None = None
    echo: bool | None = False
    logprobs: int | None = None
    best_of: int | None = None
    suffix: str | None = None  # honoured at its neutral value only
