"""Streams a checkpoint's tensors into a model's parameters.

The files are mapped, and each tensor is copied in pieces of a few MiB, cast, dequantised or
quantised on the way; a weight that is packed is so as soon as its rows are there. So resident
memory never holds a second copy of the weights, whatever the size of the file or of its
largest tensor.
"""

import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Thread
from typing import Protocol

import torch
from torch import Tensor, nn

from nanoserve.errors import InvariantError, UnsupportedModelError, WeightMismatchError
from nanoserve.kernels.kernel_library import KernelLibrary
from nanoserve.kernels.packed_weight import PackedWeight
from nanoserve.plan.weight_plan import LinearFormat
from nanoserve.spec.checkpoint import Checkpoint
from nanoserve.weights.dequant import check_type
from nanoserve.weights.filling import ByteCount, Filler, stored_bytes
from nanoserve.weights.float_reader import FloatReader
from nanoserve.weights.name_map import Target, gguf_targets, hf_targets, is_ignorable
from nanoserve.weights.packing import RowFit, allocate_weights, replace_parameters
from nanoserve.weights.quantize import can_keep
from nanoserve.weights.row_copy import Source
from nanoserve.weights.tensor_file import MappedFile, StoredTensor, check_unchanged, list_stored
from nanoserve.weights.weight_cache import CachedWeights, CacheEntry, WeightCache

_LAYERS = "layers."  # begins the name of a layer's parameter
_SAFETENSORS_TYPES = ("F32", "F16", "BF16")


@dataclass(frozen=True, slots=True)
class Int4Fitting:
    """How weights are fitted to 4 bits.

    Attributes:
        measure_importance: Asked, where any have to be, how much each input of them matters,
            [in] by name; None counts all the same.
        kernels: What fits them; None is torch.
    """

    measure_importance: Callable[[FloatReader], Mapping[str, Tensor]] | None = None
    kernels: KernelLibrary | None = None


@dataclass(frozen=True, slots=True)
class Packing:
    """What is about to be packed, since no earlier start left it.

    Attributes:
        num_bytes: Of the packed weights.
        is_fitted: Whether any of them are fitted to 4 bits.
        is_kept: Whether they are written for the next start.
        exceeding_bytes: Of their file, where that is more than all files may have; else 0.
        refusing_folder: Where they would be written, but for a full disk or missing rights.
    """

    num_bytes: int
    is_fitted: bool
    is_kept: bool
    exceeding_bytes: int
    refusing_folder: Path | None


class LoadListener(Protocol):
    """Who is told how loading goes."""

    def progress(self, done: int, total: int) -> None:
        """Note the file bytes read and in all: twice, those that are measured first."""
        ...

    def packing_started(self, packing: Packing) -> None:
        """Note that weights are packed now."""
        ...


@dataclass(frozen=True, slots=True)
class LoadReport:
    """What was loaded.

    Attributes:
        num_tensors: Checkpoint tensors copied.
        num_kept: Those of them whose quantised bits were kept.
        weight_bytes: Bytes of the parameters, packed ones as they are packed.
        cached: Packed weights as an earlier start left them; None if they were packed now.
        keeper: Writes them for the next start at present; None if nothing is written.
        measuring_seconds: That inputs were measured for; None where they were not.
    """

    num_tensors: int
    num_kept: int
    weight_bytes: int
    cached: CachedWeights | None
    keeper: Thread | None
    measuring_seconds: float | None


