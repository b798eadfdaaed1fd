"""Results share bytes only if one is done with when the other is written."""

from hypothesis import given
from hypothesis import strategies as st

from nanoserve.kernels.result_layout import ALIGNMENT, Lifetime, lay_out

lifetimes = st.lists(
    st.builds(
        lambda num_bytes, first, length: Lifetime(num_bytes, first, first + length),
        num_bytes=st.integers(1, 1000),
        first=st.integers(0, 20),
        length=st.integers(0, 8),
    ),
    max_size=30,
)


@given(lifetimes)
def test_results_that_live_together_share_no_byte(results: list[Lifetime]) -> None:
    """Whatever sizes and lifetimes; every place is aligned and inside the block."""
    layout = lay_out(results)

    spans = [
        (offset, offset + result.num_bytes)
        for offset, result in zip(layout.offsets, results, strict=True)
    ]
    assert all(first % ALIGNMENT == 0 and end <= layout.num_bytes for first, end in spans)
    for index, one in enumerate(results):
        for other in range(index):
            if set(one.ops) & set(results[other].ops):
                (first, end), (other_first, other_end) = spans[index], spans[other]
                assert end <= other_first or other_end <= first


def test_a_chain_takes_what_two_links_take() -> None:
    """Each result is read by the operator that writes the next one, and by no later one."""
    chain = [Lifetime(1024, op, op + 1) for op in range(50)]

    assert lay_out(chain).num_bytes == 2048


def test_nothing_takes_nothing() -> None:
    """A program without results needs no block."""
    assert lay_out([]).num_bytes == 0
