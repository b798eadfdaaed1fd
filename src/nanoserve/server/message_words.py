"""Parts of a message in OpenAI's words: together a message, alone a delta."""

from collections.abc import Sequence

from nanoserve.server.answer_models import (
    ChatAnswerMessage,
    ChatDelta,
    FunctionCall,
    FunctionCallDelta,
    ToolCall,
    ToolCallDelta,
)
from nanoserve.server.message_parts import (
    CallArguments,
    CallStart,
    ContentPart,
    MessagePart,
    ReasoningPart,
)


def message_of(parts: Sequence[MessagePart]) -> ChatAnswerMessage:
    """Return the whole message; keys of reasoning and calls only where there are some."""
    content = "".join(part.text for part in parts if isinstance(part, ContentPart))
    reasoning = "".join(part.text for part in parts if isinstance(part, ReasoningPart))
    calls = _calls_of(parts)
    message = ChatAnswerMessage(role="assistant", content=content, refusal=None)
    if reasoning:
        message.reasoning_content = reasoning
    if calls:
        message.tool_calls = calls
        message.content = content or None
    return message


def _calls_of(parts: Sequence[MessagePart]) -> list[ToolCall]:
    calls: list[ToolCall] = []
    for part in parts:
        if isinstance(part, CallStart):
            function = FunctionCall(name=part.name, arguments="")
            calls.append(ToolCall(id=part.call_id, type="function", function=function))
        elif isinstance(part, CallArguments):
            calls[part.index].function.arguments += part.text
    return calls


def delta_of(part: MessagePart) -> ChatDelta:
    """Return what one part adds to a streamed message."""
    match part:
        case ContentPart(text):
            return ChatDelta(content=text)
        case ReasoningPart(text):
            return ChatDelta(reasoning_content=text)
        case CallStart(index, call_id, name):
            function = FunctionCallDelta(name=name, arguments="")
            call = ToolCallDelta(index=index, id=call_id, type="function", function=function)
        case CallArguments(index, text):
            call = ToolCallDelta(index=index, function=FunctionCallDelta(arguments=text))
    return ChatDelta(tool_calls=[call])
