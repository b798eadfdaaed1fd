"""A stand-in for any server of the OpenAI API: scripted answers over a real socket."""

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from typing import Any

TIMEOUT_S = 60.0
Body = dict[str, Any]
Answer = AsyncIterator[bytes]

OK = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n"
DONE = b"data: [DONE]\n\n"
PATHS = ("/v1/completions", "/v1/chat/completions")


def event(text: str, finish_reason: str | None = None, **more: Any) -> bytes:
    """Return a chunk of a completion as an event."""
    choice = {"index": 0, "text": text, "finish_reason": finish_reason, **more}
    return f"data: {json.dumps({'choices': [choice]})}\n\n".encode()


def usage(prompt_tokens: int, completion_tokens: int) -> bytes:
    """Return the event that counts the tokens."""
    counts = {"prompt_tokens": prompt_tokens, "completion_tokens": completion_tokens}
    return f"data: {json.dumps({'choices': [], 'usage': counts})}\n\n".encode()


def chunked(body: bytes) -> bytes:
    """Return a piece of a body in chunked transfer encoding."""
    return f"{len(body):x}\r\n".encode() + body + b"\r\n"


def chat_event(text: str) -> bytes:
    """Return a chunk of a chat answer as an event."""
    return (
        f"data: {json.dumps({'choices': [{'index': 0, 'delta': {'content': text}}]})}\n\n".encode()
    )


def response(status: int, body: str, *headers: str) -> bytes:
    """Return a whole response with a body of its own kind."""
    content = body.encode()
    lines = (f"HTTP/1.1 {status} So", f"Content-Length: {len(content)}", *headers)
    return "\r\n".join((*lines, "Connection: close", "", "")).encode() + content


def refusal(status: int, message: str, *headers: str) -> bytes:
    """Return a whole error response."""
    return response(status, json.dumps({"error": {"message": message}}), *headers)


MODELS = response(200, json.dumps({"data": [{"id": "a-model"}]}))


async def whole_answer(body: Body) -> Answer:
    """Say `max_tokens` tokens, one an event, and count them."""
    yield OK
    for _ in range(body["max_tokens"]):
        yield event(" a")
    yield event("", "length")
    yield usage(len(body["prompt"]), body["max_tokens"]) + DONE


class OpenAIServer:
    """Listens on a port of the system's choice.

    Attributes:
        url: Its address.
        bodies: Of every POST, in order.
        most_at_once: Requests that were being answered at the same time.
    """

    def __init__(self, answer: Callable[[Body], Answer], models: bytes = MODELS) -> None:
        self._answer = answer
        self._models = models
        self._at_once = 0
        self.url = ""
        self.bodies: list[Body] = []
        self.most_at_once = 0
        self.listening = threading.Event()

    async def serve(self, stopping: asyncio.Event) -> None:
        """Serve until told to stop; answers that are not over then are cut."""
        server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        self.listening.set()
        await stopping.wait()
        server.close()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            if head.startswith("GET /v1/models "):
                writer.write(self._models)
                await writer.drain()
                return
            fields = dict(line.lower().split(": ", 1) for line in head.split("\r\n")[1:] if line)
            body = json.loads(await reader.readexactly(int(fields["content-length"])))
            assert head.split()[:2] in (["POST", path] for path in PATHS)
            await self._write_answer(body, writer)
        except (ConnectionError, EOFError, asyncio.CancelledError):
            pass  # the client went away, its request sent or not, or the test is over
        finally:
            writer.close()

    async def _write_answer(self, body: Body, writer: asyncio.StreamWriter) -> None:
        self.bodies.append(body)
        self._at_once += 1
        self.most_at_once = max(self.most_at_once, self._at_once)
        try:
            async for piece in self._answer(body):
                writer.write(piece)
                await writer.drain()
                await asyncio.sleep(0)
        finally:
            self._at_once -= 1


@contextmanager
def openai_server(
    answer: Callable[[Body], Answer] = whole_answer, models: bytes = MODELS
) -> Iterator[OpenAIServer]:
    """Run a server in a thread for as long as the block lasts.

    Args:
        answer: Yields the bytes of the response to a POST.
        models: The whole response to a GET of /v1/models.
    """
    server = OpenAIServer(answer, models)
    loop = asyncio.new_event_loop()
    stopping = asyncio.Event()

    def run() -> None:
        with asyncio.Runner(loop_factory=lambda: loop) as runner:
            runner.run(server.serve(stopping))

    thread = threading.Thread(target=run)
    thread.start()
    try:
        assert server.listening.wait(TIMEOUT_S)
        yield server
    finally:
        loop.call_soon_threadsafe(stopping.set)
        thread.join(TIMEOUT_S)
