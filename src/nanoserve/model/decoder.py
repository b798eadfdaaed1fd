"""`Decoder`: the transformer itself, one class for Llama, Mistral, Qwen2 and Qwen3.

Families differ by `ModelSpec` fields alone. Owns the order of the layers and the output
head. Knows nothing of requests, of files (see `weights`) or of who allocates the pool.
Read next: `layers`, `rope`, then `attention.torch_backend`.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from nanoserve.attention.backend import AttentionBackend, AttentionInputs, DecodeBuffers, HostRows
from nanoserve.errors import InvariantError
from nanoserve.model.layer_ops import LayerOps, TorchOps
from nanoserve.model.layers import MLP, Attention, Linear, RMSNorm
from nanoserve.model.rope import RotaryTable, Rotation
from nanoserve.spec.model_spec import ModelSpec

KVLayers = Sequence[tuple[Tensor, Tensor]]  # K and V of each layer, each [N, S, K, D]


class DecoderLayer(nn.Module):
    """Attention and MLP, each behind a norm and added to the residual stream."""

    def __init__(self, spec: ModelSpec, backend: AttentionBackend, ops: LayerOps) -> None:
        super().__init__()
        self._backend = backend
        self._ops = ops
        self.input_layernorm = RMSNorm(spec.hidden_size, spec.rms_norm_eps, ops)
        self.self_attn = Attention(spec, ops)
        self.post_attention_layernorm = RMSNorm(spec.hidden_size, spec.rms_norm_eps, ops)
        self.mlp = MLP(spec, ops)

    def forward(
        self, x: Tensor, rotation: Rotation, kv: tuple[Tensor, Tensor], prepared: Any
    ) -> Tensor:
        """[T, hidden_size] to the same; writes this step's K and V into `kv`."""
        # Named, q, k and v would live through the MLP: `plan.activation_plan` counts on it.
        attended = self._backend.attend(*self.before_attention(x, rotation), kv, prepared)
        return self.after_attention(x, attended)

    def before_attention(self, x: Tensor, rotation: Rotation) -> tuple[Tensor, Tensor, Tensor]:
        """[T, hidden_size] to q, k and v, as the backend takes them."""
        return self.self_attn.project(self.input_layernorm(x), rotation)

    def after_attention(self, x: Tensor, attended: Tensor) -> Tensor:
        """Add to `x`, [T, hidden_size], what was attended, [T, H, D], then the MLP of both."""
        x, normed = self.post_attention_layernorm.add(x, self.self_attn.o_proj(attended.flatten(1)))
        return self._ops.add(x, self.mlp(normed))


class Decoder(nn.Module):
    """A decoder whose parameters can be made on the meta device and filled later.

    Before the first forward, call `build_rope` once; on the CPU, with `TorchOps`,
    `prepack_linears` after the weights are in makes it faster.
    """

    def __init__(
        self, spec: ModelSpec, backend: AttentionBackend, ops: LayerOps | None = None
    ) -> None:
        """Make the parameters, without filling them.

        Args:
            spec: The model.
            backend: Attends.
            ops: What lies between products and attention; None is plain torch.
        """
        super().__init__()
        ops = ops or TorchOps()
        self.spec = spec
        self._backend = backend
        self._ops = ops
        self._rope: RotaryTable | None = None
        self.embed_tokens = Embedding(spec.vocab_size, spec.hidden_size, ops)
        self.layers = nn.ModuleList(
            DecoderLayer(spec, backend, ops) for _ in range(spec.num_layers)
        )
        self.norm = RMSNorm(spec.hidden_size, spec.rms_norm_eps, ops)
        self.lm_head = Linear(spec.hidden_size, spec.vocab_size, False, ops)
        if spec.tie_word_embeddings:
            self.lm_head.weight = self.embed_tokens.weight

    def build_rope(self, device: torch.device, dtype: torch.dtype, max_positions: int) -> None:
        """Compute the rotary table; positions from `max_positions` on cannot be served."""
        self._rope = RotaryTable(self.spec, max_positions, device, dtype)

    def forward(
        self,
        token_ids: Tensor,
        positions: Tensor,
        kv_layers: KVLayers,
        inputs: AttentionInputs,
        logit_rows: Tensor,
    ) -> Tensor:
        """Compute the logits of some of the step's tokens; write the KV of all.

        Args:
            token_ids: int64 [T].
            positions: int64 [T].
            kv_layers: The pool, written in place.
            inputs: Where the tokens lie in it.
            logit_rows: int64 [number of rows], the tokens whose logits are wanted.

        Returns:
            float32 [number of rows, V].
        """
        hidden = self.hidden_states(token_ids, positions, kv_layers, inputs)
        return self.logits(self.pick_rows(hidden, logit_rows))

    def schedule(self, buffers: DecodeBuffers, rows: HostRows) -> None:
        """Let the backend get ready for a padded step; see `AttentionBackend.schedule`."""
        self._backend.schedule(buffers, rows, self.norm.weight.dtype)

    def hidden_states(
        self,
        token_ids: Tensor,
        positions: Tensor,
        kv_layers: KVLayers,
        inputs: AttentionInputs | DecodeBuffers,
    ) -> Tensor:
        """Run every layer; returns the residual stream, [T, hidden_size], before the norm.

        With `DecodeBuffers` nothing is read from the device, so the call can be recorded.

        Raises:
            InvariantError: `build_rope` has not been called.
        """
        if self._rope is None:
            message = "The decoder has no rotary table. Call build_rope before the first step."
            raise InvariantError(message)
        x = self.embed_tokens(token_ids, self.norm.weight.dtype)
        rotation = self._rope.rotation(positions, self._ops.lookup)
        if isinstance(inputs, DecodeBuffers):
            prepared = self._backend.prepare_decode(inputs, x.dtype)
        else:
            prepared = self._backend.prepare(inputs, x.dtype)
        for layer, kv in zip(self.layers, kv_layers, strict=True):
            x = layer(x, rotation, kv, prepared)
        return x

    def pick_rows(self, hidden: Tensor, rows: Tensor) -> Tensor:
        """Return some rows of [T, hidden_size]; `rows` is int64 [any]."""
        return self._ops.lookup(hidden, rows)

    def logits(self, hidden: Tensor, out: Tensor | None = None) -> Tensor:
        """Apply the final norm and the head: [any, hidden_size] to float32 [any, V].

        They are in `out`, of the same shape, if there is one.
        """
        return self._ops.widen(self.lm_head(self.norm(hidden)), out)


class Embedding(nn.Module):
    """A row of the table for each token id.

    The table may be the packed weight of a tied head, once that is loaded.
    """

    def __init__(self, vocab_size: int, hidden_size: int, ops: LayerOps) -> None:
        super().__init__()
        self._ops = ops
        self.weight: Any = nn.Parameter(  # or a `PackedWeight`
            torch.empty(vocab_size, hidden_size), requires_grad=False
        )

    def forward(self, token_ids: Tensor, dtype: torch.dtype) -> Tensor:
        """int64 [T] to [T, hidden_size] in the compute dtype."""
        return self._ops.embedding(token_ids, self.weight, dtype)
