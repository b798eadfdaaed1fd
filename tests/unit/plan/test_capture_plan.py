"""Which shapes are recorded, held against a worked table and against its own promises."""

import json
from dataclasses import asdict
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from nanoserve.errors import CaptureTooSmall
from nanoserve.plan.backend_facts import ArenaBytes, BackendFacts
from nanoserve.plan.capture_axes import (
    WIDTH_BUCKET,
    close_row_buckets,
    row_buckets,
    width_buckets,
    width_from_limit,
)
from nanoserve.plan.capture_cost import (
    SECONDS_PER_GRAPH,
    price_capture,
    score_rectangle_bytes,
)
from nanoserve.plan.capture_plan import CapturePlan, CaptureRequest, plan_capture
from nanoserve.units import MIB

GOLDEN: dict[str, Any] = json.loads(
    (Path(__file__).parents[2] / "golden" / "capture_plan_llama32_1b.json").read_text()
)


def scores_bytes(num_heads: int) -> ArenaBytes:
    """Return the arena of a backend that materialises its scores."""
    return partial(score_rectangle_bytes, num_heads)


def plan(
    max_num_seqs: int = 8, context: int = 2048, *, depends_on_width: bool = True, **asked: Any
) -> CapturePlan:
    return plan_capture(
        max_num_seqs,
        context,
        request=CaptureRequest(**asked),
        arena_bytes=scores_bytes(GOLDEN["num_attention_heads"]),
        depends_on_width=depends_on_width,
    )


def close_plan(max_num_seqs: int, **asked: Any) -> CapturePlan:
    return plan_capture(
        max_num_seqs,
        2048,
        request=CaptureRequest(**asked),
        arena_bytes=lambda rows, width: 0,
        depends_on_width=False,
        has_close_rows=True,
    )


