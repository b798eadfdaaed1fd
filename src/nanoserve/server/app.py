"""The HTTP application: paths to handlers, and the OpenAPI document.

Owns no state: everything a handler needs is in the `ServingContext` it closes over.
Starting and stopping is `serve`'s.
"""

from collections.abc import Sequence

from fastapi import FastAPI, Request
from starlette.responses import Response

from nanoserve.server.answer_models import (
    ChatBody,
    ChatChunk,
    CompletionBody,
    ModelCard,
    ModelList,
    VersionBody,
)
from nanoserve.server.auth import ApiKeyGate
from nanoserve.server.chat_protocol import ChatCompletionRequest
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
from nanoserve.server.metrics import METRICS_CONTENT_TYPE
from nanoserve.server.openapi import (
    complete_document,
    describe_call,
    describe_generation,
    describe_name,
    describe_page,
)
from nanoserve.server.protocol import CompletionRequest
from nanoserve.server.serving_context import ServingContext
from nanoserve.server.token_routes import (
    DetokenizeBody,
    DetokenizeRequest,
    TokenizeBody,
    TokenizeRequest,
    detokenize,
    tokenize,
)


def build_app(context: ServingContext, api_keys: Sequence[str] = ()) -> FastAPI:
    """Return the application over a running engine.

    Args:
        context: Of the server.
        api_keys: Who gets in; none lets everybody in.
    """
    app = FastAPI(
        title="nanoserve",
        version=context.version,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
    )
    _add_generation_routes(app, context)
    _add_token_routes(app, context)
    _add_info_routes(app, context)
    _add_refused_routes(app)
    install_error_handlers(app)
    complete_document(app)
    app.add_middleware(ApiKeyGate, keys=tuple(api_keys))
    return app


def _add_generation_routes(app: FastAPI, context: ServingContext) -> None:
    @app.post(
        "/v1/completions",
        openapi_extra=describe_generation(CompletionRequest, CompletionBody, CompletionBody),
    )
    async def completions(request: Request) -> Response:
        return await create_completion(request, context)

    @app.post(
        "/v1/chat/completions",
        openapi_extra=describe_generation(ChatCompletionRequest, ChatBody, ChatChunk),
    )
    async def chat_completions(request: Request) -> Response:
        return await create_chat_completion(request, context)


def _add_token_routes(app: FastAPI, context: ServingContext) -> None:
    @app.post("/tokenize", openapi_extra=describe_call(TokenizeRequest, TokenizeBody))
    async def tokenize_prompt(request: Request) -> Response:
        return await tokenize(request, context)

    @app.post("/detokenize", openapi_extra=describe_call(DetokenizeRequest, DetokenizeBody))
    async def detokenize_ids(request: Request) -> Response:
        return await detokenize(request, context)


def _add_info_routes(app: FastAPI, context: ServingContext) -> None:
    @app.get("/v1/models", openapi_extra=describe_page(ModelList))
    async def models() -> Response:
        return list_models(context)

    @app.get(
        "/v1/models/{model_id:path}",
        openapi_extra=describe_page(ModelCard, errors=[404]) | describe_name("model_id"),
    )
    async def model(request: Request) -> Response:
        return retrieve_model(context, request.path_params["model_id"])

    @app.get("/health", openapi_extra=describe_page(errors=[503]))
    async def health() -> Response:
        return show_health(context)

    @app.get("/memory", openapi_extra=describe_page())
    async def memory() -> Response:
        return await show_memory(context)

    @app.get("/metrics", openapi_extra=describe_page(media_type=METRICS_CONTENT_TYPE))
    async def metrics() -> Response:
        return show_metrics(context)

    @app.get("/version", openapi_extra=describe_page(VersionBody))
    async def version() -> Response:
        return show_version(context)


def _add_refused_routes(app: FastAPI) -> None:
    async def refused(request: Request) -> Response:
        return refuse_endpoint(request.url.path)

    for path in REFUSED_ENDPOINTS:
        app.add_api_route(path, refused, methods=["POST"], include_in_schema=False)
