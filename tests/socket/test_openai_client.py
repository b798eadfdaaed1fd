"""The official client against the server."""

import asyncio
from collections.abc import Callable, Iterator

import openai
import pytest

from tests.builders import expected_text
from tests.socket.conftest import Served

Serve = Callable[..., Served]
PROMPT = "<user>hi\n<assistant>"


@pytest.fixture
def client(served: Served) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def test_unary_chat(client: openai.OpenAI) -> None:
    """The client reads the answer, the reason and the usage."""
    answer = client.chat.completions.create(
        model="fake", messages=[{"role": "user", "content": "hi"}], max_tokens=8
    )

    assert answer.choices[0].message.content == expected_text(PROMPT, 8)
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 8


def test_streamed_chat(client: openai.OpenAI) -> None:
    """The client's chunks add up, and the last one has the usage."""
    chunks = list(
        client.chat.completions.create(
            model="fake",
            messages=[{"role": "user", "content": "hi"}],
            max_completion_tokens=8,
            stream=True,
            stream_options={"include_usage": True},
        )
    )

    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == expected_text(PROMPT, 8)
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.total_tokens == len(PROMPT) + 8


def test_completion_and_models(client: openai.OpenAI) -> None:
    """Completions and the models list work through the client."""
    answer = client.completions.create(model="fake", prompt="hello", max_tokens=4)

    assert answer.choices[0].text == expected_text("hello", 4)
    assert [model.id for model in client.models.list()] == ["fake"]
    assert client.models.retrieve("fake").id == "fake"


def test_errors_are_the_clients_own(client: openai.OpenAI) -> None:
    """The client raises its typed errors, with our code."""
    with pytest.raises(openai.NotFoundError) as missing:
        client.completions.create(model="other", prompt="x")
    with pytest.raises(openai.BadRequestError) as refused:
        client.completions.create(model="fake", prompt="x", max_tokens=10**6)

    assert missing.value.code == "model_not_found"
    assert refused.value.code == "context_length_exceeded"


def test_16_concurrent_async_streams(served: Served) -> None:
    """Each concurrent stream gets its own text."""

    async def one(client: openai.AsyncOpenAI, i: int) -> str:
        stream = await client.completions.create(
            model="fake", prompt=f"p{i}", max_tokens=12, stream=True
        )
        return "".join([chunk.choices[0].text async for chunk in stream])

    async def main() -> list[str]:
        base_url = f"{served.url}/v1"
        async with openai.AsyncOpenAI(base_url=base_url, api_key="none") as client:
            return await asyncio.gather(*(one(client, i) for i in range(16)))

    assert asyncio.run(main()) == [expected_text(f"p{i}", 12) for i in range(16)]