def load_weights(
    model: nn.Module,
    checkpoint: Checkpoint,
    listener: LoadListener | None = None,
    packed: Mapping[str, LinearFormat] | None = None,
    cache: WeightCache | None = None,
    fitting: Int4Fitting | None = None,
) -> LoadReport:
    """Fill a model's parameters from a checkpoint.

    Args:
        model: Its parameters have memory (see `placement`), but those that are packed;
            they are overwritten.
        checkpoint: Its spec describes `model`.
        listener: Told of each parameter, in whichever thread fills it; None tells nobody.
        packed: The format of each parameter that gives way to a `PackedWeight`, by every
            name it has; see `packing.packed_formats`.
        cache: Where packed weights are looked for, and kept for the next start; None packs
            them here and now.
        fitting: How weights are fitted to 4 bits; None is torch, with all inputs the same.

    Raises:
        WeightMismatchError: Tensors are missing, left over or misshapen; nothing was copied.
        UnsupportedModelError: A tensor's format cannot be read; nothing was copied.
        ModelError: A file was changed meanwhile.
        InvariantError: The model is not the one the spec describes, or has no memory yet.
    """
    packed = packed or {}
    is_gguf = checkpoint.gguf is not None
    targets = (gguf_targets if is_gguf else hf_targets)(checkpoint.spec)
    stored = list_stored(checkpoint)
    _check_tensors(checkpoint, targets, stored)
    parameters = dict(model.named_parameters(remove_duplicate=False))
    _check_parameters(parameters, targets, packed)
    wanted = [tensor for tensor in stored if tensor.name in targets]
    num_kept = sum(
        _is_kept(tensor, packed.get(targets[tensor.name].parameter)) for tensor in wanted
    )
    sources = _by_parameter(wanted, targets, checkpoint)
    shapes = {name: tuple(parameters[name].shape) for name in sources if name in packed}
    weights = allocate_weights(shapes, packed)
    entry = None if cache is None else cache.entry(checkpoint, packed, weights)
    cached = None if entry is None else entry.read()
    is_fitted = cached is None and _is_fitted(sources, packed)
    if cached is None and weights and listener is not None:
        listener.packing_started(_describe(weights, is_fitted, entry, cache))
    on_progress = None if listener is None else listener.progress
    count = ByteCount(_total_bytes(sources, is_fitted), on_progress)
    started = time.perf_counter()
    fits = _row_fits(fitting or Int4Fitting(), sources, count) if is_fitted else {}
    measured = time.perf_counter()
    with _one_thread():
        Filler(sources, parameters, packed, {} if cached else weights, fits).fill_all(count)
    check_unchanged(checkpoint)
    if cached is not None:
        weights = cached.weights
    keeper = entry.keep() if entry is not None and cached is None else None
    replace_parameters(model, parameters, weights)
    placed = {id(parameter): parameter.nbytes for parameter in model.parameters()}
    return LoadReport(
        num_tensors=len(wanted),
        num_kept=num_kept,
        weight_bytes=sum(placed.values()) + sum(weight.num_bytes for weight in weights.values()),
        cached=cached,
        keeper=keeper,
        measuring_seconds=measured - started if is_fitted else None,
    )


@contextmanager
def _one_thread() -> Iterator[None]:
    """Run each torch operation on one thread: so small, they gain nothing from a second.

    Measured: SmolLM2-135M loads in 0.35 s on one thread of an idle machine; beside a process
    that keeps both cores busy it takes 2.3 s on one thread and 12.9 s on two.
    """
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(num_threads)


def _check_tensors(
    checkpoint: Checkpoint, targets: dict[str, Target], stored: list[StoredTensor]
) -> None:
    """Refuse a checkpoint that is not the model's, before anything is copied."""
    shapes = {tensor.name: tensor.shape for tensor in stored}
    missing = tuple(name for name in targets if name not in shapes)
    unexpected = tuple(
        name for name in shapes if name not in targets and not is_ignorable(name, checkpoint.spec)
    )
    misshapen = tuple(
        f"{name} is {list(shapes[name])}, expected {list(target.shape)}"
        for name, target in targets.items()
        if name in shapes and shapes[name] != target.shape
    )
    if missing or unexpected or misshapen:
        raise WeightMismatchError(str(checkpoint.source.path), missing, unexpected, misshapen)
    for tensor in stored:
        if tensor.name in targets:
            _check_format(tensor, is_gguf=checkpoint.gguf is not None)


