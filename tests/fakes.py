"""Stand-ins for the parts that need weights: a runner and a tokenizer without torch."""

from collections.abc import Callable, Sequence

from nanoserve.sched.step import ScheduledRequest, StepExecution, StepPlan, StepResult


class FakeRunner:
    """A runner whose next token depends on the last token and its position alone.

    It says of each step that it ran as `execution`, which a test may change.
    """

    def __init__(self, vocab_size: int = 256) -> None:
        self.vocab_size = vocab_size
        self.steps: list[StepPlan] = []
        self.execution = StepExecution()

    def execute(self, step: StepPlan) -> StepResult:
        self.steps.append(step)
        sampled = tuple(
            self.next_token(request.token_ids[-1], request.context_len) if request.samples else None
            for request in step.scheduled
        )
        scores = {
            request.request_id: tuple(-1.0 for _ in request.scored_token_ids)
            for request in step.scheduled
            if request.scored_token_ids
        }
        return StepResult(step.step_id, sampled, scores, self.execution)

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
