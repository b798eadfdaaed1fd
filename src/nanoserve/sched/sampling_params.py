"""How one request wants its tokens drawn, and when it wants them to end.

Owns the ranges. Knows nothing of the vocabulary (see `admission`) or of tensors
(see `runner.sampler`).
"""

import math
from dataclasses import dataclass, replace
from typing import Any

from nanoserve.errors import InvalidRequestError

MAX_STOP_STRINGS = 4  # as in OpenAI's API
MAX_STOP_CHARS = 1000  # of one stop string
MAX_STOP_TOKEN_IDS = 1000  # each new token is looked up in them
MAX_N = 128  # choices of one request
MAX_SEED = 2**63 - 1
MAX_LOGPROBS = 20  # alternatives of one token, as in OpenAI's API
MAX_BIASES = 1024  # entries of logit_bias
MAX_REPETITION_PENALTY = 10.0


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """Sampling and stopping of one request.

    Attributes:
        max_tokens: Most tokens to generate; None means what is left of the context. 0 is
            possible where the prompt is scored, and generates nothing.
        temperature: 0 is exact argmax; otherwise logits are divided by it. In 0..2.
        top_p: Keep the smallest set of tokens whose probability reaches this. In (0, 1].
        top_k: Keep this many most likely tokens; 0 keeps all.
        min_p: Keep tokens at least this fraction as likely as the likeliest. In 0..1.
        seed: Same seed, same tokens; None draws fresh entropy for each request.
        n: How many independent answers; answer i uses seed + i.
        stop: Up to four strings of up to 1000 characters that end the answer; not part of the text.
        stop_token_ids: Token ids that end the answer, besides the model's own.
        ignore_eos: Go on past the model's own stop ids.
        min_tokens: No stop id is drawn before this many tokens; 0 sets no such bound.
        include_stop: A stop string that ends the answer is part of its text.
        presence_penalty: Taken off the logit of every token of the output. In -2..2.
        frequency_penalty: The same, for each time it occurs. In -2..2.
        repetition_penalty: Divides positive logits, and multiplies negative ones, of every
            token of prompt and output. Above 0; 1 changes nothing.
        logit_bias: (token id, number added to its logit) pairs; numbers in -100..100.
        num_logprobs: Say how likely each new token was, and this many alternatives (0..20);
            None says nothing.
        num_prompt_logprobs: The same for each token of the prompt.
    """

    max_tokens: int | None = 16
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    n: int = 1
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    min_tokens: int = 0
    include_stop: bool = False
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    num_logprobs: int | None = None
    num_prompt_logprobs: int | None = None

    def __post_init__(self) -> None:
        """Refuse what no server could honour.

        Raises:
            InvalidRequestError: Names the field, its value and the range.
        """
        self._check_types()
        fewest_tokens = 1 if self.num_prompt_logprobs is None else 0
        if self.max_tokens is not None and self.max_tokens < fewest_tokens:
            _refuse("max_tokens", self.max_tokens, "at least 1 (0 only to score the prompt)")
        _check_range("temperature", self.temperature, 0.0, 2.0)
        _check_range("top_p", self.top_p, 0.0, 1.0)
        if self.top_p <= 0.0:
            _refuse("top_p", self.top_p, "above 0 and at most 1")
        _check_range("min_p", self.min_p, 0.0, 1.0)
        if self.top_k < 0:
            _refuse("top_k", self.top_k, "at least 0 (0 keeps all tokens)")
        if self.seed is not None and not -MAX_SEED - 1 <= self.seed <= MAX_SEED:
            _refuse("seed", self.seed, "a signed 64-bit integer")
        if not 1 <= self.n <= MAX_N:
            _refuse("n", self.n, f"between 1 and {MAX_N}")
        self._check_stops()
        self._check_penalties()
        self._check_biases()
        self._check_logprobs()

    def _check_types(self) -> None:
        """Refuse what Python callers get wrong; bodies of requests are typed already."""
        open_names = ("max_tokens", "seed", "num_logprobs", "num_prompt_logprobs")
        for name in (*open_names, "top_k", "n", "min_tokens"):
            value = getattr(self, name)
            is_open = value is None and name in open_names
            if type(value) is not int and not is_open:
                _refuse(name, repr(value), "an integer")
        lists: tuple[tuple[str, Any, type], ...] = (
            ("stop", self.stop, str),
            ("stop_token_ids", self.stop_token_ids, int),
        )
        for name, values, kind in lists:
            is_list = isinstance(values, tuple | list)
            if not is_list or any(type(value) is not kind for value in values):
                _refuse(name, f"{values!r:.80}", f"a tuple of {kind.__name__}")

    def _check_stops(self) -> None:
        if len(self.stop) > MAX_STOP_STRINGS:
            _refuse("stop", f"{len(self.stop)} strings", f"at most {MAX_STOP_STRINGS}")
        if any(not text for text in self.stop):
            _refuse("stop", "''", "strings that are not empty")
        longest = max(map(len, self.stop), default=0)
        if longest > MAX_STOP_CHARS:
            _refuse("stop", f"{longest} characters long", f"at most {MAX_STOP_CHARS}")
        if len(self.stop_token_ids) > MAX_STOP_TOKEN_IDS:
            num_ids = len(self.stop_token_ids)
            _refuse("stop_token_ids", f"{num_ids} ids", f"at most {MAX_STOP_TOKEN_IDS}")
        if any(token_id < 0 for token_id in self.stop_token_ids):
            _refuse("stop_token_ids", list(self.stop_token_ids), "token ids, 0 or more")

    def _check_penalties(self) -> None:
        _check_range("presence_penalty", self.presence_penalty, -2.0, 2.0)
        _check_range("frequency_penalty", self.frequency_penalty, -2.0, 2.0)
        _check_range("repetition_penalty", self.repetition_penalty, 0.0, MAX_REPETITION_PENALTY)
        if self.repetition_penalty <= 0.0:
            allowed = f"above 0 and at most {MAX_REPETITION_PENALTY:g}"
            _refuse("repetition_penalty", self.repetition_penalty, allowed)

    def _check_biases(self) -> None:
        pairs: Any = self.logit_bias  # a caller's types are not checked
        if not isinstance(pairs, tuple) or any(
            not isinstance(pair, tuple) or len(pair) != 2 for pair in pairs
        ):
            _refuse("logit_bias", f"{pairs!r:.80}", "a tuple of (token id, number) pairs")
        if len(self.logit_bias) > MAX_BIASES:
            _refuse("logit_bias", f"{len(self.logit_bias)} entries", f"at most {MAX_BIASES}")
        for token_id, bias in self.logit_bias:
            if type(token_id) is not int or token_id < 0:
                _refuse("logit_bias", f"keyed by {token_id!r}", "keyed by token ids, 0 or more")
            _check_range("logit_bias", bias, -100.0, 100.0)

    def _check_logprobs(self) -> None:
        for name in ("num_logprobs", "num_prompt_logprobs"):
            value = getattr(self, name)
            if value is not None and not 0 <= value <= MAX_LOGPROBS:
                _refuse(name, value, f"between 0 and {MAX_LOGPROBS}")
        if self.min_tokens < 0:
            _refuse("min_tokens", self.min_tokens, "at least 0")
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            _refuse("min_tokens", self.min_tokens, f"at most max_tokens, {self.max_tokens}")

    @property
    def has_penalties(self) -> bool:
        """Whether a draw depends on which tokens came before."""
        adds = self.presence_penalty != 0.0 or self.frequency_penalty != 0.0
        return adds or self.repetition_penalty != 1.0

    def for_choice(self, index: int) -> "SamplingParams":
        """Return the parameters of answer `index` of `n`: one answer, seed + index."""
        seed = None if self.seed is None else _wrap_int64(self.seed + index)
        return replace(self, n=1, seed=seed)


def _wrap_int64(value: int) -> int:
    return (value + 2**63) % 2**64 - 2**63


def _check_range(field: str, value: float, low: float, high: float) -> None:
    is_number = type(value) in (int, float)
    if not (is_number and math.isfinite(value) and low <= value <= high):
        _refuse(field, value, f"between {low:g} and {high:g}")


def _refuse(field: str, value: object, allowed: str) -> None:
    message = f"{field} is {value}; it must be {allowed}."
    raise InvalidRequestError(message, field)
