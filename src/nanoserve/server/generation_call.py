"""One validated generation call, whichever endpoint it came from."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from pydantic import BaseModel

from nanoserve.sched.sampling_params import SamplingParams
from nanoserve.server.answer import Answer, Piece
from nanoserve.server.answer_models import Usage
from nanoserve.server.prompt_encoding import EncodedPrompt
from nanoserve.server.protocol import StreamOptions
from nanoserve.text.grammar_spec import GrammarSpec


class AnswerFormat(Protocol):
    """How one endpoint words an answer."""

    def whole(self, answer: Answer) -> BaseModel:
        """Return the complete response."""
        ...

    def opening(self, num_choices: int) -> Iterator[Any]:
        """Yield the chunks before any text."""
        ...

    def chunks(self, piece: Piece) -> Iterator[Any]:
        """Yield the chunks of one piece."""
        ...

    def closing(self, usage: Usage) -> BaseModel:
        """Return the chunk that holds the usage alone."""
        ...


@dataclass(frozen=True, slots=True)
class GenerationCall:
    """One validated call.

    Attributes:
        answer_id: Start of the request ids.
        sampling: As asked; its `n` is how many answers of each prompt are generated.
        num_shown: How many of those the client gets.
        num_prompts: Known before anything is tokenised.
        min_prompt_tokens: Of all prompts together; what they have at least.
        encode: Returns each prompt; run off the event loop.
        prompt_param: The field the prompts came from.
        make_format: Returns what words the answers to the prompts.
        stream_options: None for a unary answer.
        is_echoed: Whether each answer begins with its prompt.
        priority: Lower goes first.
        grammar: What each answer must follow, with the field that says so; None for nothing.
    """

    answer_id: str
    sampling: SamplingParams
    num_shown: int
    num_prompts: int
    min_prompt_tokens: int
    encode: Callable[[], Iterable[EncodedPrompt]]
    prompt_param: str
    make_format: Callable[[Sequence[EncodedPrompt]], AnswerFormat]
    stream_options: StreamOptions | None
    is_echoed: bool = False
    priority: int = 0
    grammar: tuple[str, GrammarSpec] | None = None

    @property
    def num_choices(self) -> int:
        """Requests that the call takes."""
        return self.num_prompts * self.sampling.n
