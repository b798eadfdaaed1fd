"""Parameters of a model by group, from its shape alone. Knows no bytes: see `plan`."""

from dataclasses import dataclass

from nanoserve.spec.model_spec import ModelSpec


@dataclass(frozen=True, slots=True)
class ParameterCount:
    """Parameters by group. `head` is 0 where the output head is the embedding."""

    embedding: int
    attention: int
    mlp: int
    norms: int
    head: int

    @property
    def total(self) -> int:
        """All parameters; a tied head counts once."""
        return self.embedding + self.attention + self.mlp + self.norms + self.head


def count_parameters(spec: ModelSpec) -> ParameterCount:
    """Count the parameters of a model.

    Example: Llama 3.1 8B has 8,030,261,248.
    """
    embedding = spec.vocab_size * spec.hidden_size
    norm_per_layer = 2 * spec.hidden_size + (2 * spec.head_dim if spec.has_qk_norm else 0)
    return ParameterCount(
        embedding=embedding,
        attention=spec.num_layers * _attention(spec),
        mlp=spec.num_layers * _mlp(spec),
        norms=spec.num_layers * norm_per_layer + spec.hidden_size,
        head=0 if spec.tie_word_embeddings else embedding,
    )


def _attention(spec: ModelSpec) -> int:
    qkv_size = spec.q_size + 2 * spec.kv_size
    weights = spec.hidden_size * (qkv_size + spec.q_size)
    qkv_bias = qkv_size if spec.has_qkv_bias else 0
    output_bias = spec.hidden_size if spec.has_output_bias else 0
    return weights + qkv_bias + output_bias


def _mlp(spec: ModelSpec) -> int:
    weights = 3 * spec.hidden_size * spec.intermediate_size
    bias = 2 * spec.intermediate_size + spec.hidden_size
    return weights + (bias if spec.has_mlp_bias else 0)
