"""What clients may send to chat: messages, tools, and the fields that completions lack.

Owns names and types, as `protocol` does for the rest.
"""

from typing import Annotated, Any, Final, Literal

from pydantic import ConfigDict, Field, model_validator
from pydantic.config import JsonDict
from pydantic_core import PydanticCustomError

from nanoserve.server.protocol import GenerationFields
from nanoserve.server.strict_model import ListOf, StrictModel

MAX_TOOLS = 128  # of one call, as in OpenAI's API
_KIND: Final = "message"  # of an error that concerns a turn as a whole
_NAME = r"^[a-zA-Z0-9_-]{1,64}$"

ToolName = Annotated[str, Field(pattern=_NAME)]


class TextPart(StrictModel):
    """A piece of a message's content."""

    type: Literal["text"]
    text: str


class CalledFunction(StrictModel):
    """Which function an earlier answer called, and with what; `arguments` is JSON text."""

    name: ToolName
    arguments: str
    parsed_arguments: Any = None  # what OpenAI's client adds, and sends back


class EarlierToolCall(StrictModel):
    """A call that an earlier answer made."""

    id: str
    type: Literal["function"] = "function"
    function: CalledFunction
    index: int | None = None  # what clients keep of a stream's pieces


_SAYS_SOMETHING: JsonDict = {
    "required": ["content"],
    "properties": {"content": {"type": ["string", "array"]}, "tool_calls": {"maxItems": 0}},
}
_CALLS_TOOLS: JsonDict = {
    "required": ["tool_calls"],
    "properties": {"role": {"const": "assistant"}, "tool_calls": {"type": "array", "minItems": 1}},
}


class ChatMessage(StrictModel):
    """One turn of a conversation. The null fields are what clients send back unread."""

    model_config = ConfigDict(json_schema_extra={"anyOf": [_SAYS_SOMETHING, _CALLS_TOOLS]})

    role: Literal["developer", "system", "user", "assistant", "tool"]
    content: str | ListOf[TextPart] | None = None
    name: str | None = None
    tool_call_id: str | None = None
    tool_calls: Annotated[list[EarlierToolCall], Field(max_length=MAX_TOOLS)] | None = None
    reasoning_content: str | None = None
    refusal: None = None
    annotations: Annotated[list[Any], Field(max_length=0)] | None = None
    audio: None = None
    function_call: None = None
    parsed: Any = None  # what OpenAI's client adds, and sends back

    @model_validator(mode="after")
    def _check_turn(self) -> "ChatMessage":
        calls = bool(self.tool_calls)
        if calls and self.role != "assistant":
            text = "tool_calls belong to messages of the assistant"
            raise PydanticCustomError(_KIND, text)
        if self.content is None and not calls:
            text = "content must be a string or a list of text parts"
            raise PydanticCustomError(_KIND, text)
        return self


class Function(StrictModel):
    """A function that the model may call; its arguments follow `parameters`, strict or not."""

    name: ToolName
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(StrictModel):
    """Something that the model may call."""

    type: Literal["function"]
    function: Function


class FunctionName(StrictModel):
    """A function by its name."""

    name: ToolName


class NamedTool(StrictModel):
    """The one function to call."""

    type: Literal["function"]
    function: FunctionName


class ChatTemplateOptions(StrictModel):
    """Variables that a client may hand to the chat template."""

    enable_thinking: bool | None = None


class ChatCompletionRequest(GenerationFields):
    """Body of POST /v1/chat/completions."""

    messages: Annotated[list[ChatMessage], Field(min_length=1, fail_fast=True)]
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    logprobs: bool | None = False
    top_logprobs: int | None = None
    tools: Annotated[list[Tool], Field(max_length=MAX_TOOLS, fail_fast=True)] | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedTool | None = None
    parallel_tool_calls: bool | None = True
    separate_reasoning: bool | None = False
    chat_template_kwargs: ChatTemplateOptions | None = None

    # Honoured at their neutral value only; see convert.NEUTRAL_VALUES.
    functions: list[Any] | None = None
    function_call: Any = None
    modalities: ListOf[str] | None = None
