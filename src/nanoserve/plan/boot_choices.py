"""What the options leave open, decided: dtype, context, token budget, decode mode, pool sizing.

Each choice that an operator might not expect comes with a sentence that says why.
"""

from dataclasses import dataclass
from typing import Literal

from nanoserve.errors import OptionError
from nanoserve.options import DEFAULT_MAX_MODEL_LEN, DEFAULT_TOKEN_BUDGET, EngineOptions
from nanoserve.plan.device_facts import DeviceFacts
from nanoserve.spec.model_spec import ModelSpec

DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}

ResolvedDecodeMode = Literal["eager", "bucketed", "captured"]
PoolSizing = Literal["demand", "fill", "num_blocks", "kv_cache_bytes"]


@dataclass(frozen=True, slots=True)
class BootChoices:
    """The options with nothing left open.

    Attributes:
        dtype: Compute dtype.
        max_model_len: Longest request in tokens.
        token_budget: Most tokens of a step.
        decode_mode: How decode steps run.
        sized_by: What sets the number of KV blocks.
        notes: Each automatic choice or clamp, as a sentence with its reason.
    """

    dtype: str
    max_model_len: int
    token_budget: int
    decode_mode: ResolvedDecodeMode
    sized_by: PoolSizing
    notes: tuple[str, ...]

    @property
    def itemsize(self) -> int:
        """Bytes of one number in the compute dtype."""
        return DTYPE_BYTES[self.dtype]


def choose(
    spec: ModelSpec, options: EngineOptions, device: DeviceFacts, records_natively: bool = False
) -> BootChoices:
    """Decide what `options` leave open for this model on this device.

    Args:
        spec: The model.
        options: What the operator asked for.
        device: What there is.
        records_natively: Whether decode steps can be recorded as native operators.

    Raises:
        OptionError: Weights are to be quantised, and nothing here reads such weights.
    """
    _check_quantization(options, device)
    dtype, dtype_note = _choose_dtype(options, device)
    max_model_len, length_note = _choose_max_model_len(spec, options)
    return BootChoices(
        dtype=dtype,
        max_model_len=max_model_len,
        token_budget=_choose_token_budget(options, device),
        decode_mode=_choose_decode_mode(options, device, records_natively),
        sized_by=_choose_pool_sizing(options, device),
        notes=tuple(note for note in (dtype_note, length_note) if note),
    )


def _check_quantization(options: EngineOptions, device: DeviceFacts) -> None:
    if options.quantization == "none" or device.has_native_ops:
        return
    remedy = "add --device cpu" if device.kind == "cuda" else "install a C++ compiler (g++)"
    message = (
        f"--quantization {options.quantization} needs the CPU's native operators, and "
        f"{device.name} is to be served without them; {remedy}, or leave it out."
    )
    raise OptionError(message)


def _choose_dtype(options: EngineOptions, device: DeviceFacts) -> tuple[str, str]:
    if options.dtype != "auto":
        return options.dtype, ""
    if device.has_native_bf16:
        return "bfloat16", ""
    return "float32", f"dtype float32: {device.name} has no native bfloat16 arithmetic"


def _choose_max_model_len(spec: ModelSpec, options: EngineOptions) -> tuple[int, str]:
    limit = spec.max_position_embeddings
    if options.max_model_len is None:
        return min(DEFAULT_MAX_MODEL_LEN, limit), ""
    if options.max_model_len <= limit:
        return options.max_model_len, ""
    note = (
        f"max_model_len {limit:,}: {options.max_model_len:,} was asked for, "
        f"and the model was made for {limit:,} positions"
    )
    return limit, note


def _choose_token_budget(options: EngineOptions, device: DeviceFacts) -> int:
    if options.max_num_batched_tokens is not None:
        return options.max_num_batched_tokens
    return max(DEFAULT_TOKEN_BUDGET[device.kind], options.max_num_seqs)


def _choose_decode_mode(
    options: EngineOptions, device: DeviceFacts, records_natively: bool
) -> ResolvedDecodeMode:
    if options.cuda_graphs is not None:
        return "captured" if options.cuda_graphs else "eager"
    if options.decode_mode != "auto":
        return options.decode_mode
    return "captured" if device.kind == "cuda" or records_natively else "eager"


def _choose_pool_sizing(options: EngineOptions, device: DeviceFacts) -> PoolSizing:
    if options.num_blocks is not None:
        return "num_blocks"
    if options.kv_cache_bytes is not None:
        return "kv_cache_bytes"
    if options.kv_pool != "auto":
        return options.kv_pool
    return "demand" if device.kind == "cpu" else "fill"
