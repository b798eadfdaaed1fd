"""What the server says of itself, models to memory; and what it refuses."""

from typing import Any

from starlette.responses import Response

from nanoserve.errors import InvalidRequestError
from nanoserve.server.error_response import envelope, json_response
from nanoserve.server.metrics import METRICS_CONTENT_TYPE, render_metrics
from nanoserve.server.serving_context import ServingContext
from nanoserve.server.status_bodies import health_body, memory_body

REFUSED_ENDPOINTS = {
    "/v1/embeddings": "This server generates text and makes no embeddings.",
    "/v1/responses": "The Responses API is not served. Use /v1/chat/completions.",
}


def list_models(context: ServingContext) -> Response:
    """Return the one model that is served."""
    return json_response({"object": "list", "data": [_model_card(context)]})


def retrieve_model(context: ServingContext, model_id: str) -> Response:
    """Return the model's card.

    Raises:
        UnknownModelError: Another model is meant.
    """
    context.check_model(model_id)
    return json_response(_model_card(context))


def _model_card(context: ServingContext) -> dict[str, Any]:
    return {
        "id": context.model_name,
        "object": "model",
        "created": context.started,
        "owned_by": "nanoserve",
        "max_model_len": context.engine.limits.max_request_tokens,
    }


def show_health(context: ServingContext) -> Response:
    """Return 200 while the engine gets on, and 503 with the reason otherwise."""
    health = context.engine.health()
    body = health_body(health, context.boot_info, context.engine.stats())
    if health.is_ok:
        return json_response(body)
    message = f"The engine is {health.status.value}. {health.detail}".strip()
    return json_response(body | envelope(503, message, None, health.status.value), 503)


def show_metrics(context: ServingContext) -> Response:
    """Return the numbers in Prometheus' text format."""
    budget = [] if context.boot_info is None else context.boot_info["budget"]
    engine = context.engine
    page = render_metrics(engine.stats(), context.model_name, budget, engine.limits)
    return Response(page, headers={"content-type": METRICS_CONTENT_TYPE})


async def show_memory(context: ServingContext) -> Response:
    """Return every budget line, and the device as it is now; a driver may take its time."""
    read_memory = context.read_memory
    reading = None if read_memory is None else await context.off_loop(read_memory)
    return json_response(memory_body(context.boot_info, reading))


def show_version(context: ServingContext) -> Response:
    """Return the version of nanoserve."""
    return json_response({"version": context.version})


def refuse_endpoint(path: str) -> Response:
    """Refuse an endpoint by name.

    Raises:
        InvalidRequestError: Always.
    """
    raise InvalidRequestError(REFUSED_ENDPOINTS[path])
