"""Packed weights of an earlier start are those that packing gives, or are not used."""

import hashlib
import os
import shutil
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from io import FileIO
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from nanoserve.kernels.packed_weight import PackedWeight, unpack
from nanoserve.plan.weight_plan import LinearFormat, plan_weights
from nanoserve.spec.checkpoint import Checkpoint
from nanoserve.spec.file_identity import read_identity
from nanoserve.weights import filling, weight_cache, weight_file
from nanoserve.weights.loader import LoadListener, LoadReport, Packing, load_weights
from nanoserve.weights.packing import allocate_weights, packed_formats
from nanoserve.weights.placement import place_weights
from nanoserve.weights.weight_cache import CacheEntry, WeightCache, settings_key
from tests.unit.weights.stand_in import TINY_LLAMA, build_stand_in, random_tensors
from tests.unit.weights.test_loader import read_folder, with_spec, write_folder

INT4 = LinearFormat("int4", 32)


@dataclass
class PackingListener:
    """Keeps what it is told is packed."""

    packings: list[Packing]

    def progress(self, done: int, total: int) -> None:
        """Is of no interest."""

    def packing_started(self, packing: Packing) -> None:
        self.packings.append(packing)


@pytest.fixture(autouse=True)
def disk_with_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no file stay unwritten for the sake of how full this machine's disk is."""
    monkeypatch.setattr("nanoserve.weights.cached_files._free_bytes", lambda folder: 2**50)


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
    listener: LoadListener | None = None,
) -> tuple[dict[str, Tensor], LoadReport]:
    """Load the model; return what its packed weights stand for, once they are kept."""
    plan = plan_weights(checkpoint.spec, dtype, quantization, is_packed=True)  # type: ignore[arg-type]
    model = build_stand_in(checkpoint.spec)
    packed = packed_formats(model, plan.formats)
    place_weights(model, "cpu", getattr(torch, dtype), packed)
    report = load_weights(model, checkpoint, listener, packed=packed, cache=cache)
    if report.keeper is not None:
        report.keeper.join()
    return {name: unpack(packed_at(model, name)) for name in packed}, report


def packed_at(model: nn.Module, name: str) -> PackedWeight:
    path, _, leaf = name.rpartition(".")
    weight = getattr(model.get_submodule(path), leaf)
    assert isinstance(weight, PackedWeight)
    return weight


def kept_files(cache: WeightCache) -> list[Path]:
    return list(cache.folder.glob("*.weights"))


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
    monkeypatch.delattr("nanoserve.weights.filling._pack")

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
    (path,) = kept_files(cache)
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
    (path,) = kept_files(cache)
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
    (path,) = kept_files(cache)
    os.utime(path, (1, 1))

    load(checkpoint, cache)

    assert path.stat().st_mtime > 1


def test_loads_at_once_are_all_right(checkpoint: Checkpoint, cache: WeightCache) -> None:
    """Servers that start together read what another has written, or pack."""
    wanted, _ = load(checkpoint, cache)
    (path,) = kept_files(cache)

    def start(index: int) -> bool:
        if index % 3 == 0:
            path.unlink(missing_ok=True)
        values, _ = load(checkpoint, cache)
        return all(torch.equal(wanted[name], values[name]) for name in wanted)

    with ThreadPoolExecutor(4) as servers:
        assert all(servers.map(start, range(16)))
    assert len(kept_files(cache)) == 1
    assert {one.name for one in cache.folder.iterdir()} == {path.name, "hashes"}


def test_what_another_has_kept_meanwhile_is_not_written_again(
    checkpoint: Checkpoint, cache: WeightCache
) -> None:
    """Of servers that pack at once, who is last finds its file there."""
    first, second = (tiny_entry(checkpoint, cache) for _ in range(2))
    assert first is not None
    assert second is not None
    assert first.read() is second.read() is None

    first.keep().join()
    (path,) = kept_files(cache)
    inode = path.stat().st_ino
    second.keep().join()

    assert [one.stat().st_ino for one in kept_files(cache)] == [inode]


