"""`sampling_table`: which rows need what."""

import pytest
import torch

from nanoserve.runner.sampling_table import build_table
from nanoserve.sched.sampling_params import SamplingParams

CPU = torch.device("cpu")


def test_greedy_rows_are_not_drawn() -> None:
    """Temperature 0, next to 0, and a top-k of 1 are argmax."""
    params = [
        SamplingParams(temperature=0.0),
        SamplingParams(temperature=0.5, top_p=0.9),
        SamplingParams(temperature=1e-6),
        SamplingParams(top_k=1),
        SamplingParams(temperature=2.0, min_p=0.25),
    ]

    table = build_table(params, 100, CPU)

    assert table.drawn_rows == (1, 4)
    assert table.drawn.tolist() == [1, 4]
    assert table.temperatures.tolist() == [[0.5], [2.0]]
    assert table.filters.min_p.tolist() == [[0.0], [0.25]]
    assert table.filters.top_p.tolist() == [0.9, float("inf")]


def test_filters_that_drop_nothing_are_no_work() -> None:
    """A top-k of the whole vocabulary, top-p 1 and min-p 0 keep everything."""
    filters = build_table([SamplingParams(top_k=100), SamplingParams()], 100, CPU).filters

    assert not filters.has_min_p
    assert not filters.has_top_p
    assert filters.top_k == ()


def test_top_k_rows_are_grouped_by_size() -> None:
    """A row with a large top-k does not make its neighbours rank as many."""
    params = [SamplingParams(top_k=top_k) for top_k in (40, 5000, 50, 0)]

    groups = build_table(params, 9000, CPU).filters.top_k

    assert [group.rows.tolist() for group in groups] == [[0, 2], [1]]
    assert [group.top_k.tolist() for group in groups] == [[[40], [50]], [[5000]]]
    assert [group.max_k for group in groups] == [50, 5000]


@pytest.mark.parametrize(
    ("sampling", "has_edits"),
    [
        (SamplingParams(temperature=0.3, top_p=0.5, num_logprobs=2), False),
        (SamplingParams(logit_bias=((3, 1.0),)), True),
        (SamplingParams(presence_penalty=0.1), True),
        (SamplingParams(repetition_penalty=0.9), True),
    ],
)
def test_edits_are_biases_and_penalties(sampling: SamplingParams, has_edits: bool) -> None:
    """Only what changes logits before temperature is an edit."""
    assert build_table([SamplingParams(), sampling], 100, CPU).has_edits == has_edits


def test_rows_that_ask_for_logprobs_are_listed() -> None:
    """0 alternatives still name the token."""
    params = [SamplingParams(), SamplingParams(num_logprobs=0), SamplingParams(num_logprobs=4)]

    table = build_table(params, 100, CPU)

    assert (table.named_rows, table.nums_top) == ((1, 2), (0, 4))
