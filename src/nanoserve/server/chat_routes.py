"""POST /v1/chat/completions."""

from collections.abc import Callable, Sequence

from starlette.requests import Request
from starlette.responses import Response

from nanoserve.engine.interface import TextCodec
from nanoserve.server.answer_head import AnswerHead
from nanoserve.server.chat_format import ChatFormat
from nanoserve.server.chat_protocol import ChatCompletionRequest
from nanoserve.server.chat_tools import chat_grammar
from nanoserve.server.convert import chat_sampling, num_shown
from nanoserve.server.generation import generate
from nanoserve.server.generation_call import GenerationCall
from nanoserve.server.json_body import parse_object, read_body
from nanoserve.server.message_parser import MessageParser, opens_reasoning
from nanoserve.server.prompt_encoding import EncodedPrompt, encode_chat, fewest_tokens
from nanoserve.server.protocol import StreamOptions
from nanoserve.server.reasoning import ReasoningSplitter
from nanoserve.server.serving_context import ServingContext
from nanoserve.server.strict_model import validate_fields
from nanoserve.server.tool_calls import ToolCallRules


async def create_chat_completion(request: Request, context: ServingContext) -> Response:
    """Answer a chat call, whole or as a stream."""
    body = await read_body(request)
    call = await context.off_loop(read_chat_call, body, context)
    return await generate(request, context, call)


def read_chat_call(body: bytes, context: ServingContext) -> GenerationCall:
    """Parse and check everything that can be checked without the template.

    Raises:
        RequestError: Names the field that is wrong.
    """
    fields = validate_fields(ChatCompletionRequest, parse_object(body))
    context.check_model(fields.model)
    rules, grammar = chat_grammar(fields, context.chat_template)
    head = AnswerHead(f"chatcmpl-{context.new_id()}", int(context.wall_clock()), context.model_name)
    limit_tokens = context.engine.limits.max_request_tokens

    def make_format(prompts: Sequence[EncodedPrompt]) -> ChatFormat:
        separates = bool(fields.separate_reasoning)
        is_open = grammar is None and opens_reasoning(prompts[0].text)
        make_parser = _parser_maker(rules, is_open if separates else None, context.new_id)
        return ChatFormat(head, context.codec, bool(fields.logprobs), make_parser)

    return GenerationCall(
        answer_id=head.answer_id,
        sampling=chat_sampling(fields),
        num_shown=num_shown(fields),
        num_prompts=1,
        min_prompt_tokens=_fewest_tokens(fields, context.codec),
        encode=lambda: [encode_chat(fields, context.codec, context.chat_template, limit_tokens)],
        prompt_param="messages",
        make_format=make_format,
        stream_options=(fields.stream_options or StreamOptions()) if fields.stream else None,
        priority=fields.priority or 0,
        grammar=grammar,
    )


def _parser_maker(
    rules: ToolCallRules | None, opens_in_reasoning: bool | None, new_id: Callable[[], str]
) -> Callable[[], MessageParser]:
    """Return what makes the parser of each choice.

    Args:
        rules: Which tool calls to look for.
        opens_in_reasoning: Whether an answer begins inside think tags; None leaves them in.
        new_id: Makes unique ids.
    """

    def make_parser() -> MessageParser:
        splitter = None if opens_in_reasoning is None else ReasoningSplitter(opens_in_reasoning)
        return MessageParser(rules, splitter, lambda: f"call_{new_id()[:24]}")

    return make_parser


def _fewest_tokens(fields: ChatCompletionRequest, codec: TextCodec) -> int:
    """Return the least number of tokens that the messages can have, whatever the template."""
    num_chars = 0
    for message in fields.messages:
        content = message.content or ""
        parts = [content] if isinstance(content, str) else [part.text for part in content]
        num_chars += sum(map(len, parts))
    return fewest_tokens(num_chars, codec)
