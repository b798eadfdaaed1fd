"""An image of weights comes back from its file as it was, mapped or read, or not at all."""

import errno
import mmap
import os
from pathlib import Path

import pytest
import torch
from torch import Tensor

from nanoserve.kernels.panel_layout import HUGE_PAGE_BYTES
from nanoserve.weights import weight_file
from nanoserve.weights.weight_file import (
    HEADER_BYTES,
    file_bytes,
    parse_mapping,
    read_image,
    write_image,
)

KEY = bytes(range(32))
NUM_BYTES = 2 * HUGE_PAGE_BYTES + 640

SMAPS = """\
55d0c0a00000-55d0c0a01000 r--p 00000000 fe:00 12                         /usr/bin/python
Size:                  4 kB
Rss:                   4 kB
VmFlags: rd mr mw me
7f35b7200000-7f35c8000000 rw-p 00000000 fe:00 77                         /cache/a b.weights
Size:             276480 kB
Rss:              276476 kB
FilePmdMapped:    258048 kB
THPeligible:           1
VmFlags: rd wr mr mw me hg
7f35c8000000-7f35c8001000 rw-p 00000000 00:00 0
Rss:                   8 kB
"""


def random_image(num_bytes: int = NUM_BYTES) -> Tensor:
    return torch.randint(0, 256, (num_bytes,), dtype=torch.uint8)


def blank() -> Tensor:
    return torch.zeros(NUM_BYTES, dtype=torch.uint8)


@pytest.fixture
def written(tmp_path: Path) -> tuple[Path, Tensor]:
    """Return a file, and what was written to it."""
    path, image = tmp_path / "one.weights", random_image()
    with path.open("wb") as file:
        write_image(file, KEY, image)
    return path, image


