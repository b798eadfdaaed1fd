"""No damage to a GGUF file gives anything but a valid parse or an error of ours."""

import tempfile
import tracemalloc
from pathlib import Path

import gguf
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from nanoserve.errors import CorruptFileError, UnsupportedModelError
from nanoserve.spec.gguf_file import GGUFFile, read_gguf
from nanoserve.spec.gguf_spec import spec_from_gguf

_NUM_PARSES = 2
_MAX_EXTRA_BYTES = 2**20  # Python memory one parse of the two-kilobyte sample may take


def sample() -> bytes:
    """Return a small valid file with arrays, strings and tensors of two types."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "sample.gguf"
        writer = gguf.GGUFWriter(path, "llama")
        writer.add_block_count(1)
        writer.add_context_length(64)
        writer.add_embedding_length(32)
        writer.add_feed_forward_length(32)
        writer.add_head_count(2)
        writer.add_layer_norm_rms_eps(1e-5)
        writer.add_array("tokenizer.ggml.tokens", ["<s>", "a", "é"])
        writer.add_array("tokenizer.ggml.scores", [0.0, 1.0, 2.0])
        writer.add_bool("tokenizer.ggml.add_bos_token", True)
        writer.add_tensor("token_embd.weight", np.ones((3, 32), dtype=np.float32))
        packed = gguf.quants.quantize(np.ones((2, 32), np.float32), gguf.GGMLQuantizationType.Q4_1)
        writer.add_tensor("x", packed, raw_dtype=gguf.GGMLQuantizationType.Q4_1)
        writer.add_tensor("rope_freqs.weight", np.ones(8, dtype=np.float32))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return path.read_bytes()


SAMPLE = sample()


def parse(content: bytes) -> GGUFFile | None:
    """Read `content` as a file; None where it is refused. Checks that what is read is inside."""
    with tempfile.NamedTemporaryFile(suffix=".gguf") as file:
        file.write(content)
        file.flush()
        try:
            found = read_gguf(Path(file.name))
        except (CorruptFileError, UnsupportedModelError):
            return None
        for tensor in found.tensors.values():
            assert 0 <= tensor.offset <= tensor.offset + tensor.num_bytes <= len(content)
        try:
            spec_from_gguf(found)
        except (CorruptFileError, UnsupportedModelError):
            return None
        return found


def test_the_sample_is_valid() -> None:
    """The undamaged file is read whole."""
    found = parse(SAMPLE)

    assert found is not None
    assert len(found.tensors) == 3


def test_every_truncation_is_refused() -> None:
    """Cut anywhere before the end of its last tensor, the file is refused."""
    found = parse(SAMPLE)
    assert found is not None
    end = max(tensor.offset + tensor.num_bytes for tensor in found.tensors.values())

    for length in range(end):
        assert parse(SAMPLE[:length]) is None, length


def peak_bytes_of_parsing(content: bytes) -> int:
    """Parse, and return the most memory that Python held for it at once.

    The count is the whole process's, other threads included: what a file makes the parser
    hold, it holds every time, so the least of a few parses is the file's own.
    """
    return min(_peak_bytes_of_one_parse(content) for _ in range(_NUM_PARSES))


def _peak_bytes_of_one_parse(content: bytes) -> int:
    tracemalloc.start()
    try:
        parse(content)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@settings(max_examples=400, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, len(SAMPLE) - 1), st.integers(0, 255)), min_size=1, max_size=8
    )
)
def test_changed_bytes_never_escape(changes: list[tuple[int, int]]) -> None:
    """Whatever bytes change, the outcome is a parse or an error of ours, in little memory."""
    content = bytearray(SAMPLE)
    for position, value in changes:
        content[position] = value

    assert peak_bytes_of_parsing(bytes(content)) < _MAX_EXTRA_BYTES


@settings(max_examples=200, deadline=None)
@given(st.integers(0, len(SAMPLE) - 8), st.sampled_from([2**63, 2**64 - 1, 2**32, 2**31, 2**20]))
def test_huge_numbers_anywhere_never_escape(position: int, number: int) -> None:
    """A count, length or offset of any size is checked before it is used."""
    content = bytearray(SAMPLE)
    content[position : position + 8] = number.to_bytes(8, "little")

    assert peak_bytes_of_parsing(bytes(content)) < _MAX_EXTRA_BYTES


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=200))
def test_noise_after_the_magic_never_escapes(noise: bytes) -> None:
    """A file of noise is refused, or is an empty file of version 2 or 3."""
    parse(b"GGUF\x03\x00\x00\x00" + noise)
