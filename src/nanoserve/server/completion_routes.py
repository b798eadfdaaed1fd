"""POST /v1/completions."""

from starlette.requests import Request
from starlette.responses import Response

from nanoserve.server.completion_format import CompletionFormat
from nanoserve.server.convert import completion_sampling, encode_prompts, split_prompts
from nanoserve.server.generation import GenerationCall, generate
from nanoserve.server.json_body import parse_object, read_body
from nanoserve.server.protocol import CompletionRequest, StreamOptions, validate_fields
from nanoserve.server.serving_context import ServingContext


async def create_completion(request: Request, context: ServingContext) -> Response:
    """Answer a completion call, whole or as a stream."""
    body = await read_body(request)
    call = await context.off_loop(read_completion_call, body, context)
    return await generate(request, context, call)


def read_completion_call(body: bytes, context: ServingContext) -> GenerationCall:
    """Parse and check everything that can be checked without tokenising.

    Raises:
        RequestError: Names the field that is wrong.
    """
    fields = validate_fields(CompletionRequest, parse_object(body))
    context.check_model(fields.model)
    sampling = completion_sampling(fields)
    prompts = split_prompts(fields)
    answer_id = f"cmpl-{context.new_id()}"
    limit_tokens = context.engine.limits.max_request_tokens
    return GenerationCall(
        answer_format=CompletionFormat(answer_id, int(context.wall_clock()), context.model_name),
        answer_id=answer_id,
        sampling=sampling,
        num_prompts=len(prompts),
        encode=lambda: encode_prompts(prompts, context.codec, limit_tokens),
        prompt_param="prompt",
        stream_options=(fields.stream_options or StreamOptions()) if fields.stream else None,
    )
