"""Whatever the file: an explanation that prints and is JSON, and no more time than its size asks.

Real logs with figures changed, pieces cut out, doubled, swapped with another log's, and bytes
spoilt; and files that are no log at all.
"""

import json
import random
import re
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nanoserve.cli.explain import explanation_lines
from nanoserve.explain.explain import explain_log
from nanoserve.explain.log_text import decode_log
from nanoserve.units import GIB
from tests.pastes import PASTES

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
MAX_S = 0.8  # five megabytes in two seconds


def check(content: bytes, total_bytes: int | None) -> None:
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


def repeated(unit: bytes) -> Callable[[], bytes]:
    return lambda: unit * (NUM_BYTES // len(unit))


FILES: dict[str, Callable[[], bytes]] = {
    "random bytes": lambda: random.Random(0).randbytes(NUM_BYTES),
    "a program": lambda: bytes(range(256)) * (NUM_BYTES // 256),
    "zeros": lambda: bytes(NUM_BYTES),
    "one line": repeated(b"Available KV cache memory: 1.00 GiB "),
    "one word": repeated(b"x"),
    "nested quotes": repeated(b"> > > > > (EngineCore pid=1) INFO 05-12 10:11:12 [a.py:1] x\n"),
    "a thousand quote marks a line": repeated(b">" * 1000 + b"\n"),
    "collectors' records": repeated(b'{"log":"INFO 05-12 10:11:12 [a.py:1] Running: 1 reqs\\n"}\n'),
    "one record": lambda: b'{"log":"' + b"\\n a" * (NUM_BYTES // 4) + b'"}',
    "records that never end": repeated(b'{"log":"'),
    "entities": repeated(b"&gt;&amp;&lt;&quot; "),
    "tags": repeated(b"<span class='a'>x</span><br>"),
    "tags that never end": repeated(b"<span "),
    "written-out line ends": repeated(b"\\nINFO a"),
    "fences": repeated(b"```\n"),
    "lines of 80 columns": repeated(b"y" * 80 + b"\n"),
    "tracebacks": repeated(
        b'Traceback (most recent call last):\n  File "/a/vllm/b.py", line 1, in x\n'
    ),
    "a healthy log": lambda: LOGS[0] * (NUM_BYTES // len(LOGS[0])),
    "failed allocations": repeated(b"CUDA out of memory. Tried to allocate 1.00 GiB. "),
    "retractions": repeated(b"Decode out of memory happened. #retracted_reqs: 3\n"),
    "metrics": repeated(b'vllm:num_requests_running{engine="0",model_name="m"} 40.0\n'),
    "labels": repeated(b'vllm:x{a="' + b'b",a="' * 30 + b'"} 1\n'),
}


@pytest.mark.parametrize("name", FILES)
def test_megabytes_of_anything(name: str) -> None:
    """Five in less than two seconds of a core, the decoding and the report included."""
    content = FILES[name]()
    started = time.process_time()

    check(content, None)

    assert time.process_time() - started < MAX_S
