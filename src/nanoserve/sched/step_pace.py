"""How many prompt tokens a step may hold, so that running answers do not stall behind it.

A chunk of a prompt lengthens the step, and with it the gap between two tokens of every
answer in it. Owns what a decode step and a prompt token have lately cost; is told seconds
and reads no clock. The scheduler asks, the engine tells.
"""

from collections import deque
from collections.abc import Iterable
from statistics import median

from nanoserve.sched.request import Request

MIN_CHUNK = 16  # prompt tokens a step may always hold, so that a prompt gets on whatever it costs
_MEMORY = 16  # steps that an estimate is the median of: a stall or two do not move it
_MIN_TIMED_TOKENS = 32  # with fewer the step's fixed cost would count as theirs
_LEAST_TOKEN_S = 1e-9  # what no clock tells from nothing


class StepPace:
    """Bounds the prompt tokens of a step that decodes share.

    Without a target, prompts get as long a share of the step as decodes, times prompts per
    decode where there are more of them: one prompt doubles the gap of those that run, and a
    crowd of prompts is not held up by a few that run.
    """

    def __init__(self, target_s: float | None = None) -> None:
        """Start without estimates.

        Args:
            target_s: Seconds that a step with decodes and prompts may take; None is the
                share above.
        """
        self._target_s = target_s
        self._decode_s: deque[float] = deque(maxlen=_MEMORY)
        self._token_s: deque[float] = deque(maxlen=_MEMORY)

    def prompt_budget(self, running: Iterable[Request], num_joining: int) -> int | None:
        """Return the most prompt tokens of the next step; None is no bound.

        Args:
            running: Requests that hold a place; those with one token to compute decode.
            num_joining: Requests that could be admitted if there were budget.
        """
        is_decode = [request.num_uncomputed_tokens == 1 for request in running]
        num_decodes = sum(is_decode)
        num_prompts = len(is_decode) - num_decodes + num_joining
        if not num_decodes or not num_prompts or not self._decode_s or not self._token_s:
            return None
        decode_s = median(self._decode_s)
        if self._target_s is None:
            share_s = decode_s * max(1.0, num_prompts / num_decodes)
        else:
            share_s = self._target_s - decode_s
        return max(MIN_CHUNK, round(share_s / median(self._token_s)))

    def observe(self, num_decodes: int, num_prompt_tokens: int, seconds: float) -> None:
        """Take in how long a step took.

        Args:
            num_decodes: Answers it went on with.
            num_prompt_tokens: Tokens of prompts it read.
            seconds: From plan to sampled tokens.
        """
        if not num_prompt_tokens:
            self._decode_s.append(seconds)
        elif num_decodes and not self._decode_s:
            if self._token_s:
                self._decode_s.append(max(0.0, seconds - num_prompt_tokens * median(self._token_s)))
        elif num_prompt_tokens >= _MIN_TIMED_TOKENS:
            decode_s = median(self._decode_s) if num_decodes else 0.0
            rest_s = seconds - decode_s
            if rest_s > 0.0:
                self._token_s.append(max(_LEAST_TOKEN_S, rest_s / num_prompt_tokens))
