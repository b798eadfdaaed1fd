"""POST /tokenize and /detokenize, in vLLM's shapes: what a prompt is to the model."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field
from starlette.requests import Request
from starlette.responses import Response

from nanoserve.engine.interface import TextCodec
from nanoserve.errors import InvalidRequestError
from nanoserve.server.chat_protocol import (
    MAX_TOOLS,
    ChatCompletionRequest,
    ChatMessage,
    ChatTemplateOptions,
    Tool,
)
from nanoserve.server.error_response import json_response
from nanoserve.server.json_body import parse_object, read_body
from nanoserve.server.logprob_format import token_text
from nanoserve.server.prompt_encoding import render_chat
from nanoserve.server.serving_context import ServingContext
from nanoserve.server.strict_model import ListOf, StrictModel, validate_fields


class TokenizeRequest(StrictModel):
    """Body of POST /tokenize: a prompt, or messages with what shapes their template."""

    model_config = ConfigDict(
        json_schema_extra={
            "oneOf": [
                {"required": ["prompt"], "properties": {"prompt": {"type": "string"}}},
                {"required": ["messages"], "properties": {"messages": {"type": "array"}}},
            ]
        }
    )

    model: str | None = None
    prompt: str | None = None
    messages: Annotated[list[ChatMessage], Field(min_length=1, fail_fast=True)] | None = None
    add_special_tokens: bool | None = None
    add_generation_prompt: bool = True
    chat_template_kwargs: ChatTemplateOptions | None = None
    tools: Annotated[list[Tool], Field(max_length=MAX_TOOLS, fail_fast=True)] | None = None
    return_token_strs: bool | None = False


class TokenizeBody(BaseModel):
    """Token ids of a prompt."""

    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None


class DetokenizeRequest(StrictModel):
    """Body of POST /detokenize."""

    model: str | None = None
    tokens: ListOf[Annotated[int, Field(json_schema_extra={"minimum": 0})]]


class DetokenizeBody(BaseModel):
    """The text of token ids, special tokens written out."""

    prompt: str


async def tokenize(request: Request, context: ServingContext) -> Response:
    """Return the token ids that a call with this prompt, or these messages, has."""
    body = await read_body(request)
    return await context.off_loop(_tokenize, body, context)


async def detokenize(request: Request, context: ServingContext) -> Response:
    """Return the text of token ids."""
    body = await read_body(request)
    return await context.off_loop(_detokenize, body, context)


def _tokenize(body: bytes, context: ServingContext) -> Response:
    fields = validate_fields(TokenizeRequest, parse_object(body))
    context.check_model(fields.model)
    tokens = _token_ids(fields, context)
    strings = None
    if fields.return_token_strs:
        strings = [token_text(token_id, context.codec) for token_id in tokens]
    answer = TokenizeBody(
        count=len(tokens),
        max_model_len=context.engine.limits.max_request_tokens,
        tokens=tokens,
        token_strs=strings,
    )
    return json_response(answer.model_dump())


def _token_ids(fields: TokenizeRequest, context: ServingContext) -> list[int]:
    """Tokenise as generation does: special tokens for a prompt, none for a rendered chat."""
    if (fields.prompt is None) == (fields.messages is None):
        message = "Send either prompt or messages."
        raise InvalidRequestError(message, "prompt")
    adds = fields.add_special_tokens
    if fields.messages is None:
        text = fields.prompt or ""
        return context.codec.encode(text, add_special_tokens=True if adds is None else adds)
    chat = ChatCompletionRequest(
        messages=fields.messages,
        tools=fields.tools,
        chat_template_kwargs=fields.chat_template_kwargs,
    )
    text = render_chat(chat, context.chat_template, fields.add_generation_prompt)
    return context.codec.encode(text, add_special_tokens=bool(adds))


def _detokenize(body: bytes, context: ServingContext) -> Response:
    fields = validate_fields(DetokenizeRequest, parse_object(body))
    context.check_model(fields.model)
    _check_ids(fields.tokens, context.codec)
    text = context.codec.decode(fields.tokens, skip_special_tokens=False)
    return json_response(DetokenizeBody(prompt=text).model_dump())


def _check_ids(token_ids: list[int], codec: TextCodec) -> None:
    for index, token_id in enumerate(token_ids):
        if not 0 <= token_id < codec.vocab_size:
            message = (
                f"tokens has token id {token_id} at index {index}; "
                f"ids of this model are 0 to {codec.vocab_size - 1}."
            )
            raise InvalidRequestError(message, "tokens")