def test_older_weights_stay_where_packing_fails(
    checkpoint: Checkpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Room is asked for before, and made only once there is something to write."""
    cache = WeightCache(tmp_path / "cache", max_bytes=weight_file.file_bytes(1), least_bytes=1)
    load(checkpoint, cache, quantization="int8")
    (older,) = kept_files(cache)
    listener = PackingListener([])

    def fail(*args: object) -> None:
        raise ZeroDivisionError

    with monkeypatch.context() as patch:
        patch.setattr(filling, "_pack", fail)
        with pytest.raises(ZeroDivisionError):
            load(checkpoint, cache, listener=listener)

    assert [packing.is_kept for packing in listener.packings] == [True]
    assert kept_files(cache) == [older]
    load(checkpoint, cache)
    assert len(kept_files(cache)) == 1
    assert not older.exists()


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
    keys = {settings_key(checkpoint, {"a": INT4})}
    for text in ("one", "two"):
        module.write_text(text)
        keys.add(settings_key(checkpoint, {"a": INT4}, (module,)))

    assert len(keys) == 3


def refuse_to_hash(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(file: FileIO, algorithm: str) -> None:
        message = f"{file.name} is read"
        raise AssertionError(message)

    monkeypatch.setattr(hashlib, "file_digest", fail)


def test_a_second_start_does_not_read_the_model_whole(
    checkpoint: Checkpoint, cache: WeightCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its hash is remembered."""
    load(checkpoint, cache)
    refuse_to_hash(monkeypatch)

    assert load(read_folder(checkpoint.source.path), cache)[1].cached is not None


def copied(folder: Path) -> Path:
    return shutil.copytree(folder, folder.with_name("copy"), copy_function=shutil.copy)


def touched(folder: Path) -> Path:
    for path in folder.glob("*.safetensors"):
        os.utime(path)
    return folder


def linked(folder: Path) -> Path:
    """Lay the files out as a hub snapshot does."""
    snapshot = folder.with_name("snapshot")
    snapshot.mkdir()
    for path in folder.iterdir():
        (snapshot / path.name).symlink_to(path)
    return snapshot


@pytest.mark.parametrize("num_shards", [1, 3])
@pytest.mark.parametrize("move", [copied, touched, linked])
def test_the_same_model_elsewhere_is_not_packed_again(
    tmp_path: Path,
    cache: WeightCache,
    monkeypatch: pytest.MonkeyPatch,
    move: Callable[[Path], Path],
    num_shards: int,
) -> None:
    """What counts is what is in the files, and after one look that is known there too."""
    (tmp_path / "model").mkdir()
    folder = write_folder(tmp_path / "model", random_tensors(TINY_LLAMA), num_shards)
    first, _ = load(read_folder(folder), cache)

    folder = move(folder)
    second, report = load(read_folder(folder), cache)

    assert report.cached is not None
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert len(kept_files(cache)) == 1
    refuse_to_hash(monkeypatch)
    assert load(read_folder(folder), cache)[1].cached is not None


def flip_byte(path: Path) -> None:
    """Change the sign of one float32 weight, in place; size and time stay."""
    status = path.stat()
    start = read_folder(path.parent).shards[path]["model.layers.0.mlp.down_proj.weight"].start
    data = bytearray(path.read_bytes())
    data[start + 3] ^= 0x80
    path.write_bytes(data)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def put_another(path: Path) -> None:
    """Put another model of the same shapes where the file is, as old as it was."""
    other = path.parent / "other"
    other.mkdir()
    write_folder(other, random_tensors(TINY_LLAMA, seed=1))
    shutil.copystat(path, other / path.name)
    (other / path.name).replace(path)


@pytest.mark.parametrize("samples", [0, 64], ids=["unseen", "seen"])
@pytest.mark.parametrize("change", [flip_byte, put_another])
def test_another_model_in_the_same_place_is_packed(
    checkpoint: Checkpoint,
    cache: WeightCache,
    monkeypatch: pytest.MonkeyPatch,
    change: Callable[[Path], None],
    samples: int,
) -> None:
    """Whether or not it differs in the pieces that are looked at before it is read."""
    monkeypatch.setattr(weight_cache, "_SAMPLES", samples)
    (path,) = checkpoint.shards
    status, (first, _) = path.stat(), load(checkpoint, cache)

    change(path)

    assert (path.stat().st_size, path.stat().st_mtime_ns) == (status.st_size, status.st_mtime_ns)
    for is_cached in (False, True):
        values, report = load(read_folder(path.parent), cache)
        assert (report.cached is not None) == is_cached
        assert not all(torch.equal(first[name], values[name]) for name in first)
    assert len(kept_files(cache)) == 2


def test_a_model_that_never_was_here_is_packed_before_it_is_hashed(
    checkpoint: Checkpoint, cache: WeightCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No start waits for a hash that nothing can be found by: a fine-tuned model's either."""
    load(checkpoint, cache, quantization="none")
    (path,) = checkpoint.shards
    put_another(path)
    refuse_to_hash(monkeypatch)

    entry = tiny_entry(read_folder(path.parent), cache)

    assert entry is not None
    assert entry.model_hash is None
    assert entry.read() is None


@pytest.mark.parametrize("change", [flip_byte, put_another, Path.unlink])
def test_a_model_that_changes_while_it_is_packed_is_not_kept(
    checkpoint: Checkpoint,
    cache: WeightCache,
    monkeypatch: pytest.MonkeyPatch,
    change: Callable[[Path], None],
) -> None:
    """Nobody knows which of its bytes are in the weights."""
    (path,) = checkpoint.shards
    pack = filling._pack

    def disturbed(*arguments: Any) -> None:
        pack(*arguments)
        monkeypatch.setattr(filling, "_pack", pack)
        change(path)

    monkeypatch.setattr(filling, "COPY_THREADS", 1)
    monkeypatch.setattr(filling, "_pack", disturbed)

    assert load(checkpoint, cache)[1].cached is None
    assert not cache.folder.exists()


def test_a_model_that_changed_since_its_header_was_read_is_not_kept(
    checkpoint: Checkpoint, cache: WeightCache
) -> None:
    """Its change was hidden from all but the time of it that nobody can set."""
    (path,) = checkpoint.shards
    flip_byte(path)

    load(checkpoint, cache)

    assert not cache.folder.exists()


def test_a_model_that_changes_while_it_is_hashed_is_not_kept(
    checkpoint: Checkpoint, cache: WeightCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The hash is neither what was packed nor what is there."""
    (path,) = checkpoint.shards
    whole = hashlib.file_digest

    def disturbed(file: FileIO, algorithm: str) -> Any:
        flip_byte(path)
        return whole(file, algorithm)

    monkeypatch.setattr(hashlib, "file_digest", disturbed)

    load(checkpoint, cache)

    assert kept_files(cache) == []


def test_a_file_under_a_wrong_name_is_not_used(checkpoint: Checkpoint, cache: WeightCache) -> None:
    """The name is a part of the key; the file holds all of it."""
    load(checkpoint, cache)
    (other,) = kept_files(cache)
    (path,) = checkpoint.shards
    put_another(path)
    load(read_folder(path.parent), cache)
    (own,) = set(kept_files(cache)) - {other}
    other.replace(own)

    assert load(read_folder(path.parent), cache)[1].cached is None


@pytest.mark.parametrize("is_same", [True, False])
def test_the_key_holds_the_hash_of_the_model(
    checkpoint: Checkpoint, cache: WeightCache, is_same: bool
) -> None:
    """Beside everything else that the bytes depend on."""
    entry = tiny_entry(checkpoint, cache)
    assert entry is not None

    keys = {entry._key(bytes(32)), entry._key(bytes(31) + bytes([not is_same]))}

    assert len(keys) == (1 if is_same else 2)


@pytest.mark.parametrize("spoil", [Path.unlink, lambda path: path.write_bytes(bytes(99))])
def test_without_its_hash_a_model_is_hashed_again(
    checkpoint: Checkpoint, cache: WeightCache, spoil: Callable[[Path], object]
) -> None:
    """And its weights are found."""
    load(checkpoint, cache)
    (record,) = (cache.folder / "hashes").iterdir()

    spoil(record)

    assert load(checkpoint, cache)[1].cached is not None


def test_hashes_that_cannot_be_kept_are_no_error(
    checkpoint: Checkpoint, cache: WeightCache
) -> None:
    """Each start reads the model then."""
    cache.folder.mkdir()
    (cache.folder / "hashes").write_text("")

    assert [load(checkpoint, cache)[1].cached is not None for _ in range(2)] == [False, True]


def test_where_nothing_can_be_written_nothing_is_hashed(
    checkpoint: Checkpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or each start would read the model for nothing."""
    refuse_to_hash(monkeypatch)
    failures: list[threading.ExceptHookArgs] = []
    monkeypatch.setattr(threading, "excepthook", failures.append)
    (tmp_path / "file").write_text("")

    load(checkpoint, WeightCache(tmp_path / "file" / "cache", least_bytes=1))

    assert failures == []


def test_a_model_that_could_not_be_asked_is_not_kept(
    checkpoint: Checkpoint, cache: WeightCache
) -> None:
    """Without identities nobody could tell a change."""
    assert tiny_entry(replace(checkpoint, identities={}), cache) is None


def test_another_shape_is_another_key(checkpoint: Checkpoint) -> None:
    """A fit to 4 bits runs the layers, so it depends on their settings."""
    other = with_spec(checkpoint, replace(checkpoint.spec, rope_theta=5.0))

    assert settings_key(checkpoint, {"a": INT4}) != settings_key(other, {"a": INT4})


def test_a_file_that_grew_is_another_key(checkpoint: Checkpoint) -> None:
    """A model of another size is told without reading it."""
    key = settings_key(checkpoint, {"a": INT4})
    (path,) = checkpoint.shards
    with path.open("ab") as file:
        file.write(b"!")
    larger = replace(checkpoint, identities={path: read_identity(path)})

    assert settings_key(checkpoint, {"a": INT4}) == key
    assert settings_key(larger, {"a": INT4}) != key


def test_other_formats_code_or_torch_are_another_key(
    checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Whatever the bytes depend on."""
    source = tmp_path / "packing.py"
    source.write_text("version = 1")
    keys = {settings_key(checkpoint, {"a": INT4})}
    keys.add(settings_key(checkpoint, {"a": LinearFormat("int8", 32)}))
    monkeypatch.setattr(weight_cache, "_sources", lambda: [source])
    keys.add(settings_key(checkpoint, {"a": INT4}))
    source.write_text("version = 2")
    keys.add(settings_key(checkpoint, {"a": INT4}))
    monkeypatch.setattr(torch, "__version__", "0.0")
    keys.add(settings_key(checkpoint, {"a": INT4}))

    assert len(keys) == 5
    assert {len(key) for key in keys} == {32}


def test_the_code_that_packs_is_in_the_key() -> None:
    """The quantiser, the panels and the order of rows."""
    names = {path.name for path in weight_cache._sources()}

    assert {"row_quantizer.py", "panel_layout.py", "packing.py", "row_copy.py"} <= names
