"""What an answer must follow: the grammar as asked for, and how it is stepped through.

Protocols and one value. Which library compiles a grammar is the compiler's affair; who asks
for one, and from which field, is the server's.
"""

from dataclasses import dataclass
from typing import Literal, Protocol

GrammarKind = Literal["json_object", "json_schema", "regex", "lark"]


@dataclass(frozen=True, slots=True)
class GrammarSpec:
    """A grammar in the words of whoever asked for it.

    Attributes:
        kind: How `text` is to be read.
        text: JSON for `json_schema`, an expression for `regex`, rules for `lark`; '' for
            `json_object`, which is any JSON object.
    """

    kind: GrammarKind
    text: str = ""


class GrammarMatcher(Protocol):
    """Where one answer stands in the grammar it must follow."""

    def allowed_tokens(self) -> bytes | None:
        """Return a bit for each token id that may come next, lowest bit first; None allows all.

        Once the answer is complete and can only end, the stop ids alone are allowed.
        """
        ...

    def accept(self, token_id: int) -> None:
        """Take in the token that came.

        Raises:
            ValueError: The grammar does not allow it.
        """
        ...


class Grammar(Protocol):
    """A compiled grammar, shared by the answers that follow it."""

    def matcher(self) -> GrammarMatcher:
        """Return a matcher at the start of an answer, the caller's own."""
        ...


class GrammarCompiler(Protocol):
    """Makes grammars; may be called from any thread."""

    def compile(self, spec: GrammarSpec) -> Grammar:
        """Compile `spec`, or return what was compiled before. Blocks, for a bounded time.

        Raises:
            InvalidRequestError: It is no grammar, or one that is too large, with the reason.
        """
        ...
