"""Packed weights of an earlier start are those that packing gives, or are not used."""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from nanoserve.kernels.packed_weight import PackedWeight, unpack
from nanoserve.plan.weight_plan import LinearFormat, plan_weights
from nanoserve.spec.checkpoint import Checkpoint
from nanoserve.weights import weight_cache, weight_file
from nanoserve.weights.loader import LoadReport, load_weights
from nanoserve.weights.packing import allocate_weights, packed_formats
from nanoserve.weights.placement import place_weights
from nanoserve.weights.weight_cache import CacheEntry, WeightCache, cache_key
from tests.unit.weights.stand_in import TINY_LLAMA, build_stand_in, random_tensors
from tests.unit.weights.test_loader import read_folder, write_folder

INT4 = LinearFormat("int4", 32)


@pytest.fixture
def checkpoint(tmp_path: Path) -> Checkpoint:
    """Return a tiny model's files."""
    return read_folder(write_folder(tmp_path, random_tensors(TINY_LLAMA)))


@pytest.fixture
def cache(tmp_path: Path) -> WeightCache:
    return WeightCache(tmp_path / "cache", least_bytes=1)


def load(
    checkpoint: Checkpoint,
    cache: WeightCache,
    dtype: str = "bfloat16",
    quantization: str = "int4",
) -> tuple[dict[str, Tensor], LoadReport]:
    """Load the model; return what its packed weights stand for, once they are kept."""
    plan = plan_weights(checkpoint.spec, dtype, quantization, is_packed=True)  # type: ignore[arg-type]
    model = build_stand_in(checkpoint.spec)
    packed = packed_formats(model, plan.formats)
    place_weights(model, "cpu", getattr(torch, dtype), packed)
    report = load_weights(model, checkpoint, packed=packed, cache=cache)
    if report.keeper is not None:
        report.keeper.join()
    return {name: unpack(packed_at(model, name)) for name in packed}, report


def packed_at(model: nn.Module, name: str) -> PackedWeight:
    path, _, leaf = name.rpartition(".")
    weight = getattr(model.get_submodule(path), leaf)
    assert isinstance(weight, PackedWeight)
    return weight


def tiny_entry(checkpoint: Checkpoint, cache: WeightCache) -> CacheEntry | None:
    weights = allocate_weights({"a": (40, 64)}, {"a": INT4})
    return cache.entry(checkpoint, {"a": INT4}, weights)


@pytest.mark.parametrize("is_read", [False, True], ids=["mapped", "read"])
@pytest.mark.parametrize(
    ("dtype", "quantization"),
    [
        ("float32", "none"),
        ("bfloat16", "none"),
        ("float16", "none"),
        ("bfloat16", "int8"),
        ("bfloat16", "int4"),
    ],
)
def test_a_second_load_has_what_the_first_packed(
    checkpoint: Checkpoint,
    cache: WeightCache,
    monkeypatch: pytest.MonkeyPatch,
    dtype: str,
    quantization: str,
    is_read: bool,
) -> None:
    """In every format, mapped or read, and nothing is packed or written again."""
    monkeypatch.setattr(weight_file, "_LEAST_HUGE", 2.0)
    monkeypatch.setattr(weight_file, "_offers_huge_pages", lambda: is_read)
    first, packed = load(checkpoint, cache, dtype, quantization)
    assert packed.cached is None
    monkeypatch.delattr("nanoserve.weights.loader._pack")

    second, cached = load(checkpoint, cache, dtype, quantization)

    assert cached.cached is not None
    assert (cached.cached.mapped_bytes == 0) == is_read
    assert cached.keeper is None
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert packed.weight_bytes == cached.weight_bytes
    assert (packed.num_tensors, packed.num_kept) == (cached.num_tensors, cached.num_kept)


def test_each_format_has_a_file_of_its_own(checkpoint: Checkpoint, cache: WeightCache) -> None:
    """A start in another format does not read them, nor put them out."""
    for quantization in ("none", "int8", "int4"):
        assert load(checkpoint, cache, quantization=quantization)[1].cached is None
    for quantization in ("none", "int8", "int4"):
        assert load(checkpoint, cache, quantization=quantization)[1].cached is not None


def test_a_damaged_file_is_packed_again(checkpoint: Checkpoint, cache: WeightCache) -> None:
    """It is deleted, and the next start finds a whole one."""
    first, _ = load(checkpoint, cache)
    (path,) = cache.folder.iterdir()
    data = bytearray(path.read_bytes())
    data[weight_file.HEADER_BYTES + 100] ^= 1
    path.write_bytes(data)

    second, report = load(checkpoint, cache)

    assert report.cached is None
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert load(checkpoint, cache)[1].cached is not None


def test_a_file_that_cannot_be_read_is_no_error(checkpoint: Checkpoint, cache: WeightCache) -> None:
    """The weights are packed; what lies in the way stays."""
    load(checkpoint, cache)
    (path,) = cache.folder.iterdir()
    path.unlink()
    path.mkdir()

    assert load(checkpoint, cache)[1].cached is None
    assert path.is_dir()


