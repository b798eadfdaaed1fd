"""`logit_edits`: biases and bans touch their own tokens and no other."""

import pytest
import torch

from nanoserve.runner.logit_edits import add_biases, ban_tokens, build_biases, is_constrained
from nanoserve.sched.sampling_params import SamplingParams
from tests.sampling_reference import drawing

CPU = torch.device("cpu")
NEVER = float("-inf")
PLAIN = SamplingParams()


def biased(*biases: tuple[tuple[int, float], ...]) -> list[SamplingParams]:
    return [SamplingParams(logit_bias=pairs) for pairs in biases]


def test_a_bias_is_added_to_its_token() -> None:
    """Each row has its own biases; -100 is a ban however large the logit."""
    logits = torch.full((3, 4), 300.0)
    biases = build_biases(biased(((0, 1.5), (2, -100.0)), (), ((3, -2.0),)), 4, CPU)
    assert biases is not None

    add_biases(logits, biases)

    assert logits.tolist() == [[301.5, 300, NEVER, 300], [300] * 4, [300, 300, 300, 298]]


def test_a_bias_of_100_excludes_all_other_tokens() -> None:
    """Forced tokens rise by it like any other; the rest falls far below, in its order."""
    logits = torch.tensor([[500.0, 0.0, 1.0, 400.0], [500.0, 0.0, 1.0, 400.0]])
    biases = build_biases(biased(((1, 100.0), (2, 100.0), (3, 5.0)), ()), 4, CPU)
    assert biases is not None

    add_biases(logits, biases)

    assert logits[0, 1:3].tolist() == [100.0, 101.0]
    assert logits[0, 0] > logits[0, 3]
    assert logits[0, 0] < -10_000
    assert logits[1].tolist() == [500.0, 0.0, 1.0, 400.0]


def test_no_biases_are_no_work() -> None:
    """A batch without biases has none to add."""
    assert build_biases([PLAIN, PLAIN], 4, CPU) is None


def test_banned_tokens_are_out_for_their_row() -> None:
    """Ids past the vocabulary ban nothing, least of all a neighbour's token."""
    logits = torch.zeros(2, 8)

    ban_tokens(logits, [drawing(PLAIN, banned_token_ids=(1, 9, 8)), drawing(PLAIN)])

    assert logits.tolist() == [[0, NEVER, 0, 0, 0, 0, 0, 0], [0] * 8]


@pytest.mark.parametrize(
    ("mask", "allowed"),
    [
        (b"\x01\x80\xff", [0, 15, *range(16, 24)]),
        (b"\x06", [1, 2]),
        (b"", []),
        (b"\x02\x00\x00\xff\xff", [1]),
    ],
)
def test_a_grammar_allows_the_tokens_of_its_bits(mask: bytes, allowed: list[int]) -> None:
    """The lowest bit of the first byte is token 0; what the mask does not reach is out."""
    logits = torch.zeros(3, 24)

    ban_tokens(logits, [drawing(PLAIN), drawing(PLAIN, allowed_tokens=mask), drawing(PLAIN)])

    assert logits[1].isfinite().nonzero()[:, 0].tolist() == allowed
    assert bool((logits[[0, 2]] == 0).all())


def test_a_request_is_constrained_by_bans_or_a_grammar() -> None:
    """An empty mask allows nothing: it constrains too."""
    assert is_constrained(drawing(PLAIN, banned_token_ids=(1,)))
    assert is_constrained(drawing(PLAIN, allowed_tokens=b""))
    assert not is_constrained(drawing(PLAIN))
