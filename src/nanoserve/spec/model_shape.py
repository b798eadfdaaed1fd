"""`ModelShape`: what the planner must know of any model, layer by layer.

Wider than `ModelSpec`, which is what our own decoder serves. Owns names and identities: which
layers keep keys and values, of what widths and for how many tokens; which keep a state; which
weights there are and how ranks divide them. Does no arithmetic on memory (see `plan`) and reads
no file (see `read_shape` and `gguf_shape`).
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

AttentionKind = Literal["full", "sliding", "chunked", "mla", "cross"]
StateKind = Literal["mamba1", "mamba2", "gated_delta_net", "kda"]
Group = Literal[
    "embedding",
    "head",
    "attention",
    "state",
    "mlp",
    "experts",
    "router",
    "norms",
    "encoder",
    "tower",
    "other",
]
Split = Literal["even", "kv", "vocab", "none"]


@dataclass(frozen=True, slots=True)
class Weight:
    """One matrix or vector, or equal ones that stand side by side.

    Attributes:
        group: What it belongs to.
        rows: Outputs, or the length of a vector.
        columns: Inputs; 1 for a vector, which no format quantises.
        copies: How many there are: one per expert.
        active_copies: How many one token reads; None for all.
        split: How tensor-parallel ranks divide it: `even`, `kv` (a rank has at least one KV
            head), `vocab` (rows rounded up first) or `none` (each rank has all of it).
    """

    group: Group
    rows: int
    columns: int = 1
    copies: int = 1
    active_copies: int | None = None
    split: Split = "none"

    @property
    def num_params(self) -> int:
        """Parameters of all copies."""
        return self.rows * self.columns * self.copies

    @property
    def num_active_params(self) -> int:
        """Parameters that one token reads."""
        copies = self.copies if self.active_copies is None else self.active_copies
        return self.rows * self.columns * copies


@dataclass(frozen=True, slots=True)
class LatentShape:
    """What multi-head latent attention keeps of a token in place of K and V.

    Attributes:
        kv_lora_rank: Width of the compressed K and V.
        rope_dim: Width of the rotated key that all heads share.
    """

    kv_lora_rank: int
    rope_dim: int


@dataclass(frozen=True, slots=True)
class AttentionShape:
    """The attention of one layer, as far as its cache goes.

    Attributes:
        kind: `full`, `sliding` (a window), `chunked` (since the last multiple of the span),
            `mla` (a latent per token) or `cross` (over an encoder's tokens).
        num_heads: Query heads.
        num_kv_heads: Key and value heads before any sharding; 1 for `mla`.
        head_dim: Width of one key head.
        v_head_dim: Width of one value head.
        span: Tokens of the window or chunk; None where all tokens are kept.
        latent: For `mla`, what is kept.
        index_dim: Width of the key an indexer keeps beside it per token; 0 without one.
        shares_with: Layer whose K and V this one reads, having none of its own.
    """

    kind: AttentionKind
    num_heads: int
    num_kv_heads: int
    head_dim: int
    v_head_dim: int
    span: int | None = None
    latent: LatentShape | None = None
    index_dim: int = 0
    shares_with: int | None = None


@dataclass(frozen=True, slots=True)
class StateShape:
    """The recurrent state of one layer: per request, whatever its length.

    The state is `num_heads * head_dim * state_size` values. Before it stands a convolution that
    remembers `conv_kernel - 1` inputs of `num_heads * head_dim + 2 * num_groups * state_size`
    channels: x, B and C in Mamba-2, V, Q and K in a delta net.

    Attributes:
        kind: Whose recurrence it is.
        num_heads: Value heads; the channels of Mamba-1, each a head of width 1.
        head_dim: Width of a head.
        state_size: State values per channel; the key width of a delta net.
        num_groups: Groups that share B and C; the key heads of a delta net; 0 in Mamba-1.
        conv_kernel: Taps of the convolution.
        dtype: dtype the recurrence is kept in; None for the model's own.
    """

    kind: StateKind
    num_heads: int
    head_dim: int
    state_size: int
    num_groups: int
    conv_kernel: int
    dtype: str | None = None

    @property
    def inner_size(self) -> int:
        """Channels the layer works in: `num_heads * head_dim`."""
        return self.num_heads * self.head_dim

    @property
    def conv_channels(self) -> int:
        """Channels of the convolution."""
        return self.inner_size + 2 * self.num_groups * self.state_size


@dataclass(frozen=True, slots=True)
class MlpShape:
    """The feed-forward part of one layer.

    Attributes:
        intermediate_size: Width; of one expert where there are experts.
        num_experts: Routed experts; 0 for a dense layer.
        num_experts_per_token: Experts that one token visits.
        shared_intermediate_size: Width of what every token visits beside them; 0 without.
    """

    intermediate_size: int
    num_experts: int = 0
    num_experts_per_token: int = 0
    shared_intermediate_size: int = 0


@dataclass(frozen=True, slots=True)
class LayerShape:
    """One layer. Hybrids have an attention, a state, both or neither.

    Attributes:
        attention: Self-attention, or the only attention there is.
        cross: Attention over an encoder's tokens beside it.
        state: Recurrent state.
        mlp: Feed-forward part.
        weights: All weights of the layer.
    """

    attention: AttentionShape | None = None
    cross: AttentionShape | None = None
    state: StateShape | None = None
    mlp: MlpShape | None = None
    weights: tuple[Weight, ...] = ()


@dataclass(frozen=True, slots=True)
class ModelShape:
    """Shape of a model of any family the planner knows.

    Attributes:
        model_type: Family name as the file spells it.
        layers: Decoder layers in order.
        hidden_size: Width of the residual stream.
        vocab_size: Rows of the embedding.
        max_position_embeddings: Longest context in tokens; None where nothing bounds it.
        tie_word_embeddings: The output head is the embedding, one storage.
        dtype: dtype of the checkpoint as its config names it; None where it does not.
        weights: Weights outside the decoder layers, towers and encoder included.
        quantization: The quantisation section, unread.
        uncounted: Parts the model has whose parameters its config does not give.
        max_encoder_tokens: Tokens of the encoder that cross-attention keeps; None without one
            or where the request says.
        rotary_positions: Positions of all its rotary tables; None for one of the longest context.
        config_keys: Keys of the text model's config that the shape was read from; models of one
            shape are equal whatever their keys are called.
    """

    model_type: str
    layers: tuple[LayerShape, ...]
    hidden_size: int
    vocab_size: int
    max_position_embeddings: int | None
    tie_word_embeddings: bool
    dtype: str | None
    weights: tuple[Weight, ...]
    quantization: Mapping[str, Any] | None = None
    uncounted: tuple[str, ...] = ()
    max_encoder_tokens: int | None = None
    rotary_positions: int | None = None
    config_keys: tuple[str, ...] = field(default=(), compare=False)

    @property
    def all_weights(self) -> Iterator[Weight]:
        """All weights, those outside the layers first."""
        yield from self.weights
        for layer in self.layers:
            yield from layer.weights
