"""What a boot needs of a model: what is known before its weights are read, and how they are.

`CheckpointModel` is a model on disk. Knows nothing of devices or of what fits.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Protocol

from nanoserve.errors import CorruptFileError
from nanoserve.kernels.kernel_build import SOURCE_FOLDER, cache_folder
from nanoserve.kernels.kernel_library import KernelLibrary
from nanoserve.launch import input_importance
from nanoserve.launch.stages import BootListener
from nanoserve.model.decoder import Decoder
from nanoserve.options import DEFAULT_WEIGHT_CACHE_BYTES
from nanoserve.plan.weight_plan import LinearFormat
from nanoserve.spec.checkpoint import Checkpoint, read_checkpoint
from nanoserve.spec.model_dir import resolve_model
from nanoserve.spec.model_spec import ModelSpec
from nanoserve.spec.param_count import count_parameters
from nanoserve.text.chat_template import ChatTemplate
from nanoserve.text.gguf_tokenizer import tokenizer_from_gguf
from nanoserve.text.tokenizer import Tokenizer, tokenizer_from_folder
from nanoserve.units import GIB, ceil_div, format_bytes
from nanoserve.weights.loader import Int4Fitting, LoadReport, Packing, load_weights
from nanoserve.weights.weight_cache import LEAST_BYTES, WeightCache

_FIT_SOURCES = (
    Path(input_importance.__file__),
    *(SOURCE_FOLDER / name for name in ("int4_fit.cpp", "ops.h", "vec.h")),
)


@dataclass(frozen=True, slots=True)
class FilledWeights:
    """How a decoder got its values.

    Attributes:
        detail: What was loaded, for people.
        mapped_bytes: Resident bytes of files that weights are mapped from.
        is_packed_now: Whether rows were packed, rather than found as an earlier start left them.
    """

    detail: str
    mapped_bytes: int = 0
    is_packed_now: bool = False


class BootModel(Protocol):
    """A model that can be booted."""

    @property
    def name(self) -> str:
        """What its source calls it."""
        ...

    @property
    def spec(self) -> ModelSpec:
        """Its shape."""
        ...

    @property
    def stop_token_ids(self) -> frozenset[int]:
        """Ids that end an answer."""
        ...

    @property
    def tokenizer(self) -> Tokenizer:
        """Its own tokenizer."""
        ...

    @property
    def chat_template(self) -> ChatTemplate | None:
        """Its chat template; None where it has none."""
        ...

    def fill(
        self,
        decoder: Decoder,
        listener: BootListener,
        packed: Mapping[str, LinearFormat],
        kernels: KernelLibrary | None,
    ) -> FilledWeights:
        """Give every parameter its values.

        Args:
            decoder: Of this model's shape; its parameters are placed, but for packed ones.
            listener: Told how far it is, and what is packed.
            packed: The format of each parameter that gives way to a packed weight.
            kernels: What fits weights to 4 bits; None is torch.
        """
        ...


@dataclass(frozen=True, slots=True)
class CheckpointModel:
    """A model on disk; see `BootModel`.

    Attributes:
        checkpoint: Its files, headers read.
        tokenizer: Its own tokenizer.
        chat_template: None where it has none.
        weight_cache_bytes: Most bytes of packed weights kept on disk, of all models together.
    """

    checkpoint: Checkpoint
    tokenizer: Tokenizer
    chat_template: ChatTemplate | None
    weight_cache_bytes: int = DEFAULT_WEIGHT_CACHE_BYTES

    @property
    def name(self) -> str:
        """What the user called it, without the folders above."""
        return self.checkpoint.source.display_name

    @property
    def spec(self) -> ModelSpec:
        """Its shape."""
        return self.checkpoint.spec

    @property
    def stop_token_ids(self) -> frozenset[int]:
        """Ids that end an answer, from every file that names one."""
        return self.checkpoint.stop_token_ids

    def fill(
        self,
        decoder: Decoder,
        listener: BootListener,
        packed: Mapping[str, LinearFormat],
        kernels: KernelLibrary | None,
    ) -> FilledWeights:
        """Stream the tensors in, or map what an earlier start packed.

        Raises:
            WeightMismatchError: Tensors are missing, left over or misshapen.
            UnsupportedModelError: A tensor's format cannot be read.
        """
        folder = cache_folder("weights")
        cache = WeightCache(folder, self.weight_cache_bytes, sources=_FIT_SOURCES)
        measure = partial(input_importance.measure_importance, self.spec)
        fitting = Int4Fitting(measure, kernels)
        told = _Told(listener, self.weight_cache_bytes)
        report = load_weights(decoder, self.checkpoint, told, packed, cache, fitting)
        mapped_bytes = 0 if report.cached is None else report.cached.mapped_bytes
        is_packed_now = bool(packed) and report.cached is None
        return FilledWeights(_describe_load(report), mapped_bytes, is_packed_now)

    def describe(self) -> str:
        """Return one line for people."""
        num_parameters = count_parameters(self.spec).total
        file_name = self.checkpoint.source.path.name
        return f"{file_name}: {self.spec.architecture}, {num_parameters:,} parameters"


def read_model(name: str, weight_cache_bytes: int | None = None) -> CheckpointModel:
    """Find a model's files and read all of them but the weights.

    Args:
        name: Preset name, local folder, .gguf file or hub id.
        weight_cache_bytes: Most bytes of packed weights to keep on disk; None is the default.

    Raises:
        ModelError: The model cannot be read or is not supported.
    """
    checkpoint = read_checkpoint(resolve_model(name))
    tokenizer = _read_tokenizer(checkpoint)
    template = _read_chat_template(tokenizer)
    if weight_cache_bytes is None:
        weight_cache_bytes = DEFAULT_WEIGHT_CACHE_BYTES
    return CheckpointModel(checkpoint, tokenizer, template, weight_cache_bytes)


@dataclass(frozen=True, slots=True)
class _Told:
    """Passes on to a boot's listener what loading tells; see `LoadListener`."""

    listener: BootListener
    weight_cache_bytes: int

    def progress(self, done: int, total: int) -> None:
        """Pass it on."""
        self.listener.progress(done, total)

    def packing_started(self, packing: Packing) -> None:
        """Say what the wait is for, and whether the next start has it as well."""
        if packing.num_bytes >= LEAST_BYTES:
            self.listener.note(_describe_packing(packing, self.weight_cache_bytes))