def _check_format(tensor: StoredTensor, is_gguf: bool) -> None:
    where = f"Tensor {tensor.name} in {tensor.path}"
    if is_gguf:
        check_type(tensor.type_name, where)
    elif tensor.type_name not in _SAFETENSORS_TYPES:
        what = f"{where} has dtype {tensor.type_name}; quantised safetensors cannot be read."
        raise UnsupportedModelError(what, _SAFETENSORS_TYPES)


def _check_parameters(
    parameters: dict[str, nn.Parameter], targets: dict[str, Target], packed: Collection[str]
) -> None:
    """Check that the targets fill every row of every parameter, tied ones by either name."""
    rows_filled = dict.fromkeys((id(parameter) for parameter in parameters.values()), 0)
    for target in targets.values():
        parameter = parameters.get(target.parameter)
        if parameter is None or parameter.shape[1:] != target.shape[1:]:
            message = f"The model has no parameter {target.parameter} for a {target.shape} tensor."
            raise InvariantError(message)
        rows_filled[id(parameter)] += target.shape[0]
    for name, parameter in parameters.items():
        has_no_memory = parameter.is_meta and name not in packed
        if rows_filled[id(parameter)] != parameter.shape[0] or has_no_memory:
            message = (
                f"Parameter {name} ({parameter.device}) has {parameter.shape[0]} rows, and the "
                f"checkpoint fills {rows_filled[id(parameter)]}."
            )
            raise InvariantError(message)


def _is_kept(tensor: StoredTensor, one: LinearFormat | None) -> bool:
    return one is not None and can_keep(tensor.type_name, one)


def _is_fitted(sources: Mapping[str, list[Source]], packed: Mapping[str, LinearFormat]) -> bool:
    """Whether weights are fitted to 4 bits, whose fit depends on what inputs matter."""
    return any(
        packed[name].name == "int4" and not can_keep(source.tensor.type_name, packed[name])
        for name, group in sources.items()
        if name in packed
        for source in group
    )


def _row_fits(
    fitting: Int4Fitting, sources: dict[str, list[Source]], count: ByteCount
) -> dict[str, RowFit]:
    """Return what each parameter's rows are fitted by."""
    measure = fitting.measure_importance
    importance = {} if measure is None else measure(FloatReader(sources, count.add))
    return {name: RowFit(importance.get(name), fitting.kernels) for name in sources}


def _total_bytes(sources: Mapping[str, list[Source]], is_fitted: bool) -> int:
    """Return the bytes of all tensors, those of layers twice where their inputs are measured."""
    return sum(
        stored_bytes(group) * (1 + (is_fitted and name.startswith(_LAYERS)))
        for name, group in sources.items()
    )


def _describe(
    weights: Mapping[str, PackedWeight],
    is_fitted: bool,
    entry: CacheEntry | None,
    cache: WeightCache | None,
) -> Packing:
    is_kept = entry is not None and entry.has_room()
    return Packing(
        sum(weight.num_bytes for weight in weights.values()),
        is_fitted,
        is_kept,
        exceeding_bytes=0 if cache is None else cache.exceeding_bytes(weights),
        refusing_folder=None if entry is None or is_kept else entry.files.folder,
    )


def _by_parameter(
    wanted: list[StoredTensor], targets: dict[str, Target], checkpoint: Checkpoint
) -> dict[str, list[Source]]:
    """Return the tensors of each parameter, in the order of the files."""
    known = checkpoint.identities
    files = {path: MappedFile(path, known.get(path)) for path in {each.path for each in wanted}}
    sources: dict[str, list[Source]] = {}
    for tensor in wanted:
        target = targets[tensor.name]
        sources.setdefault(target.parameter, []).append(Source(files[tensor.path], tensor, target))
    return sources
