"""Masks of a step: who is asked, and what a fault costs."""

from dataclasses import replace

from nanoserve.engine.grammar_masks import mask_step
from nanoserve.sched.sampling_params import SamplingParams
from nanoserve.sched.step import ScheduledRequest, StepPlan
from tests.builders import make_request


class _Grammar:
    def __init__(self, mask: bytes | None) -> None:
        self.mask = mask
        self.num_asked = 0

    def allowed_tokens(self) -> bytes | None:
        self.num_asked += 1
        if self.mask == b"":
            message = "no mask"
            raise ValueError(message)
        return self.mask

    def accept(self, token_id: int) -> None:
        """Allow it."""


def part_of(request_id: str, *, samples: bool = True) -> ScheduledRequest:
    return ScheduledRequest(request_id, (1,), 0, (0,), SamplingParams(), 0, samples)


def test_masks_are_set_where_a_bound_request_samples() -> None:
    """A chunk in the middle of a prompt asks nothing, and a free request has no mask."""
    grammar = _Grammar(b"\x05")
    bound = replace(make_request(), grammar=grammar)
    requests = {"bound": bound, "prefill": bound, "free": make_request()}
    parts = (part_of("bound"), part_of("prefill", samples=False), part_of("free"))

    plan, failed = mask_step(StepPlan(3, parts), requests)

    assert [part.allowed_tokens for part in plan.scheduled] == [b"\x05", None, None]
    assert grammar.num_asked == 1
    assert failed == {}


def test_a_grammar_that_raises_is_named_with_its_problem() -> None:
    """The others keep their masks, and every request stays in the plan."""
    requests = {
        name: replace(make_request(), grammar=_Grammar(mask))
        for name, mask in (("bad", b""), ("good", b"\x01"))
    }

    plan, failed = mask_step(StepPlan(3, (part_of("bad"), part_of("good"))), requests)

    assert [part.allowed_tokens for part in plan.scheduled] == [None, b"\x01"]
    assert failed == {"bad": "The grammar gave no next token: no mask"}
