"""Options of the engine and the server: frozen, checked once, no I/O.

Defaults are stated here and nowhere else; `--help` and docs/options.md are made from them.
None stands for "auto": the launcher resolves it and prints what it chose and why.
"""

from dataclasses import dataclass, field
from typing import Any, Literal, get_args, get_origin, get_type_hints

from nanoserve.errors import OptionError
from nanoserve.units import GIB

Device = Literal["auto", "cpu", "cuda"]
DType = Literal["auto", "float32", "bfloat16", "float16"]
DecodeMode = Literal["auto", "eager", "bucketed", "captured"]
AttentionChoice = Literal["auto", "torch", "native", "flashinfer"]
Quantization = Literal["none", "int8", "int4"]
KVPoolSizing = Literal["auto", "fill", "demand"]
MemoryPolicy = Literal["device", "process"]
KVCacheDType = Literal["auto", "int8", "fp8"]

DEFAULT_MODEL = "smollm2"
MAX_THREADS = 1024  # torch starts each one, and a system has a limit
MIN_MODEL_LEN = 2  # tokens: one of a prompt and one of its answer
DEFAULT_CAPTURE_LIMIT = 64  # graphs one process holds
DEFAULT_WEIGHT_CACHE_BYTES = 8 * GIB  # on disk, of all models together
DEFAULT_QUEUED_TOKENS = 2**20  # minutes of prefill on a CPU, seconds on a large GPU
DEFAULT_MAX_MODEL_LEN = 2048  # tokens; a serving decision, not the model's limit
DEFAULT_TOKEN_BUDGET = {"cpu": 512, "cuda": 2048}  # tokens in one step, by device

MAX_TARGET_ITL_MS = 3_600_000  # an hour: whoever waits longer has set no aim

_AT_LEAST_ONE = (
    "max_num_seqs",
    "max_num_batched_tokens",
    "num_blocks",
    "kv_cache_bytes",
    "warm_rows",
    "warm_width",
    "capture_limit",
    "capture_bytes",
    "threads",
)


def flag_name(field_name: str) -> str:
    """Return the flag of a field: `max_model_len` is `--max-model-len`."""
    return f"--{field_name.replace('_', '-')}"


