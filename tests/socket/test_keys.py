"""API keys over the wire."""

from collections.abc import Callable
from typing import Any

import openai
import pytest

from tests.socket.conftest import Served

Serve = Callable[..., Served]
KEYS = ("first-key", "second-key")
ROUTES = [
    ("GET", "/v1/models"),
    ("GET", "/v1/models/fake"),
    ("GET", "/metrics"),
    ("GET", "/version"),
    ("GET", "/openapi.json"),
    ("GET", "/nothing"),
    ("GET", "/health/"),
    ("GET", "//health"),
    ("GET", "/%2e/health"),
    ("POST", "/v1/completions"),
    ("POST", "/v1/chat/completions"),
    ("POST", "/v1/embeddings"),
    ("POST", "/tokenize"),
    ("OPTIONS", "/v1/completions"),
]


@pytest.fixture
def guarded(serve_in_thread: Serve) -> Served:
    return serve_in_thread(api_keys=KEYS)


@pytest.mark.parametrize(("method", "path"), ROUTES)
def test_every_route_but_health_needs_a_key(guarded: Served, method: str, path: str) -> None:
    """401 in the envelope, whether or not there is such a route."""
    content = b"{" if method == "POST" else None
    for headers in ({}, {"authorization": "Bearer wrong-key"}, {"host": "x/health?"}):
        response = guarded.http.request(method, path, headers=headers, content=content)

        assert response.status_code == 401, response.text
        assert response.json()["error"]["code"] == "invalid_api_key"
        assert response.headers["www-authenticate"] == "Bearer"
    assert guarded.http.get("/health").status_code == 200


def test_prefixes_are_shared_within_a_key_alone(guarded: Served) -> None:
    """Another client's prompt cannot be found out by what is cached."""

    def cached_tokens(key: str) -> int:
        usage = guarded.http.post(
            "/v1/completions",
            json={"prompt": "twelve bytes", "max_tokens": 1},
            headers={"authorization": f"Bearer {key}"},
        ).json()["usage"]
        return int(usage["prompt_tokens_details"]["cached_tokens"])

    assert [cached_tokens(key) for key in (KEYS[0], KEYS[1], KEYS[0])] == [0, 0, 8]


def test_openai_client_sends_its_key(guarded: Served) -> None:
    """The right one works, another one is the client's own error."""

    def models(api_key: str) -> list[Any]:
        with openai.OpenAI(base_url=f"{guarded.url}/v1", api_key=api_key, max_retries=0) as client:
            return list(client.models.list())

    assert len(models(KEYS[1])) == 1
    with pytest.raises(openai.AuthenticationError):
        models("other-key")
