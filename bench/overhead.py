"""What the server costs beside the model: `python bench/overhead.py [streams] [tokens]`.

Serves SmolLM2's tokenizer over a runner that returns at once, and streams from it in a
process of its own, both on the same cores. Prints the tokens a second of completions and of
chats, and how long /health takes meanwhile.
"""

import asyncio
import json
import multiprocessing
import os
import socket
import sys
import time
from multiprocessing.connection import Connection
from pathlib import Path

from nanoserve.engine.async_bridge import AsyncEngine
from nanoserve.engine.engine_core import EngineCore
from nanoserve.launch.boot_model import read_model
from nanoserve.sched.admission import EngineLimits
from nanoserve.sched.scheduler import Scheduler
from nanoserve.sched.step import StepPlan, StepResult
from nanoserve.server.app import build_app
from nanoserve.server.serve import serve
from nanoserve.server.serving_context import ServingContext

NUM_CORES = 2
HEALTH_EVERY_S = 0.02
TEXT = "Overhead is what a request costs beside the model: queues, text, JSON and sockets. "
CALLS = {
    "completions": ("/v1/completions", {"prompt": TEXT}),
    "chat": ("/v1/chat/completions", {"messages": [{"role": "user", "content": TEXT}]}),
}


class InstantRunner:
    """Says the same text to everybody, at once."""

    def __init__(self, token_ids: list[int]) -> None:
        self._token_ids = token_ids

    def execute(self, step: StepPlan) -> StepResult:
        """Return the next token of each request."""
        token_ids = self._token_ids
        sampled = tuple(
            token_ids[request.context_len % len(token_ids)] if request.samples else None
            for request in step.scheduled
        )
        return StepResult(step.step_id, sampled, {})


def run_server(num_streams: int, port_to: Connection) -> None:
    """Serve until told to stop; send the port first."""
    model = read_model("smollm2")
    limits = EngineLimits(
        num_blocks=num_streams * 128,
        block_size=16,
        max_num_seqs=num_streams,
        max_num_batched_tokens=512,
        max_model_len=2048,
        vocab_size=model.spec.vocab_size,
        eos_token_ids=model.stop_token_ids,
        enable_prefix_caching=True,
    )
    runner = InstantRunner(model.tokenizer.encode(TEXT))
    core = EngineCore(Scheduler(limits), runner, model.tokenizer)
    engine = AsyncEngine(core, limits, max_in_flight=2 * num_streams)
    context = ServingContext(engine, model.tokenizer, model.chat_template, "instant", "0")
    listening = socket.create_server(("127.0.0.1", 0), backlog=512)
    engine.start()
    port_to.send(listening.getsockname()[1])
    sys.exit(serve(build_app(context, ()), engine, listening, drain_seconds=0.0))


async def request(port: int, head: str, body: str = "") -> tuple[int, float]:
    """Return how many events an answer has, and how long it took to read."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    lines = (head, "Host: localhost", "Connection: close", f"Content-Length: {len(body)}")
    start_s = time.perf_counter()
    writer.write(("\r\n".join(lines) + "\r\n\r\n" + body).encode())
    num_events = 0
    while data := await reader.read(2**16):
        num_events += data.count(b"data: {")  # a frame begins in one read: they are written whole
    writer.close()
    return num_events, time.perf_counter() - start_s


def poll_health(port: int, samples_to: Connection) -> None:
    """Ask again and again how the server is, until told to stop; send the seconds taken."""
    samples_s = []
    while not samples_to.poll(HEALTH_EVERY_S):
        samples_s.append(asyncio.run(request(port, "GET /health HTTP/1.1"))[1])
    samples_to.send(samples_s)


def cpu_seconds(pid: int) -> float:
    """Return what a process has used of the cores, which other processes cannot inflate."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def stream_all(port: int, call: str, num_streams: int, num_tokens: int) -> int:
    """Return how many events the answers have together."""
    path, fields = CALLS[call]
    body = json.dumps(
        {"model": "instant", "stream": True, "max_tokens": num_tokens, "ignore_eos": True} | fields
    )
    answers = await asyncio.gather(
        *(request(port, f"POST {path} HTTP/1.1", body) for _ in range(num_streams))
    )
    return sum(num_events for num_events, _ in answers)


def measure(port: int, pid: int, call: str, num_streams: int, num_tokens: int) -> str:
    """Stream from the server and say how it went."""
    ours, theirs = multiprocessing.Pipe()
    poller = multiprocessing.Process(target=poll_health, args=(port, theirs))
    poller.start()
    start_s, start_cpu_s = time.perf_counter(), cpu_seconds(pid)
    num_events = asyncio.run(stream_all(port, call, num_streams, num_tokens))
    seconds, cpu_s = time.perf_counter() - start_s, cpu_seconds(pid) - start_cpu_s
    ours.send("stop")
    health_s = sorted(ours.recv())
    poller.join()
    num_all = num_streams * num_tokens
    return (
        f"{call:12}{num_all / seconds:9,.0f} tokens/s in {num_events:,} events, "
        f"{1e6 * cpu_s / num_all:5.0f} us of CPU each; "
        f"/health p99 {1e3 * health_s[int(0.99 * (len(health_s) - 1))]:6.1f} ms of {len(health_s)}"
    )


def main(num_streams: int = 32, num_tokens: int = 1900) -> None:
    """Print the figures."""
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:NUM_CORES])
    ours, theirs = multiprocessing.Pipe()
    server = multiprocessing.get_context("spawn").Process(
        target=run_server, args=(num_streams, theirs)
    )
    server.start()
    try:
        port = ours.recv()
        asyncio.run(stream_all(port, "completions", num_streams, 10))  # imports, first connections
        for call in CALLS:
            print(measure(port, server.pid or 0, call, num_streams, num_tokens), flush=True)
    finally:
        server.terminate()
        server.join()


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
