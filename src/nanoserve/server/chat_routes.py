"""POST /v1/chat/completions."""

from starlette.requests import Request
from starlette.responses import Response

from nanoserve.server.chat_format import ChatFormat
from nanoserve.server.convert import chat_sampling, encode_chat
from nanoserve.server.generation import GenerationCall, generate
from nanoserve.server.json_body import parse_object, read_body
from nanoserve.server.protocol import ChatCompletionRequest, StreamOptions, validate_fields
from nanoserve.server.serving_context import ServingContext


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
    answer_id = f"chatcmpl-{context.new_id()}"
    limit_tokens = context.engine.limits.max_request_tokens
    return GenerationCall(
        answer_format=ChatFormat(answer_id, int(context.wall_clock()), context.model_name),
        answer_id=answer_id,
        sampling=chat_sampling(fields),
        num_prompts=1,
        encode=lambda: [encode_chat(fields, context.codec, context.chat_template, limit_tokens)],
        prompt_param="messages",
        stream_options=(fields.stream_options or StreamOptions()) if fields.stream else None,
    )
