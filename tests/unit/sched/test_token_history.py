"""`token_history`: a view that does not change while its list grows."""

import pytest

from nanoserve.sched.token_history import TokenHistory


def test_a_history_does_not_grow_with_its_list() -> None:
    """Length, items, slices and iteration stop where the history was taken."""
    token_ids = [1, 2, 3]
    history = TokenHistory(token_ids, 2)

    token_ids += [4, 5]

    assert len(history) == 3
    assert list(history) == [1, 2, 3]
    assert (history[0], history[-1]) == (1, 3)
    assert (history[1:], history[-2:], history[:99]) == ([2, 3], [2, 3], [1, 2, 3])
    assert 4 not in history
    with pytest.raises(IndexError):
        history[3]


def test_equal_histories_have_the_same_tokens_and_prompt() -> None:
    """Equality is by content, so that recorded plans can be compared."""
    longer = [1, 2, 3]
    history = TokenHistory(longer, 2)
    longer.append(4)

    assert history == TokenHistory([1, 2, 3], 2)
    assert hash(history) == hash(TokenHistory([1, 2, 3], 2))
    assert history != TokenHistory([1, 2, 3], 1)
    assert history != TokenHistory([1, 2, 4], 2)
    assert history != [1, 2, 3]
    assert repr(history) == "TokenHistory([1, 2, 3], 2)"
