"""Draws random answers that follow a grammar, as an engine with a whimsical model would."""

import functools
import random
from collections.abc import Collection

from nanoserve.text.grammar_spec import GrammarMatcher
from nanoserve.text.tokenizer import Tokenizer

_CLOSING = (b'"', b"}", b"]", b'"}', b"}}")


def allowed_ids(mask: bytes) -> list[int]:
    """The token ids whose bits are set."""
    return [
        8 * index + bit
        for index, byte in enumerate(mask)
        if byte
        for bit in range(8)
        if byte >> bit & 1
    ]


def token_id_of(tokenizer: Tokenizer, token: bytes) -> int:
    """The token that stands for exactly these bytes."""
    ids = (i for i in range(tokenizer.vocab_size) if tokenizer.token_bytes(i) == token)
    return next(ids)


@functools.cache
def _closing_ids(tokenizer: Tokenizer) -> frozenset[int]:
    ids = range(tokenizer.vocab_size)
    return frozenset(i for i in ids if tokenizer.token_bytes(i) in _CLOSING)


def random_answer(
    matcher: GrammarMatcher,
    tokenizer: Tokenizer,
    stop_ids: Collection[int],
    rng: random.Random,
    max_tokens: int = 120,
) -> tuple[str, bool]:
    """Draw among the allowed tokens, with a bias to what closes; return the text, and if it ended.

    The bias grows, so that most answers end before `max_tokens`.
    """
    preferred_ids = {*_closing_ids(tokenizer), *stop_ids}
    token_ids: list[int] = []
    for index in range(max_tokens):
        allowed = allowed_ids(matcher.allowed_tokens() or b"")
        preferred = [i for i in allowed if i in preferred_ids]
        prefers = preferred and rng.random() < 0.2 + index / max_tokens
        token_id = rng.choice(preferred if prefers else allowed)
        matcher.accept(token_id)
        if token_id in stop_ids:
            return tokenizer.decode(token_ids), True
        token_ids.append(token_id)
    return tokenizer.decode(token_ids), False
