"""Options of `bench boot`."""

from typing import Any

import pytest

from nanoserve.bench.boot_bench_options import BootBenchOptions, parse_counts
from nanoserve.errors import OptionError


def test_lists_are_numbers_with_commas_between() -> None:
    """Blanks beside a comma are allowed."""
    options = BootBenchOptions(max_num_seqs="8, 16", max_model_len="2048")

    assert options.request_counts == (8, 16)
    assert options.lengths == (2048,)


@pytest.mark.parametrize("text", ["", "8,", "8;16", "0", "-8", "8.0", "8,x"])
def test_what_is_no_list_is_refused_by_flag(text: str) -> None:
    """Zero, signs, fractions and gaps are no counts."""
    with pytest.raises(OptionError, match="--max-num-seqs is"):
        parse_counts("--max-num-seqs", text)


@pytest.mark.parametrize(
    ("changes", "flag"),
    [
        ({"num_heads": 0}, "--num-heads is 0"),
        ({"capture_limit": 0}, "--capture-limit is 0"),
        ({"repeat": -1}, "--repeat is -1"),
        ({"repeat": 10**30}, r"--repeat is 1,0.*; it must be at most 1,000\."),
        ({"max_model_len": "x"}, "--max-model-len is 'x'"),
        ({"max_num_seqs": "x"}, "--max-num-seqs is 'x'"),
    ],
)
def test_impossible_values_name_their_flag(changes: dict[str, Any], flag: str) -> None:
    """Nothing is planned with them."""
    with pytest.raises(OptionError, match=flag):
        BootBenchOptions(**changes)
