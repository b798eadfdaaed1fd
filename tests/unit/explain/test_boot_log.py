"""Any text to what it says of a boot."""

from itertools import pairwise

import pytest
from bench.log_files import HEALTHY, START
from hypothesis import given
from hypothesis import strategies as st

from nanoserve.explain.boot_log import FORMATS, read_boot_log, recognise_engine
from nanoserve.explain.log_format import read_log
from nanoserve.explain.log_text import plain_log
from nanoserve.explain.logged_boot import LoggedBoot
from nanoserve.units import GIB
from tests.boot_logs import log_of, records

FAILED = "ValueError: No available memory for the cache blocks. Try increasing\n"


@pytest.mark.parametrize(
    ("text", "engine"),
    [
        (HEALTHY, "vllm"),
        ("[2025] max_total_num_tokens=444500, context_len=131072", "sglang"),
        ("[TensorRT-LLM][INFO] Number of tokens per block: 32.", "tensorrt-llm"),
        ("llama_kv_cache: CUDA0 KV buffer size = 1.00 MiB", "llama.cpp"),
        ("memory planned measured residual", "nanoserve"),
        ("hello", None),
    ],
)
def test_engines_are_recognised(text: str, engine: str | None) -> None:
    """The engine whose lines there are most of is the one."""
    assert recognise_engine(plain_log(text)) == engine


def test_text_that_is_no_log_says_nothing() -> None:
    """An empty boot is an answer, not an error."""
    assert read_boot_log("Dear Sir or Madam").is_empty
    assert read_boot_log("") == LoggedBoot()


def test_the_last_boot_of_several_counts() -> None:
    """A container that restarted until it worked has worked."""
    boot = read_boot_log(f"{START}{FAILED}{START}{FAILED}{START}{HEALTHY}")

    assert boot.is_ready
    assert boot.error is None


def test_a_restart_that_says_nothing_yet_is_passed_over() -> None:
    """The boot before it is the last one known."""
    boot = read_boot_log(f"{START}{HEALTHY}{START}{FAILED}{START}")

    assert boot.error is not None


def test_a_server_that_serves_was_not_stopped() -> None:
    """An error before it was ready was got over; one afterwards is told."""
    memory = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n"

    assert read_boot_log(FAILED + HEALTHY).error is None
    after = read_boot_log(HEALTHY + memory)
    assert after.error is not None
    assert after.error.stage == "serving"


def test_an_error_of_no_known_engine() -> None:
    """A failed allocation alone is read; whose it is stays open."""
    boot = read_boot_log(
        "OutOfMemoryError: out of memory: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has "
        "a total capacity of 23.65 GiB of which 1.00 GiB is free."
    )

    assert boot.engine is None
    assert boot.total_bytes == round(23.65 * GIB)
    assert boot.error is not None
    assert boot.error.need_bytes == 2 * GIB


@given(st.text(max_size=2000))
def test_any_text_is_read(text: str) -> None:
    """No text makes reading fail."""
    read_boot_log(text)


@given(st.binary(max_size=2000))
def test_any_bytes_are_read(content: bytes) -> None:
    """Neither do bytes that were never text."""
    read_boot_log(content.decode("utf-8", errors="replace"))


@given(st.data())
def test_damaged_logs_are_read(data: st.DataObject) -> None:
    """A real log with pieces cut out, swapped or spoilt is read too."""
    text = log_of(data.draw(st.sampled_from(records())))
    pieces = data.draw(st.lists(st.integers(0, len(text)), max_size=6))
    cuts = sorted({0, len(text), *pieces})
    parts = [text[start:end] for start, end in pairwise(cuts)]
    noise = data.draw(st.text(max_size=20))

    read_boot_log(noise.join(data.draw(st.permutations(parts))))


def test_every_reader_takes_an_empty_text() -> None:
    """A reader asked for nothing finds nothing."""
    for name, layout in FORMATS.items():
        assert read_log(layout, "").engine == name
        assert read_log(layout, "").is_empty
