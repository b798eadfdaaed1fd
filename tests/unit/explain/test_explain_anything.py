"""Whatever the file: an explanation that prints and is JSON, and no more work than its size asks.

Real logs with figures changed, pieces cut out, doubled, swapped with another log's, and bytes
spoilt; and files that are no log at all.
"""

import json
import random
import re
from pathlib import Path

import pytest
from bench.log_files import LOG_FILES
from hypothesis import given
from hypothesis import strategies as st

from nanoserve.cli.explain import explanation_lines
from nanoserve.explain.explain import explain_log
from nanoserve.explain.log_text import decode_log
from nanoserve.units import GIB
from tests.pastes import PASTES
from tests.work_count import MAX_GROWTH, growth, hang_guard

LOGS = [path.read_bytes() for path in sorted((Path(__file__).parents[2] / "logs").iterdir())]
SAMPLES = [*LOGS, *(paste.text.encode() for paste in PASTES.values())]
NUMBERS = (b"0", b"-1", b"0.0", b"1e9", b"9" * 24, b"0.00001", b"1,2,3", b"..", b"NaN", b"")
PIECES = (
    b'{"log":"',
    b"\\n",
    b"<br>",
    b"&amp;gt;",
    b"> > ",
    b"```",
    b"\xff\xfe",
    b"\x00",
    b"\x1b[",
    b"(EngineCore",
    b" GiB",
    b"\r",
    b"\xe2\x80\xa8",
    "٣".encode(),  # a digit that is not ASCII
    b"#tokens: ",
)
DIGIT = re.compile(rb"\d")
NUM_BYTES = 2_000_000


def check(content: bytes, total_bytes: int | None = None) -> None:
    """Explain, print and write it."""
    explanation = explain_log(decode_log(content), total_bytes)
    json.dumps(explanation.as_dict(), allow_nan=False)
    assert all(isinstance(words, str) for words, _ in explanation_lines(explanation))


@given(st.data())
def test_figures_that_cannot_be(data: st.DataObject) -> None:
    """Zeros, negative sizes and absurd ones in the place of a real log's figures."""
    content = data.draw(st.sampled_from([sample for sample in SAMPLES if DIGIT.search(sample)]))
    places = [match.span() for match in re.finditer(rb"\d+(?:\.\d+)?", content)]
    chosen = data.draw(st.lists(st.sampled_from(places), max_size=12, unique=True))
    for start, end in sorted(chosen, reverse=True):
        content = content[:start] + data.draw(st.sampled_from(NUMBERS)) + content[end:]

    check(content, data.draw(st.sampled_from((None, 24 * GIB))))


@given(st.data())
def test_pieces_of_several_logs(data: st.DataObject) -> None:
    """Two engines in one paste, cut anywhere, with marks of pages and collectors between."""
    parts = []
    for _ in range(data.draw(st.integers(1, 5))):
        content = data.draw(st.sampled_from(SAMPLES))
        start = data.draw(st.integers(0, len(content)))
        parts.append(content[start : data.draw(st.integers(start, len(content)))])

    check(data.draw(st.sampled_from(PIECES)).join(parts), None)


@pytest.mark.parametrize("seed", range(20))
def test_logs_damaged_at_random(seed: int) -> None:
    """Many small damages at once."""
    choose = random.Random(seed)
    for _ in range(10):
        content = bytearray(choose.choice(SAMPLES))
        for _ in range(choose.randrange(1, 40)):
            start = choose.randrange(len(content) + 1)
            end = min(len(content), start + choose.randrange(1, 200))
            match choose.randrange(4):
                case 0:
                    del content[start:end]
                case 1:
                    content[start:start] = choose.choice(PIECES)
                case 2:
                    content[start:start] = content[start:end]
                case _:
                    content[start:end] = choose.choice(SAMPLES)[: end - start]
        check(bytes(content), choose.choice((None, 24 * GIB)))


@pytest.mark.parametrize("name", LOG_FILES)
def test_work_grows_with_the_file_alone(name: str) -> None:
    """Four times as much of it is four times the work, decoding and report included."""
    make = LOG_FILES[name]

    assert growth(check, make(20_000), make(80_000)) <= MAX_GROWTH


@pytest.mark.parametrize("name", LOG_FILES)
def test_megabytes_of_anything(name: str) -> None:
    """They come to an end. How soon, `bench.log_reading` says."""
    with hang_guard():
        check(LOG_FILES[name](NUM_BYTES))
