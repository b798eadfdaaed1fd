"""The engine's terms written out, after `engine_memory`; a test holds the two together."""

from nanoserve.capacity.engine_memory import EngineLoad, sampler_factors, step_tokens
from nanoserve.capacity.engine_profile import EngineProfile
from nanoserve.capacity.recorded_graphs import graph_bytes, recorded_graphs
from nanoserve.plan.formula import Formula, Number, compute
from nanoserve.units import GIB, MIB

GRAPHS = "CUDA graphs"


def activation_formula(profile: EngineProfile, load: EngineLoad) -> Formula:
    """Return the likely peak of the profiled step: its sampler's or its MLP's.

    Terms that are nothing for this model and engine are left out.
    """
    tokens = step_tokens(profile, load)
    kept_values = load.hidden_size
    if profile.keeps_workspace:
        kept_values += load.expert_values_per_token
    symbols: dict[str, Number] = {
        "logit_bytes": sampler_factors(profile, load)[1],
        "rows": min(load.max_num_seqs, tokens),
        "vocab_size": load.vocab_size,
        "tokens": tokens,
        "value_bytes": load.value_bytes,
        "kept_values": kept_values,
        "mlp_copies": 3 * profile.mlp_factors[1],
        "active_width": load.active_intermediate_size,
        "hidden_size": load.hidden_size,
    }
    sampler = "round(logit_bytes * rows * vocab_size) + tokens * value_bytes * kept_values"
    mlp = "round(mlp_copies * tokens * value_bytes * (active_width + hidden_size))"
    phases = [sampler, mlp]
    if load.workspace.peak_bytes:
        symbols["latent_context"] = load.workspace.peak_bytes
        phases.append("latent_context")
    expression = f"max({', '.join(phases)})"
    if load.workspace.kept_bytes:
        symbols["latent_workspace"] = load.workspace.kept_bytes
        expression += " + latent_workspace"
    if profile.fixed_gib[1]:
        symbols["fixed_gib"] = profile.fixed_gib[1]
        expression += f" + round(fixed_gib * {GIB})"
    if load.sees_images and profile.encoder_gib[1]:
        symbols["encoder_gib"] = profile.encoder_gib[1]
        expression = f"max({expression}, round(encoder_gib * {GIB}))"
    return compute("activations", expression, "bytes", symbols)


def graph_formula(profile: EngineProfile, load: EngineLoad, *, is_eager: bool) -> Formula:
    """Return the likely size of recorded steps: by layer and step where the engine estimates."""
    if profile.graph_layer_mib is None or is_eager:
        size = graph_bytes(profile, load.max_num_seqs, load.num_layers, is_eager=is_eager)
        return gib_formula(GRAPHS, size.mid)
    symbols: dict[str, Number] = {
        "layer_mib": profile.graph_layer_mib[1],
        "layers": load.num_layers,
        "recorded_steps": recorded_graphs(load.max_num_seqs),
    }
    return compute(GRAPHS, f"round(layer_mib * layers * recorded_steps * {MIB})", "bytes", symbols)


def gib_formula(name: str, num_bytes: int) -> Formula:
    """Return a term that was measured, not worked out: so many GiB, in the fewest digits."""
    gib = num_bytes / GIB
    shown = next(
        (round(gib, n) for n in range(2, 9) if round(round(gib, n) * GIB) == num_bytes), gib
    )
    return compute(name, f"round(measured_gib * {GIB})", "bytes", {"measured_gib": shown})