@pytest.fixture(params=["mapped", "read"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Let files be mapped or read, whatever pages this machine has."""
    offers = request.param == "read"
    monkeypatch.setattr(weight_file, "_LEAST_HUGE", 2.0)
    monkeypatch.setattr(weight_file, "_offers_huge_pages", lambda: offers)
    return str(request.param)


def test_what_was_written_comes_back(written: tuple[Path, Tensor], way: str) -> None:
    """Bit for bit; mapped pages are those of the file, and memory of its own stays untouched."""
    path, image = written
    into = blank()

    stored = read_image(path, KEY, into)

    assert stored is not None
    assert torch.equal(stored.memory, image)
    assert path.stat().st_size == file_bytes(NUM_BYTES) == 3 * HUGE_PAGE_BYTES
    if way == "mapped":
        assert stored.mapped_bytes == file_bytes(NUM_BYTES)
        assert not into.any()
    else:
        assert stored.mapped_bytes == 0
        assert stored.memory.data_ptr() == into.data_ptr()


def test_what_is_mapped_outlives_its_file(written: tuple[Path, Tensor], way: str) -> None:
    """Another server may put the file out of the cache while this one reads it."""
    path, image = written

    stored = read_image(path, KEY, blank())
    path.unlink()

    assert stored is not None
    assert torch.equal(stored.memory, image)


def test_a_mapped_file_may_have_any_name(tmp_path: Path, way: str) -> None:
    """Of this process's mapped files, models among them, one may be named in no UTF-8."""
    path, image = tmp_path / os.fsdecode(b"mod\xe9l.weights"), random_image()
    with path.open("wb") as file:
        write_image(file, KEY, image)

    stored = read_image(path, KEY, blank())

    assert stored is not None
    assert torch.equal(stored.memory, image)


def test_writing_to_mapped_weights_leaves_the_file(written: tuple[Path, Tensor], way: str) -> None:
    """A mistake in one process is not every later start's."""
    path, image = written
    stored = read_image(path, KEY, blank())
    assert stored is not None

    stored.memory.zero_()

    again = read_image(path, KEY, blank())
    assert again is not None
    assert torch.equal(again.memory, image)


@pytest.mark.parametrize(
    "damage", ["cut", "cut page", "longer", "first bit", "last bit", "swapped", "zeroed", "empty"]
)
def test_a_damaged_file_is_not_used(written: tuple[Path, Tensor], way: str, damage: str) -> None:
    """Whatever happened to it."""
    path, _ = written
    data = bytearray(path.read_bytes())
    block = slice(HEADER_BYTES, HEADER_BYTES + HUGE_PAGE_BYTES)
    other = slice(block.stop, block.stop + HUGE_PAGE_BYTES)
    if damage == "cut":
        data.pop()
    if damage == "cut page":
        del data[-mmap.PAGESIZE :]
    if damage == "longer":
        data.append(0)
    if damage == "first bit":
        data[HEADER_BYTES] ^= 1
    if damage == "last bit":
        data[HEADER_BYTES + NUM_BYTES - 1] ^= 128
    if damage == "swapped":
        data[block], data[other] = data[other], data[block]
    if damage == "zeroed":
        data[other] = bytes(HUGE_PAGE_BYTES)
    if damage == "empty":
        data.clear()
    path.write_bytes(data)

    assert read_image(path, KEY, blank()) is None


@pytest.mark.parametrize("place", range(0, 60, 7))
def test_a_header_that_changed_is_not_believed(written: tuple[Path, Tensor], place: int) -> None:
    """Magic, key, size, sum and the header's own sum."""
    path, _ = written
    with path.open("r+b") as file:
        file.seek(place)
        value = file.read(1)[0]
        file.seek(place)
        file.write(bytes([value ^ 4]))

    assert read_image(path, KEY, blank()) is None


def test_another_s_file_is_not_used(written: tuple[Path, Tensor]) -> None:
    """Another key, or another size, under the same name."""
    path, _ = written

    assert read_image(path, bytes(32), blank()) is None
    assert read_image(path, KEY, torch.zeros(NUM_BYTES - 64, dtype=torch.uint8)) is None


def test_what_was_not_finished_is_not_used(tmp_path: Path) -> None:
    """The header comes last, so that all before it is no file of weights."""
    path = tmp_path / "one.weights"

    with path.open("wb", buffering=0) as file:
        write_image(file, KEY, random_image())
        file.seek(0)
        file.write(bytes(64))

    assert read_image(path, KEY, blank()) is None


def test_a_file_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    """Which is the caller's to take for what it is."""
    with pytest.raises(FileNotFoundError):
        read_image(tmp_path / "none", KEY, blank())


def test_a_file_that_is_cut_short_meanwhile_is_not_used(
    written: tuple[Path, Tensor], way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After its size was looked at: no signal, and nothing that was not checked."""
    path, _ = written
    status = path.stat()
    path.write_bytes(path.read_bytes()[:HUGE_PAGE_BYTES])
    monkeypatch.setattr(os, "fstat", lambda descriptor: status)

    if way == "mapped":
        assert read_image(path, KEY, blank()) is None
    else:
        with pytest.raises(OSError, match="ends after"):
            read_image(path, KEY, blank())


def test_a_kernel_that_cannot_fill_a_mapping_reads(
    written: tuple[Path, Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one before Linux 5.14."""
    path, image = written
    monkeypatch.setattr(weight_file, "_POPULATE_READ", 9999)  # of no kernel: EINVAL
    monkeypatch.setattr(weight_file, "_offers_huge_pages", lambda: False)
    into = blank()

    stored = read_image(path, KEY, into)

    assert stored is not None
    assert stored.memory.data_ptr() == into.data_ptr()
    assert torch.equal(into, image)


def test_a_disk_that_fails_is_an_error(
    written: tuple[Path, Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The caller packs again."""

    def fail(*arguments: object) -> int:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(weight_file, "_map_image", lambda *arguments: None)
    monkeypatch.setattr(os, "preadv", fail)

    with pytest.raises(OSError, match="error"):
        read_image(written[0], KEY, blank())


@pytest.mark.parametrize(
    ("huge_kib", "offered", "is_mapped"),
    [(6144, True, True), (5000, True, False), (5000, False, True), (0, False, True)],
)
def test_small_pages_are_mapped_only_where_there_are_no_huge_ones(
    written: tuple[Path, Tensor],
    monkeypatch: pytest.MonkeyPatch,
    huge_kib: int,
    offered: bool,
    is_mapped: bool,
) -> None:
    """Steps on small pages are slower than the copy is worth."""
    sizes = {"Rss": 6144 * 1024, "FilePmdMapped": huge_kib * 1024}
    monkeypatch.setattr(weight_file, "parse_mapping", lambda text, address: sizes)
    monkeypatch.setattr(weight_file, "_offers_huge_pages", lambda: offered)

    stored = read_image(written[0], KEY, blank())

    assert stored is not None
    assert (stored.mapped_bytes > 0) == is_mapped


@pytest.mark.parametrize(
    ("text", "offers"),
    [
        ("always [madvise] never", True),
        ("[always] madvise never", True),
        ("always madvise [never]", False),
    ],
)
def test_the_system_says_whether_it_has_huge_pages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, offers: bool
) -> None:
    """Where it does not say, there are none."""
    setting = tmp_path / "enabled"
    monkeypatch.setattr(weight_file, "_THP_SETTING", setting)
    assert not weight_file._offers_huge_pages()

    setting.write_text(f"{text}\n")

    assert weight_file._offers_huge_pages() == offers


def test_sizes_of_one_mapping_are_read() -> None:
    """Of the one that begins at the address, and no other's."""
    sizes = parse_mapping(SMAPS, 0x7F35B7200000)

    assert sizes["Rss"] == 276476 * 1024
    assert sizes["FilePmdMapped"] == 258048 * 1024
    assert parse_mapping(SMAPS, 0x55D0C0A00000)["Rss"] == 4096
    assert parse_mapping(SMAPS, 0x7F35C8000000) == {"Rss": 8192}
    assert parse_mapping(SMAPS, 0x1000) == {}
