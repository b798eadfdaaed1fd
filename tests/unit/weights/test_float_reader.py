"""Parameters and rows of them are read as values, whatever the file stores."""

from pathlib import Path

import torch
from torch import Tensor

from nanoserve.plan.weight_plan import choose_formats
from nanoserve.weights.float_reader import FloatReader
from nanoserve.weights.loader import Int4Fitting, load_weights
from nanoserve.weights.packing import packed_formats
from nanoserve.weights.placement import place_weights
from tests.unit.weights.stand_in import TINY_LLAMA, build_stand_in, fused, random_tensors
from tests.unit.weights.test_loader import read_folder, write_folder


def test_fused_parameters_and_single_rows(tmp_path: Path) -> None:
    """q, k and v lie one below the other; rows come in the order they are asked for."""
    tensors = random_tensors(TINY_LLAMA)
    expected, name = fused(TINY_LLAMA, tensors), "layers.1.self_attn.qkv_proj.weight"
    values, rows = torch.empty_like(expected[name]), []

    def read(reader: FloatReader) -> dict[str, Tensor]:
        reader.fill({name: values})
        rows.append(reader.rows("embed_tokens.weight", [7, 0, 7]))
        return {}

    model = build_stand_in(TINY_LLAMA)
    packed = packed_formats(model, choose_formats("int4", "float32"))
    place_weights(model, "cpu", torch.float32, packed)
    checkpoint = read_folder(write_folder(tmp_path, tensors))
    load_weights(model, checkpoint, packed=packed, fitting=Int4Fitting(read))

    assert torch.equal(values, expected[name])
    assert torch.equal(rows[0], expected["embed_tokens.weight"][[7, 0, 7]])
