"""As much HTTP as a load needs, around a library that has none; runs in a peer's environment.

One model, `POST /v1/completions` with token ids, streamed. Imports nothing but the standard
library, and is imported by name: the scripts beside it run in other environments.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

Body = dict[str, Any]


class Answer:
    """The stream of one request; `is_over` once every token was written or the client left."""

    def __init__(self, writer: asyncio.StreamWriter, body: Body) -> None:
        self._writer = writer
        self._num_tokens = 0
        self.prompt: list[int] = body["prompt"]
        self.max_tokens: int = body["max_tokens"]

    @property
    def is_over(self) -> bool:
        """Whether nothing more can be written."""
        return self._writer.is_closing() or self._writer.transport.is_closing()

    def write(self, token_ids: Sequence[int]) -> None:
        """Write the tokens as one event, as numbers; after the last one, close the stream."""
        if self.is_over:
            return
        self._num_tokens += len(token_ids)
        text = "".join(f" {token_id}" for token_id in token_ids)
        self._event({"choices": [{"index": 0, "text": text, "finish_reason": None}]})
        if self._num_tokens >= self.max_tokens:
            counts = {
                "prompt_tokens": len(self.prompt),
                "completion_tokens": self._num_tokens,
            }
            self._event({"choices": [], "usage": counts})
            self._writer.write(b"data: [DONE]\n\n")
            self._writer.close()

    def _event(self, chunk: Body) -> None:
        self._writer.write(f"data: {json.dumps(chunk)}\n\n".encode())


async def listen(port: int, model: str, accept: Callable[[Answer], Awaitable[None]]) -> None:
    """Listen on 127.0.0.1, and hand every completion that is asked for to `accept`."""

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        lines = (line.partition(":") for line in head.split("\r\n")[1:])
        fields = {name.lower(): value.strip() for name, _, value in lines}
        if head.startswith("GET"):
            models = json.dumps({"object": "list", "data": [{"id": model}]})
            writer.write(_head("application/json") + models.encode())
            writer.close()
            return
        body = json.loads(await reader.readexactly(int(fields["content-length"])))
        writer.write(_head("text/event-stream"))
        await accept(Answer(writer, body))

    await asyncio.start_server(connected, "127.0.0.1", port)


def _head(content_type: str) -> bytes:
    return f"HTTP/1.1 200 OK\r\nContent-Type: {content_type}\r\nConnection: close\r\n\r\n".encode()
