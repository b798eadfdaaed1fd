"""POST /v1/completions."""

from collections.abc import Sequence

from starlette.requests import Request
from starlette.responses import Response

from nanoserve.engine.interface import TextCodec
from nanoserve.server.answer_head import AnswerHead
from nanoserve.server.completion_format import CompletionFormat
from nanoserve.server.convert import completion_sampling, num_shown
from nanoserve.server.generation import generate
from nanoserve.server.generation_call import GenerationCall
from nanoserve.server.grammar_fields import grammar_of
from nanoserve.server.json_body import parse_object, read_body
from nanoserve.server.prompt_encoding import encode_prompts, fewest_tokens, split_prompts
from nanoserve.server.protocol import CompletionRequest, StreamOptions
from nanoserve.server.serving_context import ServingContext
from nanoserve.server.strict_model import validate_fields


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
    prompts = split_prompts(fields)
    head = AnswerHead(f"cmpl-{context.new_id()}", int(context.wall_clock()), context.model_name)
    limit_tokens = context.engine.limits.max_request_tokens
    has_logprobs = fields.logprobs is not None
    return GenerationCall(
        answer_id=head.answer_id,
        sampling=completion_sampling(fields),
        num_shown=num_shown(fields),
        num_prompts=len(prompts),
        min_prompt_tokens=_fewest_tokens(prompts, context.codec),
        encode=lambda: encode_prompts(prompts, context.codec, limit_tokens),
        prompt_param="prompt",
        make_format=lambda prompts: CompletionFormat(head, context.codec, has_logprobs),
        stream_options=(fields.stream_options or StreamOptions()) if fields.stream else None,
        is_echoed=bool(fields.echo),
        priority=fields.priority or 0,
        grammar=grammar_of(fields),
    )


def _fewest_tokens(prompts: Sequence[str | list[int]], codec: TextCodec) -> int:
    return sum(
        fewest_tokens(len(prompt), codec) if isinstance(prompt, str) else len(prompt)
        for prompt in prompts
    )
