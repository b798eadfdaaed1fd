"""How much each input of a layer's products matters, measured on the model itself.

An output is off by the sum of its weights' errors, each times an input, so what an error costs
goes with the mean square of its input. Some inputs are hundreds of times the others, in every
context alike, and no weight tells which: the layers are run once, in float32, on tokens drawn
at random, which is no text and needs none.

Holds one layer's parameters at a time. Who uses the result is `kernels.row_quantizer`.
"""

import torch
from torch import Tensor

from nanoserve.attention.backend import AttentionInputs
from nanoserve.attention.torch_backend import TorchAttention
from nanoserve.kernels.packed_weight import PackedWeight
from nanoserve.model.decoder import DecoderLayer
from nanoserve.model.layer_ops import TorchOps
from nanoserve.model.rope import RotaryTable
from nanoserve.plan.load_peak import CONTEXT_TOKENS, MEASURED_CONTEXTS
from nanoserve.runner.host_heap import trim_heap
from nanoserve.spec.model_spec import ModelSpec
from nanoserve.weights.float_reader import FloatReader

_SEED = 0
_LEAST_RATIO = 0.1  # of their mean that is added to all: so few tokens do not know better
_CPU = torch.device("cpu")


class _RecordingOps(TorchOps):
    """Plain torch that remembers the mean square of what each weight was last multiplied by."""

    def __init__(self) -> None:
        self.mean_squares: dict[int, Tensor] = {}  # by the weight's id

    def linear(self, x: Tensor, weight: Tensor | PackedWeight, bias: Tensor | None) -> Tensor:
        """See `LayerOps`."""
        self.mean_squares[id(weight)] = x.square().mean(0)
        return super().linear(x, weight, bias)


@torch.inference_mode()
def measure_importance(spec: ModelSpec, reader: FloatReader) -> dict[str, Tensor]:
    """Return the mean square of every input of the products in the layers, and a bit for all.

    Args:
        spec: The model.
        reader: Reads its parameters.

    Returns:
        float32 [in] by the parameter's name; the least of all where the model makes no finite
        number of an input.

    Measured: docs/quality.md.
    """
    backend = TorchAttention(spec.num_heads, spec.num_kv_heads, spec.head_dim, spec.sliding_window)
    ops = _RecordingOps()
    layer = DecoderLayer(spec, backend, ops)
    parameters = dict(layer.named_parameters())
    x = reader.rows("embed_tokens.weight", _draw_tokens(spec.vocab_size))
    table = RotaryTable(spec, CONTEXT_TOKENS, _CPU, torch.float32)
    rotation = table.rotation(torch.arange(CONTEXT_TOKENS).repeat(MEASURED_CONTEXTS))
    kv_shape = (MEASURED_CONTEXTS, CONTEXT_TOKENS, spec.num_kv_heads, spec.head_dim)
    kv = torch.zeros(kv_shape), torch.zeros(kv_shape)
    prepared = backend.prepare(_whole_contexts(), torch.float32)
    products = {name: one for name, one in parameters.items() if one.ndim == 2}
    # All of it at once: bits that stay, between what goes, would keep a heap from shrinking.
    kept = {name: torch.empty(spec.num_layers, one.shape[1]) for name, one in products.items()}
    for index in range(spec.num_layers):
        prefix = f"layers.{index}."
        reader.fill({prefix + name: parameter for name, parameter in parameters.items()})
        x = layer(x, rotation, kv, prepared)
        for name, parameter in products.items():
            found = ops.mean_squares.pop(id(parameter)).nan_to_num_(nan=0.0, posinf=0.0)
            torch.add(found, _LEAST_RATIO * found.mean(), out=kept[name][index])
    del layer, parameters, products
    trim_heap()  # packing, which comes next, would lie on top of what is free here
    return {
        f"layers.{index}.{name}": one[index]
        for name, one in kept.items()
        for index in range(len(one))
    }


def _draw_tokens(vocab_size: int) -> list[int]:
    generator = torch.Generator().manual_seed(_SEED)
    shape = (MEASURED_CONTEXTS * CONTEXT_TOKENS,)
    return [int(token) for token in torch.randint(vocab_size, shape, generator=generator)]


def _whole_contexts() -> AttentionInputs:
    """Return a step that computes every context from its begin, each in a block of its own."""
    lengths = (CONTEXT_TOKENS,) * MEASURED_CONTEXTS
    num_tokens = CONTEXT_TOKENS * MEASURED_CONTEXTS
    return AttentionInputs(
        slot_mapping=torch.arange(num_tokens),
        block_tables=torch.arange(MEASURED_CONTEXTS, dtype=torch.int32)[:, None],
        context_lens=torch.tensor(lengths, dtype=torch.int32),
        query_starts=torch.arange(0, num_tokens + 1, CONTEXT_TOKENS, dtype=torch.int32),
        fresh_blocks=torch.empty(0, dtype=torch.int64),
        query_lens=lengths,
        host_context_lens=lengths,
        num_decodes=0,
        block_size=CONTEXT_TOKENS,
    )
