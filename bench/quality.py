"""What fewer bits cost: `python -m bench.quality MODEL.gguf [--peer PROGRAM NAME=FILE ...]`.

Teacher-forced on text that ships with Python (the topics of pydoc, in order of their names),
in windows that each begin a context: perplexity, mean KL divergence from float32, and how
often the likeliest token is float32's. A peer's program is handed the same windows and
writes its logits; `bench/quality_peer.cpp` is one for llama.cpp. The page docs/quality.md has the commands.
"""

import argparse
import hashlib
import math
import platform
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from functools import partial
from pydoc_data.topics import topics
from typing import Any

import numpy as np
import torch
from torch import Tensor

from nanoserve.attention.backend import AttentionInputs
from nanoserve.launch.llm import LLM
from nanoserve.options import EngineOptions

WINDOW = 512  # tokens; llama.cpp's perplexity tool has the same
BLOCK_SIZE = 16
OURS: dict[str, dict[str, Any]] = {
    "bfloat16": {"dtype": "bfloat16"},
    "int8": {"dtype": "bfloat16", "quantization": "int8"},
    "int4": {"dtype": "bfloat16", "quantization": "int4"},
    "bfloat16, int8 KV": {"dtype": "bfloat16", "kv_cache_dtype": "int8"},
    "bfloat16, fp8 KV": {"dtype": "bfloat16", "kv_cache_dtype": "fp8"},
}

Logits = Callable[[Sequence[int]], Tensor]  # of a window, [WINDOW, V]


@dataclass(slots=True)
class Losses:
    """Sums over all scored positions."""

    kl: float = 0.0
    num_same: int = 0
    nll: list[Tensor] = field(default_factory=list)  # float64 [WINDOW - 1] of each window

    def add(self, expected: Tensor, logits: Tensor, targets: Tensor) -> None:
        """Count one window.

        Args:
            expected: float32 log-probabilities, [WINDOW - 1, V].
            logits: Those compared, [WINDOW - 1, V].
            targets: The tokens that follow, int64 [WINDOW - 1].
        """
        found = torch.log_softmax(logits, dim=1)
        divergence = torch.linalg.vecdot(expected.exp(), expected - found)
        self.kl += float(divergence.double().sum())
        self.num_same += int((expected.argmax(1) == found.argmax(1)).sum())
        self.nll.append(-found.gather(1, targets[:, None]).squeeze(1).double())

    def row(self, name: str, base: "Losses") -> str:
        """Return a line of the table; the error is one standard error of the paired ratio."""
        nll, base_nll = torch.cat(self.nll), torch.cat(base.nll)
        differences = nll - base_nll
        error = float(differences.std()) / math.sqrt(len(nll))
        ratio = math.exp(float(differences.mean()))
        return (
            f"| {name} | {math.exp(float(nll.mean())):.3f} | {100 * (ratio - 1):+.2f} % "
            f"± {100 * ratio * error:.2f} | {self.kl / len(nll):.5f} "
            f"| {100 * self.num_same / len(nll):.2f} % |"
        )


def boot(model: str, **options: Any) -> LLM:
    """Return a model that can take one window."""
    return LLM(
        model,
        device="cpu",
        max_num_seqs=1,
        max_model_len=WINDOW,
        block_size=BLOCK_SIZE,
        num_blocks=WINDOW // BLOCK_SIZE,
        **options,
    )


@torch.inference_mode()
def window_logits(llm: LLM, token_ids: Sequence[int]) -> Tensor:
    """Return the logits at every position of a context that begins with the window."""
    length, booted = len(token_ids), llm._booted
    positions = torch.arange(length)
    inputs = AttentionInputs(
        slot_mapping=positions,
        block_tables=torch.arange(-(-length // BLOCK_SIZE), dtype=torch.int32)[None],
        context_lens=torch.tensor([length], dtype=torch.int32),
        query_starts=torch.tensor([0, length], dtype=torch.int32),
        fresh_blocks=torch.empty(0, dtype=torch.int64),
        query_lens=(length,),
        host_context_lens=(length,),
        num_decodes=0,
        block_size=BLOCK_SIZE,
    )
    decoder: Any = booted.core._runner._model  # type: ignore[attr-defined]
    logits: Tensor = decoder(
        torch.tensor(token_ids), positions, booted.pool.layers, inputs, positions
    )
    return logits


def peer_logits(program: str, path: str, vocab_size: int) -> Logits:
    """Start a peer and return what asks it for a window's logits."""
    words = [program, path, str(WINDOW), str(vocab_size), str(torch.get_num_threads())]
    peer = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def logits(token_ids: Sequence[int]) -> Tensor:
        assert peer.stdin is not None, "the peer has pipes"  # noqa: S101
        assert peer.stdout is not None, "the peer has pipes"  # noqa: S101
        peer.stdin.write(np.asarray(token_ids, dtype=np.int32).tobytes())
        peer.stdin.flush()
        answer = bytearray(peer.stdout.read(WINDOW * vocab_size * 4))
        return torch.frombuffer(answer, dtype=torch.float32).view(WINDOW, vocab_size)

    return logits


def candidates(
    model: str, peer: str, peer_models: Sequence[str], vocab_size: int
) -> dict[str, Logits]:
    """Return everything that is compared, by name."""
    known = {option.name for option in fields(EngineOptions)}
    found: dict[str, Logits] = {}
    for name, options in OURS.items():
        if options.keys() <= known:
            llm = boot(model, **options)
            found[f"nanoserve {name}"] = partial(window_logits, llm)
    for named in peer_models:
        name, _, path = named.partition("=")
        found[name] = peer_logits(peer, path, vocab_size)
    return found


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--tokens", type=int, default=40 * WINDOW)
    parser.add_argument("--peer", default="")
    parser.add_argument("peer_models", nargs="*", metavar="NAME=FILE")
    arguments = parser.parse_intermixed_args()
    reference = boot(arguments.model, dtype="float32")
    text = "\n".join(topics[name] for name in sorted(topics))
    token_ids = reference.tokenizer.encode(text)[: arguments.tokens]
    digest = hashlib.sha256(text.encode()).hexdigest()[:12]
    num_windows = len(token_ids) // WINDOW
    print(f"Python {platform.python_version()}, text {digest}, {num_windows} windows of {WINDOW}")
    vocab_size = reference._booted.limits.vocab_size
    compared = candidates(arguments.model, arguments.peer, arguments.peer_models, vocab_size)
    base, losses = Losses(), {name: Losses() for name in compared}
    for first in range(0, num_windows * WINDOW, WINDOW):
        window = token_ids[first : first + WINDOW]
        targets = torch.tensor(window[1:])
        expected = torch.log_softmax(window_logits(reference, window)[:-1], dim=1)
        base.add(expected, expected, targets)
        for name, logits in compared.items():
            losses[name].add(expected, logits(window)[:-1], targets)
    print("| weights and arithmetic | perplexity | against float32 | mean KL | top-1 the same |")
    print("|---|---|---|---|---|")
    for name, sums in {"nanoserve float32": base, **losses}.items():
        print(sums.row(name, base))


if __name__ == "__main__":
    main()
