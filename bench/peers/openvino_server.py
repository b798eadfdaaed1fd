"""A thin OpenAI-like server over OpenVINO GenAI's continuous batching, which has none.

    python openvino_server.py MODEL PORT MAX_NUM_SEQS CACHE_GIB

Runs in OpenVINO's environment and knows only what the load needs: token-id prompts, greedy,
streamed, without stop ids. One thread: the sockets are served between two steps. Events
carry token ids as text, so no detokenising is paid for.
"""

import asyncio
import json
import sys
from dataclasses import dataclass
from typing import Any

import numpy as np
import openvino as ov
import openvino_genai as genai

MAX_NUM_BATCHED_TOKENS = 512  # of a step: a prompt longer than this is split


@dataclass
class Running:
    """A request in the pipeline."""

    handle: Any
    writer: asyncio.StreamWriter
    prompt_tokens: int
    max_tokens: int
    num_tokens: int = 0


class Server:
    """Steps the pipeline while there is work, and writes what each step brought."""

    def __init__(self, model: str, max_num_seqs: int, cache_gib: int) -> None:
        scheduler = genai.SchedulerConfig()
        scheduler.cache_size = cache_gib
        scheduler.max_num_seqs = max_num_seqs
        scheduler.max_num_batched_tokens = MAX_NUM_BATCHED_TOKENS
        scheduler.dynamic_split_fuse = True
        scheduler.enable_prefix_caching = True
        self._pipeline = genai.ContinuousBatchingPipeline(model, scheduler, "CPU")
        self._running: list[Running] = []
        self._count = 0
        self._has_work = asyncio.Event()

    async def step_for_ever(self) -> None:
        """Step while requests run; wait where none does."""
        while True:
            await self._has_work.wait()
            self._pipeline.step()
            for request in self._running:
                self._forward(request)
            self._running = [
                request for request in self._running if not request.writer.is_closing()
            ]
            if not self._running:
                self._has_work.clear()
            await asyncio.sleep(0)

    def _forward(self, request: Running) -> None:
        if request.writer.transport.is_closing():
            request.handle.stop()
            return
        while request.handle.can_read():
            ids = [i for output in request.handle.read().values() for i in output.generated_ids]
            request.num_tokens += len(ids)
            text = "".join(f" {token_id}" for token_id in ids)
            event = {"choices": [{"index": 0, "text": text, "finish_reason": None}]}
            request.writer.write(f"data: {json.dumps(event)}\n\n".encode())
        if request.num_tokens >= request.max_tokens:
            usage = {
                "prompt_tokens": request.prompt_tokens,
                "completion_tokens": request.num_tokens,
            }
            last = {"choices": [], "usage": usage}
            request.writer.write(f"data: {json.dumps(last)}\n\ndata: [DONE]\n\n".encode())
            request.writer.close()

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Read one request and put it into the pipeline."""
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        fields = {
            name.lower(): value.strip()
            for name, _, value in (line.partition(":") for line in head.split("\r\n")[1:])
        }
        if head.startswith("GET"):
            body = json.dumps({"object": "list", "data": [{"id": "openvino"}]})
            writer.write(_head("application/json") + body.encode())
            writer.close()
            return
        body = json.loads(await reader.readexactly(int(fields["content-length"])))
        config = genai.GenerationConfig()
        config.max_new_tokens = body["max_tokens"]
        config.ignore_eos = True
        config.do_sample = False
        prompt = body["prompt"]
        ids = ov.Tensor(np.array([prompt], dtype=np.int64))
        writer.write(_head("text/event-stream"))
        self._count += 1
        handle = self._pipeline.add_request(self._count, ids, config)
        self._running.append(Running(handle, writer, len(prompt), body["max_tokens"]))
        self._has_work.set()


def _head(content_type: str) -> bytes:
    return f"HTTP/1.1 200 OK\r\nContent-Type: {content_type}\r\nConnection: close\r\n\r\n".encode()


async def main(model: str, port: str, max_num_seqs: str, cache_gib: str) -> None:
    """Serve until killed."""
    server = Server(model, int(max_num_seqs), int(cache_gib))
    await asyncio.start_server(server.answer, "127.0.0.1", int(port))
    await server.step_for_ever()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
