"""The model that quality is measured on: `python -m bench.quality_base OUT.gguf [NAME]`.

The default model is stored in 4 bits, so its values lie on a 4-bit grid already, and a 4-bit
format whose blocks line up with the stored ones would lose nothing. Here its channels are
permuted at random, which leaves the function as it is (sums are taken in another order), and
no run of 32 values comes from one stored block any more. The result is F32, and llama.cpp
and nanoserve start from the same file.

Permuted are the channels of the residual stream, those of each MLP, and those of each value
head with the output projection that reads them. Queries and keys keep their order, which the
rotation needs; their columns are the residual stream's.
"""

import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from gguf import GGUFReader, GGUFValueType, GGUFWriter
from gguf.quants import dequantize
from numpy.typing import NDArray

from nanoserve.spec.checkpoint import read_checkpoint
from nanoserve.spec.model_dir import resolve_model
from nanoserve.spec.model_spec import ModelSpec

_SEED = 0
_WRITTEN_BY_WRITER = ("GGUF.", "general.architecture", "general.file_type")

Floats = NDArray[np.float32]


class Permutations:
    """The order of the channels of every layer."""

    def __init__(self, spec: ModelSpec) -> None:
        generator = np.random.default_rng(_SEED)
        self._hidden = generator.permutation(spec.hidden_size)
        self._inter, self._values, self._attended = [], [], []
        group = spec.num_heads // spec.num_kv_heads
        for _ in range(spec.num_layers):
            self._inter.append(generator.permutation(spec.intermediate_size))
            heads = [generator.permutation(spec.head_dim) for _ in range(spec.num_kv_heads)]
            self._values.append(_of_heads(heads))
            self._attended.append(_of_heads([head for head in heads for _ in range(group)]))

    def apply(self, name: str, values: Floats) -> Floats:
        """Return a tensor, [rows, columns] or [size], with its channels in the new order."""
        if values.ndim == 1:
            return values[self._hidden]
        if name == "token_embd.weight":
            return values[:, self._hidden]
        _, layer, kind, _ = name.split(".")
        inter = self._inter[int(layer)]
        if kind in ("attn_q", "attn_k"):
            return values[:, self._hidden]
        if kind == "attn_v":
            return values[self._values[int(layer)]][:, self._hidden]
        if kind == "attn_output":
            return values[self._hidden][:, self._attended[int(layer)]]
        if kind == "ffn_down":
            return values[self._hidden][:, inter]
        return values[inter][:, self._hidden]  # gate and up


def _of_heads(heads: list[NDArray[np.int64]]) -> NDArray[np.int64]:
    size = len(heads[0])
    return np.concatenate([index * size + head for index, head in enumerate(heads)])


def write_base(out: Path, model: str) -> None:
    """Write a Llama-like GGUF model with its channels permuted, in F32.

    Args:
        out: The file to write.
        model: Preset name or .gguf file; no biases, a tied head.
    """
    checkpoint = read_checkpoint(resolve_model(model))
    reader = GGUFReader(checkpoint.source.path)
    writer = GGUFWriter(out, checkpoint.spec.architecture)
    writer.add_file_type(0)  # all F32
    for key, value, kind, item_kind in _metadata(reader):
        writer.add_key_value(key, value, kind, item_kind)
    permutations = Permutations(checkpoint.spec)
    for tensor in reader.tensors:
        values = dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        writer.add_tensor(
            tensor.name, np.ascontiguousarray(permutations.apply(tensor.name, values))
        )
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _metadata(
    reader: GGUFReader,
) -> Iterator[tuple[str, object, GGUFValueType, GGUFValueType | None]]:
    for key, field in reader.fields.items():
        if not key.startswith(_WRITTEN_BY_WRITER):
            is_array = field.types[0] == GGUFValueType.ARRAY
            yield key, field.contents(), field.types[0], field.types[-1] if is_array else None


if __name__ == "__main__":
    write_base(Path(sys.argv[1]), *(sys.argv[2:] or ["smollm2"]))
