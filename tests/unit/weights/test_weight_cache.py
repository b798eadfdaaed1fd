"""Packed weights come back from disk as they were, or not at all."""

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from torch import Tensor

from nanoserve.kernels.packed_weight import PackedWeight, unpack
from nanoserve.plan.weight_plan import LinearFormat, plan_weights
from nanoserve.spec.checkpoint import Checkpoint
from nanoserve.weights.loader import LoadReport, load_weights
from nanoserve.weights.packing import allocate_weights, packed_formats
from nanoserve.weights.placement import place_weights
from nanoserve.weights.weight_cache import cache_path, read_weights, write_weights
from tests.packed_weights import random_packed
from tests.unit.weights.stand_in import TINY_LLAMA, build_stand_in, random_tensors
from tests.unit.weights.test_loader import read_folder, write_folder

INT4 = LinearFormat("int4", 32)
NAME = "layers.0.mlp.down_proj.weight"


def empty() -> list[PackedWeight]:
    return list(allocate_weights({"a": (40, 64)}, {"a": INT4}).values())


@pytest.fixture
def written(tmp_path: Path) -> tuple[Path, PackedWeight]:
    """Return a file, and what was written to it."""
    weight = random_packed("int4", 40, 64, 32)
    path = tmp_path / "weights" / "model.weights"
    write_weights(path, [weight])
    return path, weight


def load(
    checkpoint: Checkpoint, folder: Path, quantization: str = "int4"
) -> tuple[Tensor, LoadReport]:
    plan = plan_weights(checkpoint.spec, "bfloat16", quantization, is_packed=True)  # type: ignore[arg-type]
    model = build_stand_in(checkpoint.spec)
    packed = packed_formats(model, plan.formats)
    place_weights(model, "cpu", torch.bfloat16, packed)
    report = load_weights(model, checkpoint, packed=packed, cache_folder=folder)
    path, _, leaf = NAME.rpartition(".")
    return unpack(getattr(model.get_submodule(path), leaf)), report


def test_what_was_written_is_read(written: tuple[Path, PackedWeight]) -> None:
    """Bit for bit, and nothing else is left in the folder."""
    path, weight = written
    weights = empty()

    assert read_weights(path, weights)

    assert torch.equal(unpack(weights[0]), unpack(weight))
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize("damage", ["cut", "longer", "flipped", "magic", "empty"])
def test_a_damaged_file_is_deleted(written: tuple[Path, PackedWeight], damage: str) -> None:
    """Whatever happened to it, it is not used and not asked again."""
    path, _ = written
    data = bytearray(path.read_bytes())
    if damage == "flipped":
        data[len(data) // 2] ^= 1
    if damage == "magic":
        data[0] ^= 1
    if damage == "cut":
        data.pop()
    if damage == "longer":
        data.append(0)
    if damage == "empty":
        data.clear()
    path.write_bytes(data)

    assert not read_weights(path, empty())
    assert not path.exists()


def test_weights_of_another_shape_are_not_read(written: tuple[Path, PackedWeight]) -> None:
    """A file of other bytes than wanted is stale."""
    path, _ = written
    other = allocate_weights({"a": (40, 96)}, {"a": INT4})

    assert not read_weights(path, other.values())


def test_a_file_that_may_only_be_read_is_used(
    written: tuple[Path, PackedWeight], monkeypatch: pytest.MonkeyPatch
) -> None:
    """That its time cannot be set, as in another user's folder, is no reason to pack again."""
    path, weight = written
    weights = empty()

    def refuse(path: Path) -> None:
        raise PermissionError(1, "Operation not permitted", str(path))

    monkeypatch.setattr(os, "utime", refuse)

    assert read_weights(path, weights)
    assert torch.equal(unpack(weights[0]), unpack(weight))
    assert path.exists()


def test_what_a_killed_writer_left_is_deleted(written: tuple[Path, PackedWeight]) -> None:
    """By the next who writes; what another writes just now stays."""
    path, weight = written
    old, new = path.with_name("old.part"), path.with_name("new.part")
    for part in (old, new):
        part.write_bytes(b"half")
    os.utime(old, (1, 1))

    write_weights(path.with_name("other.weights"), [weight])

    assert (old.exists(), new.exists()) == (False, True)


def test_writers_at_once_leave_one_whole_file(tmp_path: Path) -> None:
    """Servers that start together write the same file; readers meanwhile get it whole or not."""
    path = tmp_path / "model.weights"
    weight = random_packed("int4", 400, 640, 32)
    shapes, formats = {"a": (400, 640)}, {"a": INT4}

    def read_and_write(_: int) -> bool:
        weights = list(allocate_weights(shapes, formats).values())
        is_read = read_weights(path, weights)
        write_weights(path, [weight])
        return not is_read or torch.equal(unpack(weights[0]), unpack(weight))

    with ThreadPoolExecutor(8) as servers:
        assert all(servers.map(read_and_write, range(40)))
    assert list(tmp_path.iterdir()) == [path]


def test_a_folder_that_cannot_be_made_is_no_error(tmp_path: Path) -> None:
    """Nothing is written, and nothing is there to read."""
    (tmp_path / "file").write_text("")
    path = tmp_path / "file" / "model.weights"

    write_weights(path, [random_packed("int4", 40, 64, 32)])

    assert not read_weights(path, empty())


def test_what_was_not_used_for_longest_goes_first(
    written: tuple[Path, PackedWeight], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reading counts as use; the bound holds after a write."""
    first, weight = written
    size = first.stat().st_size
    second, third = first.with_name("second.weights"), first.with_name("third.weights")
    write_weights(second, [weight])
    os.utime(first, (1, 1))
    os.utime(second, (2, 2))
    read_weights(first, empty())
    monkeypatch.setattr("nanoserve.weights.weight_cache.MAX_CACHE_BYTES", 2 * size)

    write_weights(third, [weight])

    assert sorted(path.name for path in first.parent.iterdir()) == [first.name, third.name]


def test_a_file_s_name_follows_its_model(tmp_path: Path) -> None:
    """Another value in the file, another time or another format are another name."""
    checkpoint = read_folder(write_folder(tmp_path, random_tensors(TINY_LLAMA)))
    (path,) = checkpoint.shards
    formats = {"a": INT4}

    def name() -> str:
        return cache_path(tmp_path, checkpoint, formats).name

    original, status = name(), path.stat()
    assert name() == original
    assert cache_path(tmp_path, checkpoint, {"a": LinearFormat("int8", 32)}).name != original
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1  # one of the places that are looked at
    path.write_bytes(data)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    changed = name()
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns + 1))
    assert len({original, changed, name()}) == 3


def test_a_second_load_reads_what_the_first_packed(tmp_path: Path) -> None:
    """Fitted weights are the same from the file; what is quick to make is not kept."""
    checkpoint = read_folder(write_folder(tmp_path, random_tensors(TINY_LLAMA)))
    folder = tmp_path / "cache"

    first, packed = load(checkpoint, folder)
    second, cached = load(checkpoint, folder)

    assert (packed.is_cached, cached.is_cached) == (False, True)
    assert torch.equal(first, second)
    assert packed.weight_bytes == cached.weight_bytes
    assert not load(checkpoint, folder, "none")[1].is_cached
    assert len(list(folder.iterdir())) == 1
