"""No damage to a safetensors file gives anything but a valid header or an error of ours."""

import json
import struct
import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from nanoserve.errors import CorruptFileError
from nanoserve.spec.safetensors_header import ITEM_BYTES, TensorEntry, read_safetensors_header


def sample() -> bytes:
    header = {
        "__metadata__": {"format": "pt"},
        "a": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]},
        "b": {"dtype": "BF16", "shape": [], "data_offsets": [24, 26]},
        "c": {"dtype": "U8", "shape": [0, 9], "data_offsets": [26, 26]},
    }
    content = json.dumps(header).encode()
    return struct.pack("<Q", len(content)) + content + bytes(26)


SAMPLE = sample()


def parse(content: bytes) -> dict[str, TensorEntry] | None:
    """Read `content` as a file; None where it is refused. Checks that entries tile the data."""
    with tempfile.NamedTemporaryFile() as file:
        file.write(content)
        file.flush()
        try:
            entries = read_safetensors_header(Path(file.name))
        except CorruptFileError:
            return None
    position = 8 + struct.unpack("<Q", content[:8])[0]
    for entry in entries.values():
        num_items = 1
        for size in entry.shape:
            num_items *= size
        assert entry.start == position
        assert entry.end - entry.start == num_items * ITEM_BYTES[entry.dtype]
        position = entry.end
    assert position == len(content)
    return entries


def test_the_sample_is_valid() -> None:
    """The undamaged file is read whole."""
    assert len(parse(SAMPLE) or {}) == 3


def test_every_truncation_is_refused() -> None:
    """Cut anywhere, the file is refused."""
    for length in range(len(SAMPLE)):
        assert parse(SAMPLE[:length]) is None, length


@settings(max_examples=300, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, len(SAMPLE) - 1), st.integers(0, 255)), min_size=1, max_size=6
    )
)
def test_changed_bytes_never_escape(changes: list[tuple[int, int]]) -> None:
    """Whatever bytes change, the outcome is a sound header or an error of ours."""
    content = bytearray(SAMPLE)
    for position, value in changes:
        content[position] = value

    parse(bytes(content))


LEAVES: st.SearchStrategy[object] = st.sampled_from(
    [None, True, 0, -1, 2**70, 1.5, float("nan"), "", "F32", [], {}]
)
JSON_VALUES = (
    LEAVES
    | st.lists(LEAVES, max_size=2)
    | st.dictionaries(st.sampled_from(["dtype", "shape", "data_offsets"]), LEAVES, max_size=3)
)
SIZES = st.integers(-1, 9)
NEARLY_RIGHT = st.fixed_dictionaries(
    {
        "dtype": st.sampled_from([*ITEM_BYTES, "F12"]),
        "shape": st.lists(SIZES, max_size=3),
        "data_offsets": st.lists(SIZES, min_size=2, max_size=2),
    }
)


@settings(max_examples=200, deadline=None)
@given(
    st.dictionaries(
        st.sampled_from(["a", "b", "__metadata__"]), JSON_VALUES | NEARLY_RIGHT, max_size=3
    ),
    st.integers(0, 9),
)
def test_any_json_header_is_judged(header: dict[str, object], num_bytes: int) -> None:
    """Any JSON object as a header is accepted soundly or refused."""
    content = json.dumps(header).encode()

    parse(struct.pack("<Q", len(content)) + content + bytes(num_bytes))
