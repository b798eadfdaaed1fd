"""Workloads: every spelling, and clear refusals of the rest."""

from pathlib import Path

import pytest

from nanoserve.capacity.workload import default_workload, parse_workload, workload_of_requests
from nanoserve.errors import OptionError


@pytest.mark.parametrize(
    ("text", "mean", "p95", "prompt"),
    [
        ("prompt=1000,output=6000", 7000, 7000, 1000),
        ("output=10, prompt=1_000", 1010, 1010, 1000),
        ("tokens=8192", 8192, 8192, 6144),
        ("p50=1800,p95=2400", 1800, 2400, 1350),
        ("prompt_p50=500,prompt_p95=2000,output_p50=200,output_p95=900", 700, 2900, 500),
    ],
)
def test_stated_lengths(text: str, mean: int, p95: int, prompt: int) -> None:
    """Each form gives the mean, the 95th percentile and the prompt."""
    workload = parse_workload(text)

    assert (workload.mean, workload.p95, workload.mean_prompt) == (mean, p95, prompt)


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("prompt=-1,output=5", "expected a whole number"),
        ("prompt_p50=100,prompt_p95=1,output_p50=1,output_p95=500", "prompt_p95 is under"),
        ("prompt=1e400,output=5", "expected a whole number"),
        ("prompt=nan,output=5", "expected a whole number"),
        ("prompt=1.5,output=5", "expected a whole number"),
        ("prompt=,output=5", "expected a whole number"),
        ("prompt=5", "is not a workload"),
        ("prompt=5,prompt=6", "twice"),
        ("p50=10,p95=5", "under p50"),
        ("prompt=0,output=0", "at least one token"),
        ("lengths.txt", "is not a workload"),
        ("", "is not a workload"),
        ("absent.csv", "cannot be read"),
        ("=", "expected a whole number"),
    ],
)
def test_what_is_no_workload_is_refused(text: str, word: str) -> None:
    """The message says what is wrong."""
    with pytest.raises(OptionError, match=word):
        parse_workload(text)


def test_a_csv_of_requests(tmp_path: Path) -> None:
    """Mean and nearest-rank percentiles of prompt and output together."""
    path = tmp_path / "lengths.csv"
    path.write_text("Prompt,Output\n" + "".join(f"{n},10\n" for n in range(1, 101)))

    workload = parse_workload(str(path))

    assert (workload.p50, workload.p95, workload.num_requests) == (60, 105, 100)
    assert (workload.mean, workload.mean_prompt) == (61, 50)
    assert workload.source == "100 requests of lengths.csv"


def test_a_jsonl_of_requests(tmp_path: Path) -> None:
    """Other names of the columns are known, and empty lines are passed over."""
    path = tmp_path / "lengths.jsonl"
    path.write_text('{"input_len": 100, "output_len": 20}\n\n{"total_tokens": 40}\n')

    assert parse_workload(str(path)).mean == 80


@pytest.mark.parametrize(
    ("name", "content", "word"),
    [
        ("a.csv", "prompt,output\n1,2\nx,3\n", "line 3: prompt is 'x'"),
        ("a.csv", "prompt,output\n1,200,5\n", "line 2 has 3 fields and the header 2"),
        ("a.csv", "prompt,output\n1\n", "line 2 has prompt; expected the columns"),
        ("a.csv", '"prompt,output\n1,2', "is not CSV"),
        ("a.csv", "a,b\n1,2\n", "line 2 has a, b; expected the columns prompt and output"),
        ("a.csv", "prompt,output\n1\n", "line 2"),
        ("a.csv", "prompt,output\n0,0\n", "line 2 is a request of 0 tokens"),
        ("a.csv", "", "has no request"),
        ("a.csv", "prompt,output\n-4,2\n", "line 2"),
        ("a.jsonl", '{"prompt": 1, "output": 2}\n{"prompt"\n', "line 2 is not JSON"),
        ("a.jsonl", "[1]\n", "line 1 holds no object"),
        ("a.jsonl", '{"prompt": true, "output": 1}\n', "line 1: prompt"),
        ("a.jsonl", '{"prompt": [1], "output": 1}\n', "line 1: prompt"),
    ],
)
def test_garbage_rows_are_refused_by_their_number(
    tmp_path: Path, name: str, content: str, word: str
) -> None:
    """A bad line is named; nothing is skipped silently."""
    path = tmp_path / name
    path.write_text(content)

    with pytest.raises(OptionError, match=word):
        parse_workload(str(path))


def test_bytes_that_are_no_text_are_refused(tmp_path: Path) -> None:
    """A binary file is said to be none."""
    path = tmp_path / "a.csv"
    path.write_bytes(b"prompt,output\n\xff\xfe\n")

    with pytest.raises(OptionError, match="not UTF-8"):
        parse_workload(str(path))


def test_defaults_follow_the_model() -> None:
    """8,192 tokens, or the model's longest."""
    assert default_workload(None).p95 == 8192
    assert default_workload(2048).p95 == 2048


def test_percentiles_of_one_request() -> None:
    """A single request is its own mean and percentiles."""
    workload = workload_of_requests([(3, 4)], "one")

    assert (workload.mean, workload.p50, workload.p95) == (7, 7, 7)


@pytest.mark.parametrize("text", ["~0", "~nobody-here/a.csv", "~nobody-here"])
def test_nobodys_home_is_no_workload(text: str) -> None:
    """A tilde that means no user is a path like another, and no traceback."""
    with pytest.raises(OptionError):
        parse_workload(text)
