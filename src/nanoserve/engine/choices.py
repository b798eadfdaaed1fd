"""`n` answers are `n` requests: the fan-out, kept in one place.

Knows nothing of who asked. The seeds follow `SamplingParams.for_choice`.
"""

from collections.abc import Callable, Sequence

from nanoserve.engine.interface import GenerationRequest
from nanoserve.sched.sampling_params import SamplingParams
from nanoserve.text.grammar_spec import GrammarMatcher


def fan_out(
    call_id: str,
    prompts: Sequence[tuple[int, ...]],
    samplings: Sequence[SamplingParams],
    priority: int = 0,
    salt: bytes = b"",
    new_grammar: Callable[[], GrammarMatcher] | None = None,
) -> list[GenerationRequest]:
    """Return one request for each answer, prompt-major: index = prompt * n + k.

    Answer k of a prompt uses seed + k; without a seed each draws its own entropy.

    Args:
        call_id: Start of every request id; the index follows it.
        prompts: Token ids of each prompt.
        samplings: Parameters of each prompt, all with the same `n`.
        priority: Of every request.
        salt: Of every request.
        new_grammar: Makes the matcher of one answer, at its start; None where it is free.
    """
    choices = [
        (prompt, sampling.for_choice(k))
        for prompt, sampling in zip(prompts, samplings, strict=True)
        for k in range(sampling.n)
    ]
    return [
        GenerationRequest(
            f"{call_id}-{index}",
            prompt,
            sampling,
            priority,
            salt,
            None if new_grammar is None else new_grammar(),
        )
        for index, (prompt, sampling) in enumerate(choices)
    ]
