"""A thin OpenAI-like server over OpenVINO GenAI's continuous batching, which has none.

    python openvino_server.py MODEL PORT MAX_NUM_SEQS CACHE_GIB

Runs in OpenVINO's environment and knows only what the load needs: token-id prompts, greedy,
streamed, without stop ids. One thread: the sockets are served between two steps. Events
carry token ids as text, so no detokenising is paid for.
"""

import asyncio
import sys
from typing import Any

import numpy as np
import openvino as ov
import openvino_genai as genai
from thin_http import Answer, listen

MAX_NUM_BATCHED_TOKENS = 512  # of a step: a prompt longer than this is split


class Pipeline:
    """Steps while there is work, and writes what each step brought."""

    def __init__(self, model: str, max_num_seqs: int, cache_gib: int) -> None:
        scheduler = genai.SchedulerConfig()
        scheduler.cache_size = cache_gib
        scheduler.max_num_seqs = max_num_seqs
        scheduler.max_num_batched_tokens = MAX_NUM_BATCHED_TOKENS
        scheduler.dynamic_split_fuse = True
        scheduler.enable_prefix_caching = True
        self._pipeline = genai.ContinuousBatchingPipeline(model, scheduler, "CPU")
        self._running: list[tuple[Any, Answer]] = []
        self._count = 0
        self._has_work = asyncio.Event()

    async def accept(self, answer: Answer) -> None:
        """Put a request into the pipeline."""
        config = genai.GenerationConfig()
        config.max_new_tokens = answer.max_tokens
        config.ignore_eos = True
        config.do_sample = False
        prompt = ov.Tensor(np.array([answer.prompt], dtype=np.int64))
        self._count += 1
        self._running.append((self._pipeline.add_request(self._count, prompt, config), answer))
        self._has_work.set()

    async def step_for_ever(self) -> None:
        """Step while requests run; wait where none does."""
        while True:
            await self._has_work.wait()
            self._pipeline.step()
            for handle, answer in self._running:
                _forward(handle, answer)
            self._running = [running for running in self._running if not running[1].is_over]
            if not self._running:
                self._has_work.clear()
            await asyncio.sleep(0)


def _forward(handle: Any, answer: Answer) -> None:
    """Write what a request gained; stop one whose client has left."""
    if answer.is_over:
        handle.stop()
        return
    while handle.can_read():
        answer.write([i for output in handle.read().values() for i in output.generated_ids])


async def main(model: str, port: str, max_num_seqs: str, cache_gib: str) -> None:
    """Serve until killed."""
    pipeline = Pipeline(model, int(max_num_seqs), int(cache_gib))
    await listen(int(port), "openvino", pipeline.accept)
    await pipeline.step_for_ever()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
