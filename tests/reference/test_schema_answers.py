"""SmolLM2-135M-Instruct at temperature 1, through HTTP: its JSON keeps to any schema."""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jsonschema_rs
import pytest
from hypothesis import Phase, given, settings

from tests.reference.smollm2 import smollm2_server
from tests.schema_strategies import JSON_SCHEMAS
from tests.socket.conftest import Served

MAX_NUM_SEQS = 32
MAX_TOKENS = 128
PROMPT = "Make up an example for this form and answer with its JSON."

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    with smollm2_server(max_num_seqs=MAX_NUM_SEQS, max_model_len=512) as served:
        yield served


def random_schemas(num_schemas: int) -> list[dict[str, Any]]:
    """Return the same schemas every time; a longer list begins as a shorter one."""
    found: list[dict[str, Any]] = []

    @settings(max_examples=num_schemas, phases=[Phase.generate], derandomize=True, database=None)
    @given(schema=JSON_SCHEMAS)
    def collect(schema: dict[str, Any]) -> None:
        found.append(schema)

    collect()
    return found


@pytest.mark.parametrize("num_schemas", [12, pytest.param(200, marks=pytest.mark.exhaustive)])
def test_every_answer_that_ends_is_valid(server: Served, num_schemas: int) -> None:
    """An answer is valid by its schema, or was cut by its length; most are not cut."""
    schemas = random_schemas(num_schemas)

    def ask(seed: int) -> dict[str, Any]:
        answer = server.post(
            "/v1/chat/completions",
            messages=[{"role": "user", "content": PROMPT}],
            response_format={
                "type": "json_schema",
                "json_schema": {"name": "form", "schema": schemas[seed]},
            },
            temperature=1.0,
            seed=seed,
            max_tokens=MAX_TOKENS,
        )
        choice: dict[str, Any] = answer["choices"][0]
        return choice

    with ThreadPoolExecutor(MAX_NUM_SEQS) as clients:
        choices = list(clients.map(ask, range(len(schemas))))

    ended = [
        (schema, choice["message"]["content"])
        for schema, choice in zip(schemas, choices, strict=True)
        if choice["finish_reason"] == "stop"
    ]
    assert len(choices) == num_schemas
    assert {choice["finish_reason"] for choice in choices} <= {"stop", "length"}
    assert [
        (schema, text)
        for schema, text in ended
        if not jsonschema_rs.is_valid(schema, json.loads(text))
    ] == []
    assert len(ended) > num_schemas // 2
