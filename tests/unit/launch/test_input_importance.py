"""What each input of a layer's products matters, measured layer by layer from a file."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from nanoserve.attention.select import select_backend
from nanoserve.launch import input_importance
from nanoserve.launch.input_importance import measure_importance
from nanoserve.model.decoder import Decoder
from nanoserve.model.layers import Linear
from nanoserve.plan.load_peak import CONTEXT_TOKENS
from nanoserve.plan.weight_plan import choose_formats
from nanoserve.spec.checkpoint import Checkpoint
from nanoserve.spec.model_spec import ModelSpec
from nanoserve.weights.float_reader import FloatReader
from nanoserve.weights.loader import Int4Fitting, load_weights
from nanoserve.weights.packing import packed_formats
from nanoserve.weights.placement import place_weights
from tests.tiny_models import CPU, execute, runner_for, scheduled
from tests.unit.weights.stand_in import TINY_LLAMA, build_stand_in, random_tensors
from tests.unit.weights.test_loader import BIASED_QWEN3, read_folder, with_spec, write_folder

CONTEXT = CONTEXT_TOKENS
BLOCKS = range(CONTEXT // 4)


def checkpoint_of(folder: Path, spec: ModelSpec, **changes: Tensor) -> Checkpoint:
    return with_spec(read_folder(write_folder(folder, random_tensors(spec) | changes)), spec)


def measured(checkpoint: Checkpoint) -> dict[str, Tensor]:
    """Load a checkpoint in 4 bits; returns what was measured on the way."""
    found: dict[str, Tensor] = {}
    model = build_stand_in(checkpoint.spec)
    packed = packed_formats(model, choose_formats("int4", "float32"))
    place_weights(model, "cpu", torch.float32, packed)

    def measure(reader: FloatReader) -> dict[str, Tensor]:
        found.update(measure_importance(checkpoint.spec, reader))
        return found

    load_weights(model, checkpoint, packed=packed, fitting=Int4Fitting(measure))
    return found


def expected_of(checkpoint: Checkpoint) -> dict[str, Tensor]:
    """Run the whole decoder on each context alone; returns products' inputs as they matter."""
    spec = checkpoint.spec
    decoder = Decoder(spec, select_backend(spec, CPU))
    load_weights(decoder, checkpoint)
    decoder.build_rope(CPU, torch.float32, spec.max_position_embeddings)
    sums: dict[str, Tensor] = {}
    for name, module in decoder.named_modules():
        if isinstance(module, Linear) and name.startswith("layers."):
            module.register_forward_pre_hook(
                lambda _, inputs, key=f"{name}.weight": sums.update(
                    {key: sums.get(key, 0) + inputs[0].square().sum(0)}
                )
            )
    tokens = input_importance._draw_tokens(spec.vocab_size)
    for first in range(0, len(tokens), CONTEXT):
        execute(runner_for(decoder), scheduled(tokens[first : first + CONTEXT], list(BLOCKS)))
    means = {name: total / len(tokens) for name, total in sums.items()}
    return {name: mean + 0.1 * mean.mean() for name, mean in means.items()}


@pytest.mark.parametrize("spec", [TINY_LLAMA, BIASED_QWEN3], ids=["llama", "qwen3"])
def test_it_is_what_the_decoder_multiplies(tmp_path: Path, spec: ModelSpec) -> None:
    """Every product of every layer, contexts apart, with biases and norms of heads."""
    checkpoint = checkpoint_of(tmp_path, spec)

    found, expected = measured(checkpoint), expected_of(checkpoint)

    assert found.keys() == expected.keys()
    assert len(found) == 4 * spec.num_layers
    for name, values in expected.items():
        torch.testing.assert_close(found[name], values, rtol=1e-3, atol=1e-6)


def test_what_is_no_number_matters_not_at_all(tmp_path: Path) -> None:
    """A model that overflows is quantised as if nothing were known of its inputs."""
    name = "model.layers.0.post_attention_layernorm.weight"
    checkpoint = checkpoint_of(tmp_path, TINY_LLAMA, **{name: torch.full((64,), torch.inf)})

    found = measured(checkpoint)

    assert all(values.isfinite().all() for values in found.values())
    assert found["layers.0.self_attn.qkv_proj.weight"].gt(0).all()
    assert found["layers.1.self_attn.qkv_proj.weight"].eq(0).all()
