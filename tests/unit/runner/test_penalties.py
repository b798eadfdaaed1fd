"""`penalties`: counts follow the history, and logits follow the counts."""

import pytest
import torch

from nanoserve.errors import InvariantError
from nanoserve.runner.penalties import Penalties, TokenCounts
from nanoserve.runner.sampling_table import build_table
from nanoserve.sched.sampling_params import SamplingParams
from nanoserve.sched.step import ScheduledRequest
from nanoserve.sched.token_history import TokenHistory
from tests.sampling_reference import drawing, penalise

CPU = torch.device("cpu")
ALL = SamplingParams(repetition_penalty=1.5, frequency_penalty=0.25, presence_penalty=0.5)


def counts_of(counts: TokenCounts) -> dict[int, float]:
    return dict(zip(counts.token_ids.tolist(), counts.num_in_output.tolist(), strict=True))


def apply(penalties: Penalties, *requests: ScheduledRequest) -> torch.Tensor:
    logits = torch.linspace(-2.0, 2.0, 10).repeat(len(requests), 1)
    table = build_table([request.sampling for request in requests], 10, CPU)
    assert table.penalised is not None
    penalties.apply(logits, requests, table.penalised)
    return logits


def test_tokens_of_the_prompt_count_as_seen_and_not_as_output() -> None:
    """Each distinct token is listed once, with its number in the output."""
    counts = TokenCounts(TokenHistory([3, 3, 5, 5, 7, 5], 3))

    assert counts_of(counts) == {3: 0, 5: 2, 7: 1}


def test_counts_advance_by_what_was_added() -> None:
    """Token by token or many at once, the counts are those of a fresh count."""
    tokens = [1, 2]
    counts = TokenCounts(TokenHistory(tokens, 2))
    for added in ([2], [9, 9, 4], [], list(range(100)), [1]):
        tokens += added
        assert counts.advance(TokenHistory(tokens, 2))
        assert counts_of(counts) == counts_of(TokenCounts(TokenHistory(tokens, 2)))


def test_another_history_is_refused() -> None:
    """A shorter view or another list, as in a replay, leaves the counts alone."""
    tokens = [1, 2, 3]
    short = TokenHistory(tokens, 1)
    tokens.append(4)
    counts = TokenCounts(TokenHistory(tokens, 1))
    before = counts_of(counts)

    assert not counts.advance(short)
    assert not counts.advance(TokenHistory(list(tokens), 1))
    assert counts_of(counts) == before


def test_penalties_follow_the_formulas() -> None:
    """Repetition first, on positive and negative logits; then frequency and presence."""
    history = TokenHistory([0, 9, 9, 8, 8, 1], 3)

    (logits,) = apply(Penalties(), drawing(ALL, history=history))

    expected = torch.linspace(-2.0, 2.0, 10).tolist()
    for token, num_in_output in {0: 0, 9: 0, 8: 2, 1: 1}.items():
        expected[token] = penalise(expected[token], num_in_output, ALL)
    assert logits.tolist() == pytest.approx(expected, abs=1e-6)


def test_penalties_never_reach_a_neighbour() -> None:
    """Rows without penalties keep their logits; the others have their own history's."""
    penalised = drawing(ALL, request_id="a", history=TokenHistory([2, 9], 1))
    plain = drawing(SamplingParams(), request_id="b")
    other = drawing(ALL, request_id="c", history=TokenHistory([7], 1))
    alone = [apply(Penalties(), request)[0] for request in (penalised, other)]

    logits = apply(Penalties(), penalised, plain, other)

    assert torch.equal(logits[0], alone[0])
    assert torch.equal(logits[1], torch.linspace(-2.0, 2.0, 10))
    assert torch.equal(logits[2], alone[1])


def test_kept_counts_change_no_result() -> None:
    """Step after step, after preemption, and under a reused id: as if counted afresh."""
    penalties = Penalties()
    tokens, others = [1, 2, 3], [9]
    for added in (4, 4, 5):
        tokens.append(added)
        request = drawing(ALL, history=TokenHistory(tokens, 3))
        assert torch.equal(apply(penalties, request), apply(Penalties(), request))
    apply(penalties, drawing(ALL, request_id="b", history=TokenHistory(others, 1)))
    reused = drawing(ALL, history=TokenHistory([7, 8], 1))

    assert torch.equal(apply(penalties, reused), apply(Penalties(), reused))


def test_a_missing_history_is_an_error() -> None:
    """A plan that asks for penalties and brings no history is refused by name."""
    with pytest.raises(InvariantError, match="'a' has penalties and no history"):
        apply(Penalties(), drawing(ALL))
