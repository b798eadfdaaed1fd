"""A call made ready for the engine: tokenised, admitted, its grammar compiled.

All of it costs time and is done off the event loop.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from nanoserve.engine.choices import fan_out
from nanoserve.engine.interface import GenerationRequest
from nanoserve.errors import InvalidRequestError
from nanoserve.server.generation_call import GenerationCall
from nanoserve.server.grammar_fields import compile_grammar
from nanoserve.server.prompt_encoding import EncodedPrompt, admit_prompt
from nanoserve.server.serving_context import ServingContext
from nanoserve.text.grammar_spec import Grammar


@dataclass(frozen=True, slots=True)
class PreparedCall:
    """What the engine gets, and what the answer needs to know of it.

    Attributes:
        prompts: In the order of the call.
        requests: One per choice, prompt-major.
        echoes: The prompts' texts where they are part of the answers; empty otherwise.
    """

    prompts: Sequence[EncodedPrompt]
    requests: Sequence[GenerationRequest]
    echoes: Sequence[str]


def prepare_call(context: ServingContext, call: GenerationCall, salt: bytes = b"") -> PreparedCall:
    """Tokenise and admit a call's prompts and compile its grammar.

    Args:
        context: Tokenizer, limits and compiler.
        call: What to prepare.
        salt: Keeps its prefixes apart from those of other clients.

    Raises:
        RequestError: A prompt or the grammar cannot be served.
    """
    limits = context.engine.limits
    prompts, samplings = [], []
    for prompt in call.encode():  # the first one that is too long ends the work
        samplings.append(admit_prompt(limits, prompt.token_ids, call.sampling, call.prompt_param))
        prompts.append(prompt)
    grammar = _compile(context, call)
    requests = fan_out(
        call.answer_id,
        [prompt.token_ids for prompt in prompts],
        samplings,
        call.priority,
        salt,
        None if grammar is None else grammar.matcher,
    )
    return PreparedCall(prompts, requests, [p.text for p in prompts] if call.is_echoed else [])


def _compile(context: ServingContext, call: GenerationCall) -> Grammar | None:
    if call.grammar is None:
        return None
    param, spec = call.grammar
    for field in ("min_tokens", "ignore_eos"):
        if getattr(call.sampling, field):  # a complete answer can only end
            message = f"{field} cannot be combined with {param}: the grammar says where it ends."
            raise InvalidRequestError(message, field)
    return compile_grammar(spec, param, context.grammar_compiler)
