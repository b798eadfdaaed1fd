"""`ModelSpec`: the shape of a decoder, whatever file it was read from.

Owns names and identities. Does no arithmetic on memory (see `plan`) and reads no file
(see `hf_config`, `gguf_spec`).
"""

from dataclasses import dataclass
from typing import Literal

RopeKind = Literal["llama3", "linear", "yarn"]


@dataclass(frozen=True, slots=True)
class RopeScaling:
    """How rotary frequencies are stretched past the trained context.

    Attributes:
        kind: `llama3` (by wavelength), `linear` (all alike) or `yarn` (ramped).
        factor: Context multiplier.
        original_max_position_embeddings: Context before stretching; llama3 and yarn.
        low_freq_factor: llama3 only.
        high_freq_factor: llama3 only.
        beta_fast: yarn only; rotations above which a dimension is not scaled.
        beta_slow: yarn only; rotations below which a dimension is scaled in full.
        attention_factor: yarn only; multiplies cos and sin. None derives it from `factor`.
        mscale: yarn only; see `mscale_all_dim`. 0 where absent.
        mscale_all_dim: yarn only; with `mscale`, the ratio that makes the attention factor.
        truncate: yarn only; whether the ramp's ends are rounded to whole dimensions.
    """

    kind: RopeKind
    factor: float
    original_max_position_embeddings: int = 0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    attention_factor: float | None = None
    mscale: float = 0.0
    mscale_all_dim: float = 0.0
    truncate: bool = True


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """Shape of a dense decoder of the Llama family.

    Attributes:
        architecture: Family name: `llama`, `mistral`, `qwen2` or `qwen3`.
        num_layers: Decoder layers.
        hidden_size: Width of the residual stream.
        num_heads: Query heads.
        num_kv_heads: Key and value heads; divides `num_heads`.
        head_dim: Width of one head; read from the config, derived only where it is absent.
        intermediate_size: Width of the MLP.
        vocab_size: Rows of the embedding.
        max_position_embeddings: Longest context the model was made for, in tokens.
        rms_norm_eps: Epsilon of every RMSNorm.
        rope_theta: Base of the rotary frequencies.
        rope_scaling: None for plain RoPE.
        rope_freq_factors: Divisors of the head_dim / 2 rotary frequencies, as GGUF files
            store llama3 scaling; None where the file has none. Never with `rope_scaling`.
        has_qkv_bias: q, k and v projections have a bias (Qwen2).
        has_output_bias: The attention output projection has a bias.
        has_mlp_bias: The three MLP projections have a bias.
        has_qk_norm: RMSNorm over each head of q and k before RoPE (Qwen3).
        tie_word_embeddings: The output head is the embedding, one storage.
        sliding_window: Every layer attends to this many latest tokens only (Mistral
            v0.1); None attends to all.
        torch_dtype: dtype of the checkpoint as its config names it, e.g. `bfloat16`.
    """

    architecture: str
    num_layers: int
    hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    vocab_size: int
    max_position_embeddings: int
    rms_norm_eps: float = 1e-5
    rope_theta: float = 10000.0
    rope_scaling: RopeScaling | None = None
    rope_freq_factors: tuple[float, ...] | None = None
    has_qkv_bias: bool = False
    has_output_bias: bool = False
    has_mlp_bias: bool = False
    has_qk_norm: bool = False
    tie_word_embeddings: bool = False
    sliding_window: int | None = None
    torch_dtype: str = "float32"

    @property
    def q_size(self) -> int:
        """Width of the query projection: `num_heads * head_dim`."""
        return self.num_heads * self.head_dim

    @property
    def kv_size(self) -> int:
        """Width of the key, or value, projection: `num_kv_heads * head_dim`."""
        return self.num_kv_heads * self.head_dim
