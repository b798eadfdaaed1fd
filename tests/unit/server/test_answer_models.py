"""The wire's words."""

import pytest

from nanoserve.sched.step import FinishReason
from nanoserve.server.answer_models import wire_reason


@pytest.mark.parametrize("reason", [FinishReason.ABORT, FinishReason.ERROR])
def test_cut_answer_has_no_reason(reason: FinishReason) -> None:
    """No word on the wire makes a cut answer look whole."""
    with pytest.raises(ValueError, match=reason.value):
        wire_reason(reason)
