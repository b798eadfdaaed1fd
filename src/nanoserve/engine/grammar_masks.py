"""Grammars meet the step: which tokens each constrained request may draw next.

Knows nothing of how a grammar is compiled or how a mask reaches the device.
"""

import logging
from collections.abc import Mapping
from dataclasses import replace

from nanoserve.engine.interface import GenerationRequest
from nanoserve.sched.step import ScheduledRequest, StepPlan

logger = logging.getLogger(__name__)


def mask_step(
    plan: StepPlan, requests: Mapping[str, GenerationRequest]
) -> tuple[StepPlan, dict[str, str]]:
    """Ask each grammar what may come next.

    Args:
        plan: As scheduled.
        requests: Every request of the plan, by id.

    Returns:
        The plan with `allowed_tokens` set where a request with a grammar samples, and the
        requests whose grammar raised, with the problem in words.
    """
    parts: list[ScheduledRequest] = []
    failed: dict[str, str] = {}
    for part in plan.scheduled:
        grammar = requests[part.request_id].grammar
        if grammar is None or not part.samples:
            parts.append(part)
            continue
        try:
            parts.append(replace(part, allowed_tokens=grammar.allowed_tokens()))
        except Exception as error:  # border: one request's grammar may not end the others
            logger.exception("Request %s failed in its grammar.", part.request_id)
            failed[part.request_id] = f"The grammar gave no next token: {error}"
            parts.append(part)
    return replace(plan, scheduled=tuple(parts)), failed
