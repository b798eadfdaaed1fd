"""RoPE settings out of a config.json, in either spelling transformers has used.

Older files have `rope_theta` beside `rope_scaling` (whose kind is under `type`, later
`rope_type`); transformers 5 writes one `rope_parameters` with everything in it.

Source: transformers 5.24, modeling_rope_utils.py (`standardize_rope_params` and the
`_compute_…_parameters` functions).
"""

from nanoserve.spec.config_fields import MAX_CONTEXT_TOKENS, ConfigFields
from nanoserve.spec.model_spec import RopeScaling

ROPE_KINDS = ("default", "llama3", "linear", "yarn")
_DEFAULT_THETA = 10000.0


def read_rope(fields: ConfigFields) -> tuple[float, RopeScaling | None]:
    """Return the base of the rotary frequencies and how they are stretched.

    Raises:
        UnsupportedModelError: Another RoPE kind, a partial rotary factor, or settings per layer.
        CorruptFileError: A missing or impossible value.
    """
    theta = fields.positive("rope_theta", _DEFAULT_THETA)
    _refuse_partial_rotary(fields)
    key = "rope_scaling" if fields.section("rope_scaling") else "rope_parameters"
    parameters = fields.section(key)
    if parameters is None:
        return theta, None
    if parameters.section("full_attention") or parameters.section("sliding_attention"):
        fields.fail_unsupported(key, "RoPE settings that differ per layer are not supported.")
    _refuse_partial_rotary(parameters)
    return parameters.positive("rope_theta", theta), _read_scaling(parameters, fields)


def stretched_context(declared_tokens: int, scaling: RopeScaling | None) -> int:
    """Return the longest context: yarn files may declare only the length before stretching.

    Source: vLLM 0.32, `_get_and_verify_max_len`, which multiplies for yarn and not for llama3.
    """
    if scaling is None or scaling.kind != "yarn":
        return declared_tokens
    stretched = min(scaling.factor * scaling.original_max_position_embeddings, MAX_CONTEXT_TOKENS)
    return max(declared_tokens, int(stretched))


def _refuse_partial_rotary(fields: ConfigFields) -> None:
    if fields.number("partial_rotary_factor", 1.0) != 1.0:
        fields.fail_unsupported("partial_rotary_factor", "only whole heads are rotated here.")


def _read_scaling(parameters: ConfigFields, fields: ConfigFields) -> RopeScaling | None:
    key = "rope_type" if parameters.has("rope_type") else "type"
    kind = parameters.text(key, "default")
    if kind not in ROPE_KINDS:
        parameters.fail_unsupported(key, f"RoPE kinds known here: {', '.join(ROPE_KINDS)}.")
    if kind == "linear":
        return RopeScaling(kind="linear", factor=parameters.positive("factor"))
    if kind == "llama3":
        return _llama3(parameters, fields)
    return _yarn(parameters, fields) if kind == "yarn" else None


def _llama3(parameters: ConfigFields, fields: ConfigFields) -> RopeScaling:
    low = parameters.positive("low_freq_factor")
    high = parameters.positive("high_freq_factor")
    if high <= low:
        fields.fail_corrupt(f"high_freq_factor {high:g} is not above low_freq_factor {low:g}.")
    return RopeScaling(
        kind="llama3",
        factor=parameters.positive("factor"),
        original_max_position_embeddings=_original_context(parameters, fields),
        low_freq_factor=low,
        high_freq_factor=high,
    )


def _yarn(parameters: ConfigFields, fields: ConfigFields) -> RopeScaling:
    original = _original_context(parameters, fields)
    stretched = fields.size("max_position_embeddings", MAX_CONTEXT_TOKENS)
    has_attention_factor = parameters.has("attention_factor")
    return RopeScaling(
        kind="yarn",
        factor=parameters.positive("factor", stretched / original),
        original_max_position_embeddings=original,
        beta_fast=parameters.number("beta_fast", 32.0) or 32.0,
        beta_slow=parameters.number("beta_slow", 1.0) or 1.0,
        attention_factor=parameters.number("attention_factor") if has_attention_factor else None,
        mscale=parameters.number("mscale", 0.0),
        mscale_all_dim=parameters.number("mscale_all_dim", 0.0),
        truncate=parameters.flag("truncate", True),
    )


def _original_context(parameters: ConfigFields, fields: ConfigFields) -> int:
    """Return the context before stretching: beside the parameters, in them, or the declared one."""
    key = "original_max_position_embeddings"
    declared = fields.size("max_position_embeddings", MAX_CONTEXT_TOKENS)
    inside = parameters.size(key, MAX_CONTEXT_TOKENS, declared)
    return fields.size(key, MAX_CONTEXT_TOKENS, inside)
