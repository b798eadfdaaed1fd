"""What a load sends: the same for a seed, and as the flags say."""

from dataclasses import replace
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import pytest

from nanoserve.bench.load_plan import (
    TOKEN_IDS,
    endless_streams,
    plan_intruders,
    plan_requests,
    read_lengths,
)
from nanoserve.bench.serve_bench_options import ServeBenchOptions, parse_slo
from nanoserve.errors import OptionError

BASE = ServeBenchOptions(num_requests=40, prompt_tokens="20-40", output_tokens="5-9")


def test_a_seed_decides_everything() -> None:
    """Prompts, lengths and arrivals are drawn again; another seed draws others."""
    open_loop = replace(BASE, request_rate=3.0)

    assert plan_requests(open_loop) == plan_requests(open_loop)
    assert plan_requests(open_loop) != plan_requests(replace(open_loop, seed=1))


def test_lengths_lie_in_their_ranges() -> None:
    """Both ends are reached."""
    requests = plan_requests(replace(BASE, num_requests=400))

    assert {len(request.prompt) for request in requests} == set(range(20, 41))
    assert {request.output_tokens for request in requests} == set(range(5, 10))
    assert all(set(request.prompt) <= set(TOKEN_IDS) for request in requests)
    assert {request.send_at_s for request in requests} == {None}


def test_arrivals_have_the_rate_asked_for() -> None:
    """Constant ones are even; Poisson ones are not, but have that mean."""
    even = plan_requests(replace(BASE, request_rate=4.0, arrivals="constant"))
    random = plan_requests(replace(BASE, request_rate=4.0, num_requests=4001))

    assert [request.send_at_s for request in even] == [index / 4 for index in range(40)]
    times = [request.send_at_s or 0.0 for request in random]
    assert times[0] == 0
    assert times[-1] == pytest.approx(1000, rel=0.1)
    gaps = [later - sooner for sooner, later in pairwise(times)]
    assert sum(gap > 0.25 for gap in gaps) / 4000 == pytest.approx(0.368, abs=0.03)  # 1 / e


def test_shared_prefixes_are_dealt_out_in_turn() -> None:
    """Prompts of one prefix begin alike and end apart."""
    options = replace(BASE, prompt_tokens="20", prefix_tokens=15, num_prefixes=3)
    prompts = [request.prompt for request in plan_requests(options)]

    assert len({prompt[:15] for prompt in prompts}) == 3
    assert prompts[0][:15] == prompts[3][:15]
    assert prompts[0][15:] != prompts[3][15:]
    assert len(set(prompts)) == len(prompts)
    assert all(len(prompt) == 20 for prompt in prompts)


def test_a_prompt_shorter_than_its_prefix_is_cut_from_it() -> None:
    """Lengths are kept."""
    long_prefix = replace(BASE, prompt_tokens="4", prefix_tokens=15)

    assert {len(request.prompt) for request in plan_requests(long_prefix)} == {4}


def test_intruders_come_after_the_quiet_time() -> None:
    """One every so many seconds; streams beside them never run out."""
    options = replace(BASE, intruder_tokens=100, num_intruders=3, quiet_seconds=5.0)
    intruders = plan_intruders(options)

    assert [intruder.send_at_s for intruder in intruders] == [5.0, 9.0, 13.0]
    assert {len(intruder.prompt) for intruder in intruders} == {100}
    assert len({intruder.prompt for intruder in intruders}) == 3
    assert len({request.prompt for request in islice(endless_streams(options), 100)}) == 100
    assert plan_intruders(BASE) == ()


@pytest.mark.parametrize(
    "text",
    [
        "prompt_tokens, output_tokens\n5, 3\n6, 4\n",
        '{"prompt_tokens": 5, "output_tokens": 3}\n{"prompt_tokens": 6, "output_tokens": 4}\n\n',
        "\ufeffprompt_tokens,output_tokens\n5,3\n6.0,4\n",
    ],
)
def test_lengths_are_read_from_csv_and_jsonl(text: str, tmp_path: Path) -> None:
    """In the order of the file."""
    path = tmp_path / "lengths"
    path.write_text(text)

    assert read_lengths(path) == [(5, 3), (6, 4)]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "no requests"),
        ("prompt_tokens\n5\n", "request 1"),
        ("prompt_tokens,output_tokens\n5,3\n5,x\n", "request 2"),
        ("prompt_tokens,output_tokens\n0,3\n", "request 1"),
        ('{"prompt_tokens": 5}\n', "request 1"),
        ('{"prompt_tokens": 5, "output_tokens": 2}\n[1]\n', "request 2"),
        ('{"prompt_tokens": 5, "output_tokens": 2}\n{"a\n', "request 2"),
        ('{"prompt_tokens": Infinity, "output_tokens": 2}', "request 1 has prompt_tokens 'inf'"),
        ('{"prompt_tokens": 5, "output_tokens": 2.5}', "request 1 has output_tokens '2.5'"),
        ('{"prompt_tokens": true, "output_tokens": 2}', "request 1 has prompt_tokens 'True'"),
        ('{"prompt_tokens": ' + "[" * 100_000, "request 1 has prompt_tokens nothing"),
        ("prompt_tokens,output_tokens\n10000001,3\n", "from 1 to 10,000,000"),
        (f"prompt_tokens,output_tokens\n{'9' * 200_000},3\n", "is not CSV: field larger"),
    ],
)
def test_lengths_that_cannot_be_read_name_their_line(
    text: str, problem: str, tmp_path: Path
) -> None:
    """A file from elsewhere is not trusted."""
    path = tmp_path / "lengths"
    path.write_text(text)

    with pytest.raises(OptionError, match=problem):
        read_lengths(path)


@pytest.mark.parametrize(
    "changes",
    [
        {"concurrency": 0},
        {"num_requests": 0},
        {"num_requests": 10**9},
        {"concurrency": 10**9},
        {"prefix_tokens": 10**9},
        {"prompt_tokens": "0"},
        {"prompt_tokens": "9-3"},
        {"prompt_tokens": "1-2-3"},
        {"output_tokens": "1"},
        {"output_tokens": "many"},
        {"request_rate": 0.0},
        {"request_rate": float("nan")},
        {"request_rate": 1.0, "concurrency": 4},
        {"request_rate": 1.0, "intruder_tokens": 4},
        {"timeout": -1.0},
        {"slo": "speed=3"},
        {"slo": "ttft"},
        {"slo": "itl=0"},
        {"extra_body": "[1]"},
        {"extra_body": "{"},
        {"extra_body": '{"a":' + "[" * 100_000},
        {"plot": "picture.gif"},
    ],
)
def test_impossible_options_name_their_flag(changes: dict[str, Any]) -> None:
    """The message begins with the flag of the first value that is wrong."""
    flag = next(iter(changes)).replace("_", "-")

    with pytest.raises(OptionError, match=f"--{flag}"):
        replace(BASE, **changes)


def test_limits_are_read_in_milliseconds() -> None:
    """And kept in seconds."""
    assert parse_slo("ttft=500, itl=50") == {"ttft": 0.5, "itl": 0.05}
    assert parse_slo(None) == {}


def test_a_file_of_lengths_that_is_not_there(tmp_path: Path) -> None:
    """What the file has to hold is said."""
    with pytest.raises(OptionError, match=r"absent\.csv cannot be read: No such .*Give CSV"):
        read_lengths(tmp_path / "absent.csv")
