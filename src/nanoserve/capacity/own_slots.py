"""How many requests at once our own server is best told to serve, where nobody says.

Other engines admit hundreds by default and are bounded by the pool; ours has 8 slots by
default, and on a CPU a pool that follows them. So a search looks for the slots as well.
"""

from dataclasses import replace

from nanoserve.capacity.budget_line import LEFT_OVER
from nanoserve.capacity.plan_answer import PlanAnswer, answer
from nanoserve.errors import NanoserveError

MAX_SLOTS = 1 << 16


def with_slots_for(plan: PlanAnswer, users: int = MAX_SLOTS) -> PlanAnswer:
    """Return our own server's plan with the slots for so many users, or the most that fit.

    Other engines' plans, and those whose slots were stated, come back as they are.
    """
    if not _is_own(plan) or plan.query.max_num_seqs is not None:
        return plan
    best, low, past = plan, 0, min(users, MAX_SLOTS) + 1
    tried = min(plan.choices.max_num_seqs, past - 1)
    is_bounded = False
    while low + 1 < past:
        found = _with_slots(plan, tried)
        if found is not None and served_at_once(found) >= tried:
            best, low = found, tried
        else:
            past, is_bounded = tried, True
        tried = (low + past) // 2 if is_bounded else min(2 * tried, past - 1)
    return best


def served_at_once(plan: PlanAnswer) -> int:
    """Return the requests of the workload at once of one copy: with the least pool likely.

    Our own server runs as many as it has slots, and any engine as many as it is told at most,
    whatever fits beside them. vLLM runs no more than a step has tokens, where that is stated:
    it refuses more slots.
    """
    if plan.verdict == "does not load" or plan.stage.refusal or not _starts_surely(plan):
        return 0
    fits = max(0, plan.fit.p95.low)
    if _is_own(plan) or plan.query.max_num_seqs is not None:
        return min(fits, plan.choices.max_num_seqs)
    return min(fits, plan.query.most_slots)


def _with_slots(plan: PlanAnswer, slots: int) -> PlanAnswer | None:
    """Plan again; None where the server refuses so many, as more than tokens of a step."""
    try:
        return answer(replace(plan.query, max_num_seqs=slots))
    except NanoserveError:
        return None


def _starts_surely(plan: PlanAnswer) -> bool:
    """Whether a pool that follows the slots fits at the cautious end of what lies beside it."""
    left = [line.size.low for line in plan.lines if line.name == LEFT_OVER]
    return not plan.stage.is_reserved or any(size > 0 for size in left)


def _is_own(plan: PlanAnswer) -> bool:
    return plan.query.profile.engine == "nanoserve"