def _option(default: Any, text: str) -> Any:
    return field(default=default, metadata={"help": text})


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """What the engine is built from; `help` of each field is its meaning."""

    model: str = _option(
        DEFAULT_MODEL, "preset name, local folder, .gguf file, or Hugging Face hub id"
    )
    device: Device = _option("auto", "where to run: cpu, cuda, or auto (cuda if there is one)")
    dtype: DType = _option(
        "auto", "compute dtype: float32, bfloat16, float16; auto is bfloat16 where it is native"
    )
    quantization: Quantization = _option(
        "none",
        "weights of the linear layers: none (in the compute dtype), int8, or int4 (the output "
        "head then has 8 bits); with native operators alone",
    )
    max_num_seqs: int = _option(8, "most requests that run at once")
    max_model_len: int | None = _option(
        None, "longest prompt + output in tokens (default: 2048, or the model's if less)"
    )
    max_num_batched_tokens: int | None = _option(
        None, "token budget of one step (default: 512 on CPU, 2048 on CUDA)"
    )
    target_itl_ms: float | None = _option(
        None,
        "longest gap between an answer's tokens to aim for, in ms: prompts beside it are read in "
        "smaller pieces (default: on CPU nearly as much time for prompts as for answers; on CUDA no aim)",
    )
    block_size: int = _option(16, "tokens per KV block; a power of two")
    num_blocks: int | None = _option(None, "KV blocks to allocate, instead of the planned number")
    kv_cache_bytes: int | None = _option(
        None, "bytes for the KV pool, e.g. 512MiB, instead of the planned number"
    )
    kv_cache_dtype: KVCacheDType = _option(
        "auto",
        "how K and V are stored: auto (the compute dtype), int8 (with a float32 scale for each "
        "head of each token) or fp8 (e4m3, no scale); int8 and fp8 with native attention alone",
    )
    kv_pool: KVPoolSizing = _option(
        "auto",
        "demand: room for max_num_seqs requests of max_model_len; fill: all that is left; "
        "auto is demand on CPU, fill on CUDA",
    )
    gpu_memory_utilization: float = _option(0.9, "share of the GPU's memory to plan with")
    memory_policy: MemoryPolicy = _option(
        "device",
        "what the utilization promises: device (all of the card, other processes included) "
        "or process (this process alone)",
    )
    attention_backend: AttentionChoice = _option(
        "auto",
        "what attends: torch; native (C++ built on this machine, for the CPU, with the other "
        "operators of a layer); flashinfer (for CUDA); auto is native or flashinfer where there is one",
    )
    decode_mode: DecodeMode = _option(
        "auto",
        "how decode steps run: eager, bucketed (padded to a list of shapes), captured "
        "(recorded and replayed); auto is captured on CUDA and with native operators, else eager",
    )
    cuda_graphs: bool | None = _option(
        None, "capture decode steps: short for --decode-mode captured; the negative for eager"
    )
    compile: bool = _option(False, "compile the layers with torch.compile")
    warm: bool = _option(True, "record every planned shape before serving")
    warm_rows: int | None = _option(None, "most rows of a shape to record (default: max_num_seqs)")
    warm_width: int | None = _option(
        None, "widest context of a shape to record, in tokens (default: max_model_len)"
    )
    capture_limit: int = _option(DEFAULT_CAPTURE_LIMIT, "most graphs held at once")
    capture_bytes: int | None = _option(
        None, "bytes for captured steps, e.g. 64MiB, instead of what the widest shape needs"
    )
    deterministic: bool = _option(
        False,
        "batch-invariant kernels and reductions: a request gets the same bits whatever it is "
        "computed with; on CPU alone, and slower",
    )
    enable_prefix_caching: bool = _option(True, "reuse the KV of prompt prefixes seen before")
    threads: int | None = _option(None, "CPU threads of the forward pass (default: all cores)")
    weight_cache_bytes: int | None = _option(
        None,
        "most bytes of packed weights kept on disk for the next start, of all models together; "
        "what was not used for longest goes first, 0 keeps none (default: 8GiB; with native "
        "operators alone)",
    )
    trace_file: str | None = _option(None, "file that gets one JSON line for each step")
    boot_report: str | None = _option(
        None,
        "file that gets the boot report as JSON; for it, a CPU runs the largest step once, "
        "to measure it",
    )

    def __post_init__(self) -> None:
        """Refuse impossible values.

        Raises:
            OptionError: Names the flag, its value and what is allowed.
        """
        _check_types(self)
        for name in _AT_LEAST_ONE:
            _at_least(name, getattr(self, name), 1)
        _at_least("max_model_len", self.max_model_len, MIN_MODEL_LEN)
        _at_least("weight_cache_bytes", self.weight_cache_bytes, 0)
        _within("target_itl_ms", self.target_itl_ms, MAX_TARGET_ITL_MS)
        for name in ("trace_file", "boot_report"):
            if getattr(self, name) == "":
                _refuse(name, "''", "a file name")
        if self.threads is not None and self.threads > MAX_THREADS:
            _refuse("threads", self.threads, f"at most {MAX_THREADS}")
        if self.block_size < 1 or self.block_size & (self.block_size - 1):
            _refuse("block_size", self.block_size, "a power of two, at least 1")
        if self.num_blocks is not None and self.kv_cache_bytes is not None:
            message = "--num-blocks and --kv-cache-bytes both size the KV pool; give one of them."
            raise OptionError(message)
        _within("gpu_memory_utilization", self.gpu_memory_utilization, 1)
        if self.max_num_batched_tokens is not None:
            _at_least("max_num_batched_tokens", self.max_num_batched_tokens, self.max_num_seqs)
        if self.deterministic and self.compile:
            message = (
                "--deterministic cannot be combined with --compile, whose code for one row may "
                "differ from that for many; give one of them."
            )
            raise OptionError(message)
        self._check_quantization()
        self._check_decode_mode()

    def _check_quantization(self) -> None:
        others = {
            "--attention-backend torch": self.attention_backend == "torch",
            "--device cuda": self.device == "cuda",
            "--compile": self.compile,
        }
        refused = [flag for flag, is_given in others.items() if is_given]
        if self.quantization != "none" and refused:
            message = (
                f"--quantization {self.quantization} needs the CPU's native operators, and "
                f"{refused[0]} does without them; give one of the two."
            )
            raise OptionError(message)

    def _check_decode_mode(self) -> None:
        if self.cuda_graphs is None:
            return
        flag = "--cuda-graphs" if self.cuda_graphs else "--no-cuda-graphs"
        mode = "captured" if self.cuda_graphs else "eager"
        if self.decode_mode not in ("auto", mode):
            message = (
                f"{flag} means --decode-mode {mode}, and --decode-mode is {self.decode_mode}; "
                "give one of them."
            )
            raise OptionError(message)


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """What the HTTP front is built from."""

    host: str = _option("127.0.0.1", "address to bind")
    port: int = _option(8000, "port to bind; 0 lets the system choose")
    served_model_name: str | None = _option(
        None, "name clients use (default: the model's own name)"
    )
    max_queue: int = _option(256, "most requests waiting for a place before 429")
    max_queued_tokens: int = _option(
        DEFAULT_QUEUED_TOKENS, "most prompt tokens waiting for their first answer before 429"
    )
    api_key_file: str | None = _option(
        None,
        "file with one API key a line; keys may also stand in NANOSERVE_API_KEYS, parted by commas",
    )
    drain_seconds: float = _option(
        10.0,
        "how long running answers may go on after SIGTERM, SIGHUP or Ctrl-C; another signal, a "
        "second later or more, ends them at once",
    )
    log_level: str = _option("warning", "debug, info, warning or error")

    def __post_init__(self) -> None:
        """Refuse impossible values.

        Raises:
            OptionError: Names the flag, its value and what is allowed.
        """
        _check_types(self)
        if not self.host:
            _refuse("host", "''", "an address; 0.0.0.0 listens on all of them")
        name = self.served_model_name
        if name is not None and not (name and name.isprintable()):
            _refuse("served_model_name", repr(name), "a name of printable characters")
        if not 0 <= self.port <= 65535:
            _refuse("port", self.port, "between 0 and 65535")
        _at_least("max_queue", self.max_queue, 0)
        _at_least("max_queued_tokens", self.max_queued_tokens, 1)
        if not 0.0 <= self.drain_seconds <= 3600.0:
            _refuse("drain_seconds", self.drain_seconds, "between 0 and 3600")
        if self.log_level not in ("debug", "info", "warning", "error"):
            _refuse("log_level", self.log_level, "debug, info, warning or error")


def _check_types(options: Any) -> None:
    """Refuse values that the command line could not have made."""
    for name, hint in get_type_hints(type(options)).items():
        value = getattr(options, name)
        if not _fits(value, hint):
            literals = get_args(hint) if get_origin(hint) is Literal else ()
            allowed = ", ".join(literals) or f"of type {getattr(hint, '__name__', hint)}"
            _refuse(name, repr(value), allowed)


def _fits(value: object, hint: Any) -> bool:
    if get_origin(hint) is Literal:
        return value in get_args(hint)
    kinds = get_args(hint) or (hint,)
    return type(value) in kinds or (float in kinds and type(value) is int)


def _at_least(name: str, value: int | None, low: int) -> None:
    if value is not None and value < low:
        _refuse(name, value, f"at least {low}")


def _within(name: str, value: float | None, high: float) -> None:
    if value is not None and not 0.0 < value <= high:
        _refuse(name, value, f"above 0 and at most {high:,.10g}")


def _refuse(name: str, value: object, allowed: str) -> None:
    message = f"{flag_name(name)} is {value}; it must be {allowed}."
    raise OptionError(message)
