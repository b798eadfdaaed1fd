"""The longest request a model is made for: the length in its config, stretched where that says so."""

from collections.abc import Iterator

from nanoserve.spec.config_fields import MAX_CONTEXT_TOKENS, ConfigFields

_SECTIONS = ("rope_scaling", "rope_parameters")
_KINDS_OF_LAYERS = ("full_attention", "sliding_attention")  # transformers 5 may nest by them
_NOT_STRETCHED = frozenset({"default", "mrope", "su", "longrope", "llama3"})  # declared stretched


def longest_context(fields: ConfigFields, kind: str) -> int | None:
    """Return the longest context in tokens; None where the config has no length.

    yarn stretches the original length by its factor; linear and dynamic scaling the declared one.
    Gemma 3 declares the stretched length.

    Source: vLLM 0.32, `_get_and_verify_max_len`.

    Args:
        fields: Of the text model.
        kind: Its family.

    Raises:
        CorruptFileError: A length or a factor that is impossible.

    Example: Qwen2.5 with yarn of factor 4 over 32,768 tokens takes 131,072.
    """
    if not fields.has("max_position_embeddings"):
        return None
    declared = fields.size("max_position_embeddings", MAX_CONTEXT_TOKENS)
    if kind.startswith("gemma3"):
        return declared
    stretched = [_stretched(parameters, declared) for parameters in _rope_sections(fields)]
    return min(max([declared, *stretched]), MAX_CONTEXT_TOKENS)


def rotary_positions(fields: ConfigFields, kind: str) -> int | None:
    """Return the positions of all rotary tables; None for one of the longest context.

    Gemma 3 has two, of its windows and of its full layers; the latter is as long as the factor
    of its linear scaling says, past the context that the model declares.

    Source: vLLM models/gemma3.py; rotary_embedding, `LinearScalingRotaryEmbedding`.

    Raises:
        CorruptFileError: A length or a factor that is impossible.

    Example: Gemma 3 27B declares 131,072 and a factor of 8: 1,048,576 and 131,072 positions of
    128 values are 288 MiB. With its 51.16 GiB of tensors that makes 51.44; 51.45 was logged.
    """
    if not kind.startswith("gemma3_") or not fields.has("max_position_embeddings"):
        return None
    declared = fields.size("max_position_embeddings", MAX_CONTEXT_TOKENS)
    stretched = [_stretched(parameters, declared) for parameters in _rope_sections(fields)]
    return declared + min(max([declared, *stretched]), MAX_CONTEXT_TOKENS)


def _rope_sections(fields: ConfigFields) -> Iterator[ConfigFields]:
    for name in _SECTIONS:
        parameters = fields.section(name) if fields.has(name) else None
        if parameters is None:
            continue
        nested = [parameters.section(kind) for kind in _KINDS_OF_LAYERS if parameters.has(kind)]
        yield from (one for one in nested or [parameters] if one is not None)


def _stretched(parameters: ConfigFields, declared: int) -> int:
    key = "rope_type" if parameters.has("rope_type") else "type"
    kind = parameters.text(key, "default")
    if kind in _NOT_STRETCHED:
        return declared
    length = declared
    if kind == "yarn":
        name = "original_max_position_embeddings"
        length = parameters.size(name, MAX_CONTEXT_TOKENS, declared)
    return int(length * min(parameters.positive("factor", 1.0), MAX_CONTEXT_TOKENS))
