"""The HTTP application: paths to handlers, and the OpenAPI document.

Owns no state: everything a handler needs is in the `ServingContext` it closes over.
Starting and stopping is `serve`'s.
"""

from typing import Any

from fastapi import FastAPI, Request
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema
from starlette.responses import Response

from nanoserve.server.answer_models import ChatBody, CompletionBody, ErrorBody
from nanoserve.server.chat_routes import create_chat_completion
from nanoserve.server.completion_routes import create_completion
from nanoserve.server.error_response import install_error_handlers
from nanoserve.server.info_routes import (
    REFUSED_ENDPOINTS,
    list_models,
    refuse_endpoint,
    retrieve_model,
    show_health,
    show_memory,
    show_metrics,
    show_version,
)
from nanoserve.server.protocol import ChatCompletionRequest, CompletionRequest
from nanoserve.server.serving_context import ServingContext

_SCHEMAS = "#/components/schemas/{model}"
_BODY_MODELS: tuple[type[BaseModel], ...] = (
    CompletionRequest,
    ChatCompletionRequest,
    CompletionBody,
    ChatBody,
    ErrorBody,
)


def build_app(context: ServingContext) -> FastAPI:
    """Return the application over a running engine."""
    app = FastAPI(
        title="nanoserve",
        version=context.version,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
    )
    _add_generation_routes(app, context)
    _add_info_routes(app, context)
    _add_refused_routes(app)
    install_error_handlers(app)
    _describe_bodies(app)
    return app


def _add_generation_routes(app: FastAPI, context: ServingContext) -> None:
    @app.post("/v1/completions", openapi_extra=_body_of(CompletionRequest, CompletionBody))
    async def completions(request: Request) -> Response:
        return await create_completion(request, context)

    @app.post("/v1/chat/completions", openapi_extra=_body_of(ChatCompletionRequest, ChatBody))
    async def chat_completions(request: Request) -> Response:
        return await create_chat_completion(request, context)


def _add_info_routes(app: FastAPI, context: ServingContext) -> None:
    @app.get("/v1/models")
    async def models() -> Response:
        return list_models(context)

    @app.get("/v1/models/{model_id:path}")
    async def model(model_id: str) -> Response:
        return retrieve_model(context, model_id)

    @app.get("/health")
    async def health() -> Response:
        return show_health(context)

    @app.get("/memory")
    async def memory() -> Response:
        return await show_memory(context)

    @app.get("/metrics")
    async def metrics() -> Response:
        return show_metrics(context)

    @app.get("/version")
    async def version() -> Response:
        return show_version(context)


def _add_refused_routes(app: FastAPI) -> None:
    async def refused(request: Request) -> Response:
        return refuse_endpoint(request.url.path)

    for path in REFUSED_ENDPOINTS:
        app.add_api_route(path, refused, methods=["POST"], include_in_schema=False)


def _body_of(request_model: type[BaseModel], answer_model: type[BaseModel]) -> dict[str, Any]:
    """Describe a handler that reads its body itself."""
    return {
        "requestBody": {"required": True, "content": _json_of(request_model)},
        "responses": {
            "200": {"description": "The answer", "content": _json_of(answer_model)},
            "4XX": {"description": "Refused", "content": _json_of(ErrorBody)},
            "5XX": {"description": "Failed", "content": _json_of(ErrorBody)},
        },
    }


def _json_of(model: type[BaseModel]) -> dict[str, Any]:
    return {"application/json": {"schema": {"$ref": _SCHEMAS.format(model=model.__name__)}}}


def _describe_bodies(app: FastAPI) -> None:
    """Add the schemas that `_body_of` refers to."""
    paths_only = app.openapi

    def openapi() -> dict[str, Any]:
        document = paths_only()
        _, definitions = models_json_schema(
            [(model, "validation") for model in _BODY_MODELS], ref_template=_SCHEMAS
        )
        document.setdefault("components", {}).setdefault("schemas", {}).update(definitions["$defs"])
        return document

    app.openapi = openapi  # type: ignore[method-assign]  # FastAPI's documented way
