"""The OpenAPI document: bodies and answers of every route, from the models that check them.

Handlers read their bodies themselves, strictly and off the loop, so FastAPI cannot see what
they take; `describe` says it, and `complete_document` adds the schemas that are referred to.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from fastapi import FastAPI
from pydantic import BaseModel
from pydantic.json_schema import JsonSchemaMode, models_json_schema

from nanoserve.server.answer_models import (
    ChatBody,
    ChatChunk,
    CompletionBody,
    ErrorBody,
    ModelCard,
    ModelList,
    VersionBody,
)
from nanoserve.server.chat_protocol import ChatCompletionRequest
from nanoserve.server.protocol import CompletionRequest
from nanoserve.server.token_routes import (
    DetokenizeBody,
    DetokenizeRequest,
    TokenizeBody,
    TokenizeRequest,
)

_SCHEMAS = "#/components/schemas/{model}"
_MODELS: Mapping[JsonSchemaMode, Sequence[type[BaseModel]]] = {
    "validation": (CompletionRequest, ChatCompletionRequest, TokenizeRequest, DetokenizeRequest),
    "serialization": (
        CompletionBody,
        ChatBody,
        ChatChunk,
        TokenizeBody,
        DetokenizeBody,
        ModelList,
        ModelCard,
        VersionBody,
        ErrorBody,
    ),
}
_REASONS = {
    400: "A field is wrong, or cannot be honoured",
    401: "No valid API key",
    404: "Not served here",
    413: "The body is too large",
    429: "Too much is in flight; see Retry-After",
    431: "The headers are too large",
    500: "The engine failed",
    503: "The engine is starting, stopping or stuck",
}
_ANY_ROUTE = (401, 431, 500)
_BODY_ROUTE = (400, 401, 404, 413, 431, 500)
_GENERATION_ROUTE = (*_BODY_ROUTE, 429, 503)


def describe_generation(
    request_model: type[BaseModel], answer_model: type[BaseModel], chunk_model: type[BaseModel]
) -> dict[str, Any]:
    """Describe a route that answers whole or as a stream of chunks."""
    content = _json_of(answer_model) | {"text/event-stream": {"itemSchema": _event_of(chunk_model)}}
    answer = {"description": "The answer, or the stream of its chunks", "content": content}
    return _body_of(request_model) | {"responses": _responses(answer, _GENERATION_ROUTE)}


def describe_call(request_model: type[BaseModel], answer_model: type[BaseModel]) -> dict[str, Any]:
    """Describe a route that takes a body and answers at once."""
    answer = {"description": "The answer", "content": _json_of(answer_model)}
    return _body_of(request_model) | {"responses": _responses(answer, _BODY_ROUTE)}


def describe_page(
    answer_model: type[BaseModel] | None = None,
    media_type: str = "application/json",
    errors: Sequence[int] = (),
) -> dict[str, Any]:
    """Describe a route without a body.

    Args:
        answer_model: None where only the media type is fixed.
        media_type: Of an answer without model.
        errors: Statuses it may have besides those of every route.
    """
    content: dict[str, Any] = {media_type: {}}
    if answer_model is not None:
        content = _json_of(answer_model)
    answer = {"description": "The page", "content": content}
    return {"responses": _responses(answer, (*_ANY_ROUTE, *errors))}


def describe_name(name: str) -> dict[str, Any]:
    """Describe a part of the path; one that FastAPI read would promise its own 422."""
    schema = {"type": "string"}
    return {"parameters": [{"name": name, "in": "path", "required": True, "schema": schema}]}


def _body_of(model: type[BaseModel]) -> dict[str, Any]:
    return {"requestBody": {"required": True, "content": _json_of(model)}}


def _responses(answer: dict[str, Any], errors: Sequence[int]) -> dict[str, Any]:
    refusals = {
        str(status): {"description": _REASONS[status], "content": _json_of(ErrorBody)}
        for status in sorted(errors)
    }
    return {"200": answer} | refusals


def _json_of(model: type[BaseModel]) -> dict[str, Any]:
    return {"application/json": {"schema": {"$ref": _SCHEMAS.format(model=model.__name__)}}}


def _event_of(chunk_model: type[BaseModel]) -> dict[str, Any]:
    """Describe one server-sent event, in the way of OpenAPI 3.2 and of FastAPI's own streams.

    Its data is [DONE], or the JSON of a chunk or of the error that cut the answer.
    """
    models = [_SCHEMAS.format(model=model.__name__) for model in (chunk_model, ErrorBody)]
    data = {
        "type": "string",
        "contentMediaType": "application/json",
        "contentSchema": {"anyOf": [{"$ref": model} for model in models]},
    }
    end = {"type": "string", "const": "[DONE]"}
    properties = {"data": {"anyOf": [end, data]}}
    return {"type": "object", "properties": properties, "required": ["data"]}


def complete_document(app: FastAPI) -> None:
    """Add schemas and API keys to the document that FastAPI makes of the routes."""
    paths_only = app.openapi

    def openapi() -> dict[str, Any]:
        document = paths_only()
        components = document.setdefault("components", {})
        for mode, models in _MODELS.items():
            _, definitions = models_json_schema(
                [(model, mode) for model in models], ref_template=_SCHEMAS
            )
            components.setdefault("schemas", {}).update(definitions["$defs"])
        components["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
        document["security"] = [{}, {"key": []}]
        return document

    app.openapi = openapi  # type: ignore[method-assign]  # FastAPI's documented way