def test_a_file_that_may_only_be_read_is_used(
    checkpoint: Checkpoint, cache: WeightCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That its time cannot be set, as in another user's folder, is no reason to pack again."""
    load(checkpoint, cache)

    def refuse(path: Path) -> None:
        raise PermissionError(1, "Operation not permitted", str(path))

    monkeypatch.setattr(os, "utime", refuse)

    assert load(checkpoint, cache)[1].cached is not None


def test_reading_counts_as_use(checkpoint: Checkpoint, cache: WeightCache) -> None:
    """So that what every start reads is not what goes."""
    load(checkpoint, cache)
    (path,) = cache.folder.iterdir()
    os.utime(path, (1, 1))

    load(checkpoint, cache)

    assert path.stat().st_mtime > 1


def test_loads_at_once_are_all_right(checkpoint: Checkpoint, cache: WeightCache) -> None:
    """Servers that start together read what another has written, or pack."""
    wanted, _ = load(checkpoint, cache)
    (path,) = cache.folder.iterdir()

    def start(index: int) -> bool:
        if index % 3 == 0:
            path.unlink(missing_ok=True)
        values, _ = load(checkpoint, cache)
        return all(torch.equal(wanted[name], values[name]) for name in wanted)

    with ThreadPoolExecutor(4) as servers:
        assert all(servers.map(start, range(16)))
    assert [one.suffix for one in cache.folder.iterdir()] == [".weights"]


def test_few_weights_are_not_kept(checkpoint: Checkpoint, tmp_path: Path) -> None:
    """They are packed before a file could be opened."""
    _, report = load(checkpoint, WeightCache(tmp_path / "cache"))

    assert (report.cached, report.keeper) == (None, None)
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize("max_bytes", [0, 1024])
def test_a_cache_may_be_switched_off(
    checkpoint: Checkpoint, tmp_path: Path, max_bytes: int
) -> None:
    """Neither read nor written, as one that is too small for the weights."""
    folder = tmp_path / "cache"
    load(checkpoint, WeightCache(folder, least_bytes=1))

    _, report = load(checkpoint, WeightCache(folder, max_bytes, least_bytes=1))

    assert (report.cached, report.keeper) == (None, None)


def test_without_packed_weights_there_is_no_file(checkpoint: Checkpoint, tmp_path: Path) -> None:
    """As on a GPU."""
    assert WeightCache(tmp_path, least_bytes=0).entry(checkpoint, {}, {}) is None


def test_code_that_cannot_be_read_keeps_nothing(
    checkpoint: Checkpoint, cache: WeightCache, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Without it nobody knows whether an older file is still right."""
    monkeypatch.setattr(weight_cache, "_sources", lambda: [tmp_path / "gone.py"])

    assert tiny_entry(checkpoint, cache) is None


def test_code_that_is_named_is_part_of_the_key(checkpoint: Checkpoint, tmp_path: Path) -> None:
    """Weights that another module had a say in are packed again when it changes."""
    module = tmp_path / "module.py"
    keys = {cache_key(checkpoint, {"a": INT4})}
    for text in ("one", "two"):
        module.write_text(text)
        keys.add(cache_key(checkpoint, {"a": INT4}, (module,)))

    assert len(keys) == 3


def changed_byte(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1  # one of the places that are looked at
    status = path.stat()
    path.write_bytes(data)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def later(path: Path) -> None:
    status = path.stat()
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns + 1))


@pytest.mark.parametrize("change", [changed_byte, later])
def test_another_model_file_is_another_key(
    checkpoint: Checkpoint, change: Callable[[Path], None]
) -> None:
    """A byte in it, or its time."""
    (path,) = checkpoint.shards
    key = cache_key(checkpoint, {"a": INT4})
    assert cache_key(checkpoint, {"a": INT4}) == key

    change(path)

    assert cache_key(checkpoint, {"a": INT4}) != key


def test_other_formats_code_or_torch_are_another_key(
    checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Whatever the bytes depend on."""
    source = tmp_path / "packing.py"
    source.write_text("version = 1")
    keys = {cache_key(checkpoint, {"a": INT4})}
    keys.add(cache_key(checkpoint, {"a": LinearFormat("int8", 32)}))
    monkeypatch.setattr(weight_cache, "_sources", lambda: [source])
    keys.add(cache_key(checkpoint, {"a": INT4}))
    source.write_text("version = 2")
    keys.add(cache_key(checkpoint, {"a": INT4}))
    monkeypatch.setattr(torch, "__version__", "0.0")
    keys.add(cache_key(checkpoint, {"a": INT4}))

    assert len(keys) == 5
    assert {len(key) for key in keys} == {32}


def test_the_code_that_packs_is_in_the_key() -> None:
    """The quantiser, the panels and the order of rows."""
    names = {path.name for path in weight_cache._sources()}

    assert {"row_quantizer.py", "panel_layout.py", "packing.py", "row_copy.py"} <= names