def _describe_packing(packing: Packing, weight_cache_bytes: int) -> str:
    work = f"packing {format_bytes(packing.num_bytes)}"
    if packing.is_fitted:
        work += ", after measuring inputs on random tokens to fit them to 4 bits"
    if packing.is_kept:
        return f"{work}; the next start finds it on disk"
    if packing.refusing_folder is not None:
        return (
            f"{work}, as at every start: {packing.refusing_folder} may not be written, or its "
            "disk is full; NANOSERVE_CACHE names another folder"
        )
    if not packing.exceeding_bytes:
        return work
    fitting_flag = f"--weight-cache-bytes {ceil_div(packing.exceeding_bytes, GIB)}GiB"
    return (
        f"{work}, as at every start: {format_bytes(packing.exceeding_bytes)} on disk is more than "
        f"the {format_bytes(weight_cache_bytes)} that is kept; {fitting_flag} would keep it"
    )


def _describe_load(report: LoadReport) -> str:
    kept = f", {report.num_kept:,} kept as stored" if report.num_kept else ""
    cached = ""
    if report.cached is not None:
        how = "mapped" if report.cached.mapped_bytes else "read"
        cached = f", {how} as an earlier start packed them"
    seconds = report.measuring_seconds
    measured = "" if seconds is None else f", inputs measured in {seconds:.1f} s"
    return f"{report.num_tensors:,} tensors{kept}{cached}{measured}"


def _read_tokenizer(checkpoint: Checkpoint) -> Tokenizer:
    path, num_rows = checkpoint.source.path, checkpoint.spec.vocab_size
    if checkpoint.gguf is not None:
        tokenizer = tokenizer_from_gguf(checkpoint.gguf.metadata, str(path))
    else:
        tokenizer = tokenizer_from_folder(path)
    if tokenizer.base_vocab_size > num_rows:  # a token added without a row costs its prompts
        problem = (
            f"the tokenizer has {tokenizer.base_vocab_size:,} tokens and the model "
            f"{num_rows:,}: they do not belong together."
        )
        raise CorruptFileError(str(path), problem)
    return tokenizer


def _read_chat_template(tokenizer: Tokenizer) -> ChatTemplate | None:
    if tokenizer.chat_template is None:
        return None
    return ChatTemplate(tokenizer.chat_template, tokenizer.bos_token, tokenizer.eos_token)
