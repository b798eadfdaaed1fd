"""`BackendFacts`: what planning has to know of the attention backend, before there is one."""

from collections.abc import Callable
from dataclasses import dataclass

ArenaBytes = Callable[[int, int], int]  # (rows, width in tokens) to bytes, never falling


@dataclass(frozen=True, slots=True)
class BackendFacts:
    """What the attention backend says of its recorded steps, and of the pool it reads.

    Attributes:
        depends_on_width: Whether a step is recorded for each width, or one serves them all.
        arena_bytes: What a shape takes beside its inputs and outputs.
        kv_cache_dtypes: Values of `--kv-cache-dtype` it serves.
        native_bytes: What a step recorded as native operators takes, by rows, the longest
            context, the size of a number and the tokens of the largest step; None where steps
            are not recorded so.
    """

    depends_on_width: bool
    arena_bytes: ArenaBytes
    kv_cache_dtypes: tuple[str, ...] = ("auto",)
    native_bytes: Callable[[int, int, int, int], int] | None = None

    @property
    def is_native(self) -> bool:
        """Whether steps are recorded as native operators: in milliseconds, on a CPU."""
        return self.native_bytes is not None

    def arena_bytes_of(self, itemsize: int, step_tokens: int, context: int) -> ArenaBytes:
        """Return what a shape takes.

        Native steps are counted at the longest context, whatever a shape's width: steps with
        prompts, which lie in the same arena, are recorded for no other.

        Args:
            itemsize: Bytes of a number of the compute dtype.
            step_tokens: Most tokens of a step, those of prompts included.
            context: Longest context served, in tokens.
        """
        native_bytes = self.native_bytes
        if native_bytes is None:
            return self.arena_bytes
        return lambda rows, width: native_bytes(rows, context, itemsize, step_tokens)
