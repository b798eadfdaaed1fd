"""The OpenAPI document and the API's page against the code."""

import re
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
from pydantic import BaseModel

from nanoserve.server.app import build_app
from nanoserve.server.chat_protocol import ChatCompletionRequest
from nanoserve.server.info_routes import REFUSED_ENDPOINTS
from nanoserve.server.protocol import CompletionRequest, GenerationFields
from nanoserve.server.token_routes import DetokenizeRequest, TokenizeRequest
from tests.builders import make_context, make_engine

PAGE = (Path(__file__).parents[3] / "docs" / "api.md").read_text()
CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    return build_app(make_context(make_engine())).openapi()


def test_every_operation_says_what_it_answers(document: dict[str, Any]) -> None:
    """Each has a 200 with content and errors in the envelope; each POST has a body."""
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            responses = operation["responses"]
            assert responses["200"]["content"], path
            assert {"401", "431", "500"} < set(responses), path
            assert ("requestBody" in operation) == (method == "post"), path
            for status, response in responses.items():
                if status != "200":
                    schema = response["content"]["application/json"]["schema"]
                    assert schema["$ref"].endswith("/ErrorBody"), (path, status)


def test_references_lead_somewhere(document: dict[str, Any]) -> None:
    """Schemas of bodies, answers and chunks are all there."""
    schemas = document["components"]["schemas"]
    references = set(re.findall(r"#/components/schemas/(\w+)", str(document)))

    assert references <= set(schemas)
    assert {"CompletionRequest", "ChatChunk", "TokenizeBody", "ErrorBody"} <= references


def test_page_names_every_field() -> None:
    """A field that clients may send is documented where they look for it."""
    sections = dict(re.findall(r"^## ([^\n]+)\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL))
    both = set(GenerationFields.model_fields)
    for model, title in (
        (GenerationFields, "Fields of both generation endpoints"),
        (CompletionRequest, "Completions"),
        (ChatCompletionRequest, "Chat"),
        (TokenizeRequest, "Tokenizing"),
        (DetokenizeRequest, "Tokenizing"),
    ):
        own = set(model.model_fields) - (set() if model is GenerationFields else both)

        assert {name for name in own if f"`{name}`" not in sections[title]} == set(), title


def test_page_names_every_endpoint(document: dict[str, Any]) -> None:
    """Those that are served, and those that are refused by name."""
    paths = [path.replace(":path", "") for path in document["paths"]]

    assert [path for path in [*paths, *REFUSED_ENDPOINTS] if path not in PAGE] == []


@pytest.mark.parametrize(
    ("path", "chunk"),
    [("/v1/completions", "CompletionBody"), ("/v1/chat/completions", "ChatChunk")],
)
def test_streams_are_described_event_by_event(
    document: dict[str, Any], path: str, chunk: str
) -> None:
    """An event's data is a chunk, an error or [DONE], where tools look for it."""
    content = document["paths"][path]["post"]["responses"]["200"]["content"]

    event = content["text/event-stream"]["itemSchema"]
    end, data = event["properties"]["data"]["anyOf"]
    references = [model["$ref"].split("/")[-1] for model in data["contentSchema"]["anyOf"]]
    assert references == [chunk, "ErrorBody"]
    assert end["const"] == "[DONE]"


@pytest.mark.parametrize(
    ("model", "body", "is_allowed"),
    [
        (CompletionRequest, {"prompt": "x"}, True),
        (CompletionRequest, {"prompt": [1, 2]}, True),
        (CompletionRequest, {"prompt": ["x", "y"]}, True),
        (CompletionRequest, {"prompt": [[1], [2]]}, True),
        (CompletionRequest, {"prompt": ""}, False),
        (CompletionRequest, {"prompt": []}, False),
        (CompletionRequest, {"prompt": [-1]}, False),
        (CompletionRequest, {"prompt": ["x", 1]}, False),
        (ChatCompletionRequest, {"messages": [{"role": "user", "content": "x"}]}, True),
        (ChatCompletionRequest, {"messages": [{"role": "assistant", "tool_calls": [CALL]}]}, True),
        (ChatCompletionRequest, {"messages": [{"role": "user"}]}, False),
        (ChatCompletionRequest, {"messages": [{"role": "user", "content": None}]}, False),
        (ChatCompletionRequest, {"messages": [{"role": "user", "tool_calls": [CALL]}]}, False),
        (TokenizeRequest, {"prompt": ""}, True),
        (TokenizeRequest, {"messages": [{"role": "user", "content": "x"}]}, True),
        (TokenizeRequest, {"prompt": "x", "messages": None}, True),
        (TokenizeRequest, {}, False),
        (DetokenizeRequest, {"tokens": [0]}, True),
        (DetokenizeRequest, {"tokens": [-1]}, False),
    ],
)
def test_schema_knows_what_is_always_refused(
    document: dict[str, Any], model: type[BaseModel], body: dict[str, Any], is_allowed: bool
) -> None:
    """Which prompts, turns and ids can be served at all is in the document."""
    reference = {"$ref": f"#/components/schemas/{model.__name__}"}
    schema = reference | {"components": document["components"]}

    assert jsonschema_rs.is_valid(schema, body) == is_allowed
