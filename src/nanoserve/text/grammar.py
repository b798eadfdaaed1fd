"""`LLGuidanceCompiler`: grammars that answers must follow, by the library llguidance.

Owns how a vocabulary is shown to the library, which grammars are kept, and how one answer
steps through its grammar. The rules themselves are written by `grammar_source`.
"""

import threading
from collections import OrderedDict
from collections.abc import Collection

from llguidance import LLMatcher, LLTokenizer

from nanoserve.errors import InvalidRequestError
from nanoserve.text.grammar_source import grammar_source, refusal, start_matcher
from nanoserve.text.grammar_spec import GrammarKind, GrammarSpec
from nanoserve.text.grammar_trial import needs_trial, try_source
from nanoserve.text.grammar_vocabulary import GrammarVocabulary, read_vocabulary
from nanoserve.text.tokenizer import Tokenizer
from nanoserve.units import ceil_div

MAX_KEPT_GRAMMARS = 32
MAX_KEPT_CHARS = 524_288  # of the texts they were compiled from


class LLGuidanceCompiler:
    """Compiles grammars for one vocabulary, one at a time, and keeps the latest.

    One at a time leaves the other cores to the steps. Nothing is built before the first
    grammar, because a vocabulary of 49,000 tokens takes half a second.
    """

    def __init__(
        self, tokenizer: Tokenizer, vocab_size: int, stop_token_ids: Collection[int]
    ) -> None:
        """Store what the vocabulary is made of.

        Args:
            tokenizer: Says what bytes a token stands for.
            vocab_size: Bits of a mask: token ids of the model, those without text included.
            stop_token_ids: Tokens that may end an answer, each of them once it is complete.
        """
        self._tokenizer = tokenizer
        self._vocab_size = vocab_size
        self._stop_token_ids = stop_token_ids
        self._built: tuple[GrammarVocabulary, LLTokenizer] | None = None
        self._kept = GrammarCache(MAX_KEPT_GRAMMARS, MAX_KEPT_CHARS)
        self._compiling = threading.Lock()

    def compile(self, spec: GrammarSpec) -> "LLGuidanceGrammar":
        """Compile `spec`, or return what was compiled before. Blocks, for a bounded time.

        JSON schemas are strict: what llguidance does not enforce is refused by name.

        Raises:
            InvalidRequestError: It is no grammar, or one that is too large, with the reason.
        """
        kept = self._kept.get(spec)
        if kept is not None:
            return kept
        source = grammar_source(spec)
        with self._compiling:
            kept = self._kept.get(spec)  # while this thread waited for its turn
            if kept is not None:
                return kept
            grammar = self._compile(spec.kind, source)
            self._kept.put(spec, grammar)
        return grammar

    def _compile(self, kind: GrammarKind, source: str) -> "LLGuidanceGrammar":
        vocabulary, backend = self._build()
        error = try_source(vocabulary, source) if needs_trial(kind, source) else None
        if error is not None:
            raise refusal(kind, error)
        grammar = LLGuidanceGrammar(backend, source)
        if grammar.error:
            raise refusal(kind, grammar.error)
        return grammar

    def _build(self) -> tuple[GrammarVocabulary, LLTokenizer]:
        if self._built is None:
            if not self._stop_token_ids:
                message = "The model has no stop token, so an answer to a grammar could not end."
                raise InvalidRequestError(message)
            vocabulary = read_vocabulary(self._tokenizer, self._vocab_size, self._stop_token_ids)
            self._built = vocabulary, vocabulary.build_backend()
        return self._built


class LLGuidanceGrammar:
    """A compiled grammar, shared by the answers that follow it.

    Attributes:
        error: Why it cannot be followed, in llguidance's words; '' where it can.
    """

    def __init__(self, backend: LLTokenizer, source: str) -> None:
        self._backend = backend
        self._source = source
        self._start = start_matcher(backend, source)
        self.error = self._start.get_error()

    def matcher(self) -> "LLGuidanceMatcher":
        """Return a matcher at the start of an answer, the caller's own."""
        return LLGuidanceMatcher(self, self._start.deep_copy(), self._backend.vocab_size)

    def start_alone(self) -> LLMatcher:
        """Return what steps through the grammar and shares nothing with other answers."""
        return start_matcher(self._backend, self._source)


class LLGuidanceMatcher:
    """Where one answer stands in the grammar it must follow.

    Answers to one grammar share the states of its lexer, which are found as they are met, and
    whose number is limited. An answer that meets the limit goes on with a lexer of its own, so
    what other answers used up does not end it.

    Attributes:
        is_alone: Whether it has met the limit and shares its lexer with no other answer.
    """

    def __init__(self, grammar: LLGuidanceGrammar, steps: LLMatcher, vocab_size: int) -> None:
        self._grammar = grammar
        self._steps = steps
        self._vocab_size = vocab_size
        self._token_ids: list[int] = []
        self.is_alone = False

    def allowed_tokens(self) -> bytes:
        """Return a bit for each token id that may come next, lowest bit first.

        Once the answer is complete and can only end, the stop ids alone are allowed.

        Raises:
            ValueError: The grammar needs more than one step may cost.
        """
        mask = self._steps.compute_bitmask()
        if self._steps.is_error():
            self._go_on_alone()
            mask = self._steps.compute_bitmask()
            self._check()
        return mask[: ceil_div(self._vocab_size, 8)]

    def accept(self, token_id: int) -> None:
        """Take in the token that came.

        Raises:
            ValueError: The grammar does not allow it.
        """
        if not 0 <= token_id < self._vocab_size:
            message = f"Token {token_id} is not one of the {self._vocab_size} of the vocabulary."
            raise ValueError(message)
        if not self._steps.consume_token(token_id):
            self._go_on_alone()
            self._steps.consume_token(token_id)
            self._check()
        self._token_ids.append(token_id)

    def _go_on_alone(self) -> None:
        """Step through the answer so far again, unless that was done before."""
        if not self.is_alone:
            self.is_alone = True
            self._steps = self._grammar.start_alone()
            self._steps.consume_tokens(self._token_ids)
        self._check()

    def _check(self) -> None:
        if self._steps.is_error():
            reason = self._steps.get_error().partition("\n")[0]
            message = f"The answer can no longer follow its grammar: {reason}."
            raise ValueError(message)


class GrammarCache:
    """Keeps the grammars used last, up to a number of them and of characters in all."""

    def __init__(self, max_grammars: int, max_chars: int) -> None:
        self._max_grammars = max_grammars
        self._max_chars = max_chars
        self._num_chars = 0
        self._grammars: OrderedDict[GrammarSpec, LLGuidanceGrammar] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, spec: GrammarSpec) -> LLGuidanceGrammar | None:
        """Return what was compiled from `spec`, if it is still kept."""
        with self._lock:
            grammar = self._grammars.get(spec)
            if grammar is not None:
                self._grammars.move_to_end(spec)
            return grammar

    def put(self, spec: GrammarSpec, grammar: LLGuidanceGrammar) -> None:
        """Keep a grammar that is not kept yet, and drop those unused for longest."""
        with self._lock:
            self._grammars[spec] = grammar
            self._num_chars += len(spec.text)
            while len(self._grammars) > self._max_grammars or self._num_chars > self._max_chars:
                dropped, _ = self._grammars.popitem(last=False)
                self._num_chars -= len(dropped.text)
