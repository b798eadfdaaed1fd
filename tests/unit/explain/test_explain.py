"""A log explained as a whole."""

import json
import random
from pathlib import Path
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nanoserve.explain.boot_outcome import OutcomeKind
from nanoserve.explain.explain import LACKING, explain_log
from nanoserve.explain.log_text import decode_log
from nanoserve.explain.preemption import LoadKind
from nanoserve.units import GIB
from tests.work_count import MAX_GROWTH, growth, hang_guard

LOGS = sorted((Path(__file__).parents[2] / "logs").glob("*.log"))
NUM_CHARS = 5_000_000


def test_a_card_that_the_operator_names_fills_the_total_in() -> None:
    """24 GiB at the version's default of 0.9: a hundredth is enough."""
    text = (
        "Initializing a V1 LLM engine (v0.11.0) with config: model='m'\nERROR To serve at least one "
        "request with the models's max seq len (40960), (5.62 GiB KV cache is needed, which is larger "
        "than the available KV cache memory (5.52 GiB)."
    )

    alone, named = explain_log(text), explain_log(text, total_bytes=24 * GIB)

    assert alone.fixes[0].change == "--max-model-len 40224"
    assert named.fixes[0].change == "--gpu-memory-utilization 0.91"
    assert named.notes[0] == "The card's 24.00 GiB are the operator's word."
    assert named.notes[1] == "Utilization 0.9 is assumed, the default of vLLM 0.11.0."
    assert (named.exit_code, named.outcome.broken_line) == (4, "kv pool")


def test_an_estimate_is_counted_as_its_version_does() -> None:
    """0.21 takes it off the budget whether or not the log says so."""
    text = (
        "Initializing a V1 LLM engine (v0.21.0) with config: model='m'\n"
        "Estimated CUDA graph memory: 1.00 GiB total\nAvailable KV cache memory: -0.50 GiB\n"
    )
    explanation = explain_log(text, total_bytes=24 * GIB)

    assert explanation.boot.is_graph_estimate_in_budget
    assert "The graphs' estimate is taken off the budget, as vLLM 0.21.0 does." in explanation.notes
    rows = {one.row.name: one.row for one in explanation.rows}
    assert not rows["capture"].is_outside


def test_what_lacks_figures_says_so() -> None:
    """A bare refusal names no sizes."""
    explanation = explain_log("ValueError: No available memory for the cache blocks.")

    assert explanation.fixes == ()
    assert "lacks the figures" in explanation.notes[-1]


@pytest.mark.parametrize(
    ("text", "exit_code", "is_nothing"),
    [
        ("Dear Sir or Madam", 3, True),
        ("", 3, True),
        ("vllm:num_requests_running 3\nvllm:kv_cache_usage_perc 0.2\n", 0, False),
        ("vllm:num_requests_running 3\nvllm:kv_cache_usage_perc 0.99\nvllm:num_preemptions 5\n", 4, False),
        ("GPU KV cache size: 1,000 tokens\nApplication startup complete.", 0, False),
    ],
)  # fmt: skip
def test_exit_codes(text: str, exit_code: int, is_nothing: bool) -> None:
    """0 healthy, 4 memory, 3 anything else."""
    explanation = explain_log(text)

    assert (explanation.exit_code, explanation.is_nothing) == (exit_code, is_nothing)


def test_a_healthy_boot_that_preempts_later_is_told() -> None:
    """The periodic lines of the same log are read too; the boot went through all the same."""
    explanation = explain_log(
        "GPU KV cache size: 1,000 tokens\nApplication startup complete.\nEngine 000: Running: 40 "
        "reqs, Waiting: 3 reqs, GPU KV cache usage: 97.0%\nnum_cumulative_preemption=7\n"
    )

    assert explanation.load is not None
    assert (explanation.load.diagnosis.kind, explanation.load.exit_code) == ("preempting", 4)
    assert explanation.exit_code == 0


@pytest.mark.parametrize("path", LOGS, ids=lambda path: path.stem)
def test_every_explanation_is_json(path: Path) -> None:
    """As printed with --json."""
    found = json.loads(json.dumps(explain_log(path.read_text()).as_dict()))

    assert found["exit_code"] in (0, 3, 4)
    assert {"engine", "outcome", "budget", "fixes", "notes", "quote", "load"} <= found.keys()


@given(st.sampled_from(LOGS), st.data())
def test_a_mutated_log_is_explained(path: Path, data: st.DataObject) -> None:
    """Bytes overwritten, cut out or doubled anywhere never make it fail."""
    content = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 8))):
        start = data.draw(st.integers(0, len(content)))
        end = data.draw(st.integers(start, min(len(content), start + 80)))
        content[start:end] = data.draw(st.binary(max_size=30)) * data.draw(st.integers(0, 3))
    explanation = explain_log(decode_log(bytes(content)))

    json.dumps(explanation.as_dict())
    assert explanation.exit_code in (0, 3, 4)


@given(st.sampled_from(LOGS), st.text("0123456789.,-", min_size=1, max_size=12), st.data())
def test_a_log_of_absurd_numbers_is_explained(path: Path, digits: str, data: st.DataObject) -> None:
    """Any number replaced by any other, zero and below included."""
    words = path.read_text().split(" ")
    places = [index for index, word in enumerate(words) if any(map(str.isdigit, word))]
    for index in data.draw(st.lists(st.sampled_from(places), min_size=1, max_size=12)):
        words[index] = digits

    explain_log(" ".join(words)).as_dict()


@given(st.binary(max_size=3000))
def test_any_bytes_are_explained(content: bytes) -> None:
    """Whatever the file."""
    assert explain_log(decode_log(content)).exit_code in (0, 3, 4)


def test_the_page_lists_every_outcome() -> None:
    """docs/explain.md has the names that are printed, of boots and of loads."""
    page = (Path(__file__).parents[3] / "docs" / "explain.md").read_text()

    names = {*get_args(OutcomeKind), *get_args(LoadKind)}
    assert {name for name in names if f"`{name}`" not in page} == set()


def test_work_grows_with_a_real_log() -> None:
    """Every excerpt over and over, in random order: four times as many, four times the work."""
    texts = [path.read_text() for path in LOGS]
    shuffled = random.Random(0)
    small = "".join(shuffled.choice(texts) for _ in range(100))

    assert growth(explain_log, small, small * 4) <= MAX_GROWTH


def test_five_megabytes_of_a_real_log_are_read() -> None:
    """As much as a server writes in weeks comes to an end."""
    texts = [path.read_text() for path in LOGS]
    shuffled = random.Random(0)
    text = "".join(shuffled.choice(texts) for _ in range(NUM_CHARS // 700))
    assert len(text) > NUM_CHARS

    with hang_guard():
        assert explain_log(text).boot.engine is not None


def test_no_figure_would_help_against_memory_that_changed() -> None:
    """A paste of more lines is not asked for where the others have to hold still."""
    explanation = explain_log(
        "AssertionError: Error in memory profiling. Initial free memory 82.94 GiB, current free "
        "memory 90.17 GiB.\n"
    )

    assert explanation.outcome.is_for_memory
    assert not any(LACKING in note for note in explanation.notes)