def test_close_rows_are_padded_by_an_eighth_at_most() -> None:
    """Every number to 16, then eight to an octave; the last is the most there are."""
    assert close_row_buckets(32) == (*range(1, 17), *range(18, 33, 2))
    for max_rows in range(1, 700):
        buckets = close_row_buckets(max_rows)
        assert buckets[-1] == max_rows
        pairs = pairwise(buckets)
        assert all(0 < larger - rows <= max(1, rows // 8) for rows, larger in pairs)


def test_close_rows_give_way_to_the_limit() -> None:
    """Where fewer graphs may be held than there are close rows, powers of two are recorded."""
    assert close_plan(32).row_buckets == close_row_buckets(32)
    assert close_plan(32, limit=23).row_buckets == row_buckets(32)
    assert close_plan(32, max_rows=5).row_buckets == (1, 2, 3, 4, 5)


def test_native_steps_are_planned_by_the_size_of_a_number() -> None:
    """Where there is no native step, the arena is the backend's whatever the dtype."""
    plain = BackendFacts(False, lambda rows, width: rows * width)
    native = BackendFacts(
        False, lambda *_: 0, native_bytes=lambda rows, width, size, tokens: rows * size + tokens
    )

    assert plain.arena_bytes_of(2, step_tokens=100)(3, 5) == 15
    assert native.arena_bytes_of(2, step_tokens=100)(3, 5) == 106
    assert [plain.is_native, native.is_native] == [False, True]


def test_constants_are_the_table_s() -> None:
    """Bucket, limit and price are those that the table was worked out with."""
    assert GOLDEN["width_bucket"] == WIDTH_BUCKET
    assert GOLDEN["graph_limit"] == CaptureRequest().limit
    assert GOLDEN["seconds_per_graph"] == SECONDS_PER_GRAPH


@pytest.mark.parametrize("case", GOLDEN["cases"], ids=lambda c: f"{c['slots']}x{c['context']}")
def test_capture_reproduces_golden_table(case: dict[str, Any]) -> None:
    """Every cell of the table follows from the slots and the context, none left out."""
    made = plan(case["slots"], case["context"])
    found = {
        "slots": made.max_rows,
        "context": case["context"],
        "row_buckets": len(made.row_buckets),
        "width_buckets": len(width_buckets(case["context"])),
        "wanted": made.full_count,
        "over": max(0, made.full_count - made.limit),
        "max_width": made.max_width,
        "kept": made.count,
        "arena_bytes": made.arena_bytes,
        "width_bound_by": made.width_bound_by,
        **asdict(price_capture(made)),
    }

    assert found.keys() == case.keys()
    for name, value in found.items():  # bytes and counts to the last one, seconds as floats
        assert case[name] == (pytest.approx(value) if name.endswith("_s") else value), name


def test_row_buckets_end_with_the_slot_count() -> None:
    """Rows are powers of two, the slot count last even if it is none."""
    assert row_buckets(1) == (1,)
    assert row_buckets(8) == (1, 2, 4, 8)
    assert row_buckets(12) == (1, 2, 4, 8, 12)


def test_limit_holds_whole_rows_of_widths() -> None:
    """A limit that is no multiple of the row buckets leaves graphs unused."""
    assert width_from_limit(4, 64) == 16
    assert width_from_limit(5, 64) == 12
    assert width_from_limit(5, 4) == 0


def test_shapes_are_recorded_largest_first() -> None:
    """Widths fall, and rows fall within a width, so the arena is never grown."""
    made = plan(2, 256)

    assert made.shapes == ((2, 256), (1, 256), (2, 128), (1, 128))
    assert made.shapes[0] == made.widest


def test_context_rounds_up_and_the_flag_snaps_down() -> None:
    """A context of 2,049 tokens wants 17 widths; a flag of 2,047 gives 15."""
    assert plan(8, 2049, limit=1000).max_width == 17 * WIDTH_BUCKET
    assert plan(8, 2048, max_width=2047).max_width == 15 * WIDTH_BUCKET


def test_a_flag_equal_to_the_context_bound_nothing() -> None:
    """Only a strict improvement on the context takes the name."""
    widest = plan().arena_bytes

    assert plan(max_width=2048).width_bound_by == "context"
    assert plan(max_width=4096, budget_bytes=widest, limit=64).width_bound_by == "context"
    assert plan(max_width=2047).width_bound_by == "flag"
    assert plan(budget_bytes=widest - 1).width_bound_by == "bytes"
    assert plan(limit=63).width_bound_by == "limit"


def test_ties_go_flag_bytes_limit() -> None:
    """Who comes first in that order keeps the name of a ceiling that several share."""
    half = plan(max_width=1024).arena_bytes

    assert plan(max_width=1024, budget_bytes=half, limit=32).width_bound_by == "flag"
    assert plan(max_width=1151, budget_bytes=half, limit=35).width_bound_by == "flag"
    assert plan(budget_bytes=half, limit=32).width_bound_by == "bytes"
    assert plan(max_width=1024, budget_bytes=half - 1, limit=32).width_bound_by == "bytes"


def test_rows_above_the_cap_run_eager() -> None:
    """A cap is the last row bucket, power of two or not, and no step above it has a shape."""
    made = plan(max_rows=6)

    assert made.row_buckets == (1, 2, 4, 6)
    assert made.bucket(5, 1) == (6, 128)
    assert made.bucket(7, 1) is None
    assert plan(max_rows=100).row_buckets == (1, 2, 4, 8)


def test_context_above_the_widest_has_no_shape() -> None:
    """A decode past the ceiling is not padded to anything narrower."""
    made = plan(16)

    assert made.bucket(3, 1536) == (4, 1536)
    assert made.bucket(3, 1537) is None


def test_a_backend_that_reads_lengths_has_one_width() -> None:
    """Its list is the row buckets alone, at the context rounded up, whatever its limit holds."""
    made = plan(8, 2000, depends_on_width=False, limit=4)

    assert made.shapes == ((8, 2048), (4, 2048), (2, 2048), (1, 2048))
    assert made.width_buckets == (2048,)
    assert (made.full_count, made.trimmed, made.width_bound_by) == (4, 0, "context")
    assert plan(8, 2000, depends_on_width=False, max_width=600).width_buckets == (512,)


@pytest.mark.parametrize(
    ("asked", "bound_by", "have", "need", "advice"),
    [
        ({"max_width": 127}, "flag", 127, 128, ("--warm-width 128",)),
        (
            {"budget_bytes": 100_000},
            "bytes",
            100_000,
            131_072,
            ("--capture-bytes 131072", "--warm-rows 4"),
        ),
        ({"budget_bytes": -1}, "bytes", -1, 131_072, ("--capture-bytes 131072",)),
        ({"limit": 3}, "limit", 3, 4, ("--capture-limit 4", "--warm-rows 4")),
        (
            {"max_width": 0, "limit": 0},
            "flag",
            0,
            128,
            ("--warm-width 128 with --capture-limit 4",),
        ),
    ],
)
def test_ceiling_under_one_bucket_is_refused(
    asked: dict[str, Any], bound_by: str, have: int, need: int, advice: tuple[str, ...]
) -> None:
    """Nothing to record is an error that says who is in the way and what would do."""
    with pytest.raises(CaptureTooSmall) as caught:
        plan(**asked)

    error = caught.value
    assert (error.bound_by, error.have, error.need) == (bound_by, have, need)
    assert error.advice == advice


def test_plan_reads_as_json_and_as_a_line() -> None:
    """The plan in both forms carries the same numbers."""
    made = plan(16)
    values = json.loads(json.dumps(made.as_dict()))

    assert values["shapes"] == [list(shape) for shape in made.shapes]
    assert (values["count"], values["full_count"], values["trimmed"]) == (60, 80, 20)
    assert (values["max_rows"], values["max_width"], values["widest"]) == (16, 1536, [16, 1536])
    assert (values["width_bound_by"], values["arena_bytes"]) == ("limit", 3 * MIB)
    assert made.describe() == (
        "60 of 80 shapes, to 16 rows of 1,536 tokens (set by the number of graphs held), "
        "arena 3.0 MiB"
    )


slots = st.integers(1, 300)
contexts = st.integers(1, 20_000)
requests = st.builds(
    CaptureRequest,
    max_rows=st.none() | st.integers(1, 400),
    max_width=st.none() | st.integers(0, 24_000),
    budget_bytes=st.none() | st.integers(0, 64 * MIB),
    limit=st.integers(0, 700),
)


def planned(
    max_num_seqs: int, context: int, request: CaptureRequest, *, depends_on_width: bool
) -> CapturePlan | None:
    """Return the plan, or None where nothing can be recorded."""
    try:
        return plan_capture(
            max_num_seqs,
            context,
            request=request,
            arena_bytes=scores_bytes(4),
            depends_on_width=depends_on_width,
        )
    except CaptureTooSmall:
        return None


@given(slots, contexts, requests, st.booleans())
def test_a_plan_keeps_every_limit(
    max_num_seqs: int, context: int, request: CaptureRequest, depends_on_width: bool
) -> None:
    """No plan has more graphs, more bytes, more rows or more width than was allowed."""
    made = planned(max_num_seqs, context, request, depends_on_width=depends_on_width)
    assume(made is not None)
    assert made is not None

    assert made.count == len(set(made.shapes)) <= min(request.limit, made.full_count)
    assert made.arena_bytes == max(scores_bytes(4)(*shape) for shape in made.shapes)
    assert request.budget_bytes is None or made.arena_bytes <= request.budget_bytes
    assert request.max_width is None or made.max_width <= request.max_width
    assert made.max_rows == min(max_num_seqs, request.max_rows or max_num_seqs)
    assert made.trimmed % len(made.row_buckets) == 0


@given(slots, contexts, requests, st.integers(1, 300), st.integers(1, 20_000))
def test_a_bucket_holds_its_batch(
    max_num_seqs: int, context: int, request: CaptureRequest, num_rows: int, context_len: int
) -> None:
    """A batch is padded to the smallest planned shape that holds it, or to none."""
    made = planned(max_num_seqs, context, request, depends_on_width=True)
    assume(made is not None)
    assert made is not None
    holding = [
        (rows, width) for rows, width in made.shapes if rows >= num_rows and width >= context_len
    ]

    assert made.bucket(num_rows, context_len) == (min(holding) if holding else None)


@given(slots, contexts, requests)
def test_the_ceiling_s_name_is_who_must_change(
    max_num_seqs: int, context: int, request: CaptureRequest
) -> None:
    """Each constraint taken away alone leaves the width, but for the one that is named."""
    made = planned(max_num_seqs, context, request, depends_on_width=True)
    assume(made is not None)
    assert made is not None
    heights = {
        "context": len(width_buckets(context)),
        "flag": 10**9 if request.max_width is None else request.max_width // WIDTH_BUCKET,
        "bytes": 10**9
        if request.budget_bytes is None
        else request.budget_bytes // scores_bytes(4)(made.max_rows, WIDTH_BUCKET),
        "limit": request.limit // len(made.row_buckets),
    }
    lowest = min(heights.values())

    assert made.max_width == lowest * WIDTH_BUCKET
    assert made.width_bound_by == next(name for name in heights if heights[name] == lowest)


@given(slots, contexts, requests, st.integers(0, 64), st.integers(0, 8 * MIB))
def test_more_never_records_less(
    max_num_seqs: int, context: int, request: CaptureRequest, graphs: int, num_bytes: int
) -> None:
    """A higher limit, more bytes or a longer context never narrows the list."""
    made = planned(max_num_seqs, context, request, depends_on_width=True)
    budget_bytes = None if request.budget_bytes is None else request.budget_bytes + num_bytes
    richer = CaptureRequest(
        request.max_rows, request.max_width, budget_bytes, request.limit + graphs
    )
    wider = planned(max_num_seqs, context, richer, depends_on_width=True)
    longer = planned(max_num_seqs, context + graphs, request, depends_on_width=True)
    assume(made is not None)
    assert made is not None
    assert wider is not None
    assert longer is not None

    assert set(made.shapes) <= set(wider.shapes)
    assert set(made.shapes) <= set(longer.shapes)


@given(slots, contexts, requests, st.booleans())
def test_advice_was_planned_again(
    max_num_seqs: int, context: int, request: CaptureRequest, depends_on_width: bool
) -> None:
    """Each piece of advice of a refusal, followed, makes a plan."""
    fields = {
        "--warm-width": "max_width",
        "--capture-bytes": "budget_bytes",
        "--capture-limit": "limit",
        "--warm-rows": "max_rows",
    }
    try:
        plan_capture(
            max_num_seqs,
            context,
            request=request,
            arena_bytes=scores_bytes(4),
            depends_on_width=depends_on_width,
        )
        return
    except CaptureTooSmall as error:
        advice = error.advice
    assert advice
    for text in advice:
        words = text.replace(" with", "").split()
        changes = {
            fields[flag]: int(value) for flag, value in zip(words[::2], words[1::2], strict=True)
        }
        changed = CaptureRequest(**(asdict(request) | changes))

        assert planned(max_num_seqs, context, changed, depends_on_width=depends_on_width)
