"""Stand-ins for the parts that need weights: a runner and a tokenizer without torch."""

from collections.abc import Callable, Sequence

from nanoserve.errors import InvalidRequestError
from nanoserve.sched.step import (
    ScheduledRequest,
    StepExecution,
    StepPlan,
    StepResult,
    TokenLogprobs,
)
from nanoserve.text.grammar_spec import GrammarSpec


def fake_logprobs(token_id: int, num_top: int | None) -> TokenLogprobs:
    """Return what a `FakeRunner` says of any token: itself first, then its successors."""
    top = tuple((token_id + rank, -1.0 - rank) for rank in range(num_top or 0))
    return TokenLogprobs(token_id, -1.0, top)


def _is_allowed(request: ScheduledRequest, token_id: int) -> bool:
    mask = request.allowed_tokens
    return mask is None or bool(mask[token_id // 8] >> token_id % 8 & 1)


class FakeRunner:
    """A runner whose next token depends on the last token and its position alone.

    It says of each step that it ran as `execution`, which a test may change.
    """

    def __init__(self, vocab_size: int = 256) -> None:
        self.vocab_size = vocab_size
        self.steps: list[StepPlan] = []
        self.execution = StepExecution()
        self.broken: set[str] = set()  # requests whose logits are not finite

    def execute(self, step: StepPlan) -> StepResult:
        self.steps.append(step)
        sampled = tuple(
            self.draw(request)
            if request.samples and request.request_id not in self.broken
            else None
            for request in step.scheduled
        )
        scores = {
            request.request_id: tuple(
                fake_logprobs(token_id, request.sampling.num_prompt_logprobs)
                for token_id in request.scored_token_ids
            )
            for request in step.scheduled
            if request.scored_token_ids
        }
        logprobs = {
            request.request_id: fake_logprobs(token_id, request.sampling.num_logprobs)
            for request, token_id in zip(step.scheduled, sampled, strict=True)
            if token_id is not None and request.sampling.num_logprobs is not None
        }
        ids = {request.request_id for request in step.scheduled}
        failed = dict.fromkeys(sorted(self.broken & ids), "The logits are not finite.")
        return StepResult(step.step_id, sampled, scores, self.execution, logprobs, failed)

    def draw(self, request: ScheduledRequest) -> int:
        """Return the next token that is allowed, counting up from the one without rules."""
        token_id = self.next_token(request.token_ids[-1], request.context_len)
        while token_id in request.banned_token_ids or not _is_allowed(request, token_id):
            token_id = (token_id + 1) % self.vocab_size
        return token_id

    def next_token(self, last_token_id: int, position: int) -> int:
        return (last_token_id * 31 + position * 7 + 1) % self.vocab_size

    def continuation(self, prompt_token_ids: Sequence[int], num_tokens: int) -> list[int]:
        """Return what an undisturbed request would generate."""
        tokens = list(prompt_token_ids)
        for _ in range(num_tokens):
            tokens.append(self.next_token(tokens[-1], len(tokens)))
        return tokens[len(prompt_token_ids) :]


class PagedFakeRunner(FakeRunner):
    """A `FakeRunner` with a pool: it stores token ids where a model would store their KV.

    After writing a step it reads back the whole history of each scheduled request through
    its block table, and fails if the pool holds anything but that request's tokens.
    """

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        tokens_of: Callable[[str], Sequence[int]],
        vocab_size: int = 256,
    ) -> None:
        super().__init__(vocab_size)
        self.block_size = block_size
        self.tokens_of = tokens_of
        self.slots: list[int | None] = [None] * (num_blocks * block_size)

    def execute(self, step: StepPlan) -> StepResult:
        written = [slot for request in step.scheduled for slot in self._write(request)]
        assert len(written) == len(set(written)), "two tokens of a step share a slot"
        for request in step.scheduled:
            history = list(self.tokens_of(request.request_id))[: request.context_len]
            stored = [self.slots[slot] for slot in self._slots_of(request, 0)]
            assert stored == history, f"{request.request_id}: pool {stored}, tokens {history}"
        return super().execute(step)

    def _write(self, request: ScheduledRequest) -> list[int]:
        written = self._slots_of(request, request.num_computed_tokens)
        for slot, token_id in zip(written, request.token_ids, strict=True):
            self.slots[slot] = token_id
        return written

    def _slots_of(self, request: ScheduledRequest, start: int) -> list[int]:
        return [
            request.block_table[position // self.block_size] * self.block_size
            + position % self.block_size
            for position in range(start, request.context_len)
        ]


class ByteTokenizer:
    """One token per UTF-8 byte: ids 0..255."""

    vocab_size = 256
    longest_token_chars = 1

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        return list(text.encode("utf-8"))

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        return bytes(token_ids).decode("utf-8", errors="replace")

    def decode_stream(self) -> "ByteDecodeStream":
        return ByteDecodeStream()

    def token_bytes(self, token_id: int) -> bytes:
        return bytes([token_id])


class ByteDecodeStream:
    """Holds bytes until they form characters."""

    def __init__(self) -> None:
        self._held = b""

    def push(self, token_id: int) -> str:
        self._held += bytes([token_id])
        try:
            text = self._held.decode("utf-8")
        except UnicodeDecodeError as error:
            if error.reason == "unexpected end of data":
                return ""
            text = self._held.decode("utf-8", errors="replace")
        self._held = b""
        return text

    def flush(self) -> str:
        text = self._held.decode("utf-8", errors="replace")
        self._held = b""
        return text


class FakeCompiler:
    """Compiles every grammar to one that only `text` follows, then token id `end_id`."""

    def __init__(self, text: str, end_id: int) -> None:
        self.specs: list[GrammarSpec] = []
        self._tokens = [*text.encode(), end_id]

    def compile(self, spec: GrammarSpec) -> "FakeCompiler":
        self.specs.append(spec)
        if spec.text == "broken":
            message = "It is no grammar."
            raise InvalidRequestError(message)
        return self

    def matcher(self) -> "FakeMatcher":
        return FakeMatcher(self._tokens)


class FakeMatcher:
    """Allows the tokens it was given, in their order."""

    def __init__(self, tokens: Sequence[int]) -> None:
        self._left = list(tokens)

    def allowed_tokens(self) -> bytes:
        return (1 << self._left[0]).to_bytes(32, "little")

    def accept(self, token_id: int) -> None:
        assert self._left.pop(0) == token_id
