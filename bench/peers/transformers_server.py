"""transformers' `generate` behind a socket: what the library does without its own server.

    python transformers_server.py FOLDER PORT

Runs in the transformers environment. Requests of one shape that wait together are one
batch, which runs to its end before the next begins: `generate` cannot do otherwise.
"""

import asyncio
import sys

import torch
from thin_http import Answer, listen
from transformers import AutoModelForCausalLM
from transformers.generation.streamers import BaseStreamer

_GATHER_S = 0.02  # how long a batch waits for those that were sent together
_PAD_ID = 2


class Batch(BaseStreamer):
    """Writes each step's tokens, from the thread that computes them."""

    def __init__(self, answers: list[Answer], loop: asyncio.AbstractEventLoop) -> None:
        self._answers = answers
        self._loop = loop
        self._is_prompt = True

    def put(self, value: torch.Tensor) -> None:
        """Take one token of each request; the first call brings the prompts."""
        if self._is_prompt:
            self._is_prompt = False
            return
        self._loop.call_soon_threadsafe(self._write, value.tolist())

    def end(self) -> None:
        """Nothing is held back."""

    def _write(self, token_ids: list[int]) -> None:
        for answer, token_id in zip(self._answers, token_ids, strict=True):
            answer.write([token_id])


async def main(folder: str, port: str) -> None:
    """Serve until killed."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).eval()
    model.generation_config.eos_token_id = None
    waiting: list[Answer] = []
    has_work = asyncio.Event()

    async def accept(answer: Answer) -> None:
        waiting.append(answer)
        has_work.set()

    await listen(int(port), "transformers", accept)
    loop = asyncio.get_running_loop()
    while True:
        await has_work.wait()
        await asyncio.sleep(_GATHER_S)
        first = waiting[0]
        shape = (len(first.prompt), first.max_tokens)
        batch = [one for one in waiting if (len(one.prompt), one.max_tokens) == shape]
        waiting[:] = [one for one in waiting if one not in batch]
        await asyncio.to_thread(_generate, model, batch, loop)
        if not waiting:
            has_work.clear()


@torch.inference_mode()
def _generate(
    model: torch.nn.Module, answers: list[Answer], loop: asyncio.AbstractEventLoop
) -> None:
    prompts = torch.tensor([answer.prompt for answer in answers])
    model.generate(
        input_ids=prompts,
        attention_mask=torch.ones_like(prompts),
        max_new_tokens=answers[0].max_tokens,
        do_sample=False,
        pad_token_id=_PAD_ID,
        streamer=Batch(answers, loop),
    )


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
