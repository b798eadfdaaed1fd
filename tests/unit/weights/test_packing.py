"""Weights are packed as they are loaded, whichever file they come from."""

from dataclasses import replace
from pathlib import Path

import gguf
import pytest
import torch
from torch import Tensor, nn

from nanoserve.kernels.packed_weight import PackedWeight, unpack
from nanoserve.plan.weight_plan import (
    PANEL_OUTPUTS,
    LinearFormat,
    choose_formats,
    plan_weights,
)
from nanoserve.spec.checkpoint import Checkpoint, read_checkpoint
from nanoserve.spec.model_dir import resolve_model
from nanoserve.spec.model_spec import ModelSpec
from nanoserve.weights.float_reader import FloatReader
from nanoserve.weights.loader import Int4Fitting, LoadReport, load_weights
from nanoserve.weights.packing import RowFit, Stage, packed_formats
from nanoserve.weights.placement import place_weights
from tests.unit.weights.stand_in import TINY_LLAMA, build_stand_in, fused, random_tensors
from tests.unit.weights.test_loader import (
    BIASED_QWEN3,
    read_folder,
    reference,
    with_spec,
    write_folder,
    write_gguf,
)

TIED = replace(TINY_LLAMA, tie_word_embeddings=True)
TOLERANCE = {"float32": 0.0, "bfloat16": 0.02, "int8": 0.02, "int4": 0.3}


def load_packed(
    checkpoint: Checkpoint, dtype: str = "float32", quantization: str = "none"
) -> tuple[nn.Module, LoadReport]:
    plan = plan_weights(checkpoint.spec, dtype, quantization, is_packed=True)  # type: ignore[arg-type]
    model = build_stand_in(checkpoint.spec)
    packed = packed_formats(model, plan.formats)
    place_weights(model, "cpu", getattr(torch, dtype), packed)
    report = load_weights(model, checkpoint, packed=packed)
    assert report.weight_bytes == plan.num_bytes
    return model, report


def weight_of(model: nn.Module, name: str) -> PackedWeight | Tensor:
    path, _, leaf = name.rpartition(".")
    return getattr(model.get_submodule(path), leaf)  # type: ignore[no-any-return]


def rows_of(weight: PackedWeight | Tensor) -> Tensor:
    if isinstance(weight, Tensor):
        return weight.float()
    return unpack(weight)


@pytest.mark.parametrize("form", ["float32", "bfloat16", "int8", "int4"])
@pytest.mark.parametrize("spec", [TINY_LLAMA, BIASED_QWEN3], ids=["llama", "qwen3"])
def test_every_linear_layer_is_packed_and_nothing_else(
    tmp_path: Path, spec: ModelSpec, form: str
) -> None:
    """Fused rows lie where the plain parameter has them; bytes are those planned."""
    tensors = random_tensors(spec)
    checkpoint = with_spec(read_folder(write_folder(tmp_path, tensors)), spec)
    dtype, quantization = ("float32", form) if form in ("int8", "int4") else (form, "none")

    model, report = load_packed(checkpoint, dtype, quantization)

    for name, expected in fused(spec, tensors).items():
        weight = weight_of(model, name)
        is_linear = "proj.weight" in name or "lm_head" in name
        assert isinstance(weight, PackedWeight) == is_linear, name
        error = (rows_of(weight) - expected).abs().max()
        assert error <= TOLERANCE[form] * expected.abs().max(), name
    assert report.num_kept == 0


@pytest.mark.parametrize("quantization", ["none", "int8", "int4"])
def test_a_tied_head_is_packed_once(tmp_path: Path, quantization: str) -> None:
    """The embedding has the head's own packed weight, 8 bits where layers have 4."""
    tensors = random_tensors(TIED)
    checkpoint = with_spec(read_folder(write_folder(tmp_path, tensors)), TIED)

    model, _ = load_packed(checkpoint, "bfloat16", quantization)

    head = weight_of(model, "lm_head.weight")
    assert isinstance(head, PackedWeight)
    assert weight_of(model, "embed_tokens.weight") is head
    assert head.format == ("bfloat16" if quantization == "none" else "int8")
    assert not {"lm_head.weight", "embed_tokens.weight"} & dict(model.named_parameters()).keys()


def test_a_large_weight_is_packed_in_slices(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Slices of whole panels add up to the weight, the last one shorter."""
    monkeypatch.setattr("nanoserve.plan.load_peak.SLICE_VALUES", 1)
    tensors = random_tensors(TIED)
    checkpoint = with_spec(read_folder(write_folder(tmp_path, tensors)), TIED)

    model, _ = load_packed(checkpoint)

    assert torch.equal(
        rows_of(weight_of(model, "lm_head.weight")), tensors["model.embed_tokens.weight"]
    )


@pytest.mark.parametrize("is_gguf", [False, True])
@pytest.mark.parametrize("num_kv_heads", [2, 1])
def test_a_fused_weight_is_packed_tensor_by_tensor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_gguf: bool, num_kv_heads: int
) -> None:
    """No more than a panel, or a head, is held beside it; unless a tensor begins in a panel."""
    monkeypatch.setattr("nanoserve.plan.load_peak.SLICE_VALUES", 1)
    spec = replace(TINY_LLAMA, num_kv_heads=num_kv_heads)
    tensors = random_tensors(spec)
    staged: list[tuple[int, int]] = []
    if is_gguf:
        path = write_gguf(tmp_path / "model.gguf", spec, tensors)
        checkpoint = with_spec(read_checkpoint(resolve_model(str(path))), spec)
    else:
        checkpoint = with_spec(read_folder(write_folder(tmp_path, tensors)), spec)
    carve = Stage.carve

    def note(one: LinearFormat, shape: tuple[int, int], fit: RowFit, scratch: Tensor) -> Stage:
        staged.append(shape)
        return carve(one, shape, fit, scratch)

    monkeypatch.setattr(Stage, "carve", note)

    model, _ = load_packed(checkpoint)

    for name, values in fused(spec, tensors).items():
        if "_proj" in name:
            assert torch.equal(rows_of(weight_of(model, name)), values), name
    fused_rows = spec.q_size + 2 * spec.kv_size
    is_aligned = spec.kv_size % PANEL_OUTPUTS == 0
    assert max(rows for rows, _ in staged) == (PANEL_OUTPUTS if is_aligned else fused_rows)


def write_quantized(path: Path, spec: ModelSpec, kinds: dict[str, str]) -> Path:
    """Write a GGUF whose linear weights have the type that the first fitting key names."""
    original = gguf.GGUFWriter.add_tensor

    def add(writer: gguf.GGUFWriter, name: str, values: object) -> None:
        kind = next((kind for part, kind in kinds.items() if part in name), None)
        if kind is None or "norm" in name:
            original(writer, name, values)
            return
        raw_dtype = gguf.GGMLQuantizationType[kind]
        original(writer, name, gguf.quants.quantize(values, raw_dtype), raw_dtype=raw_dtype)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gguf.GGUFWriter, "add_tensor", add)
        return write_gguf(path, spec, random_tensors(spec))


@pytest.mark.parametrize(
    ("kind", "quantization", "num_kept"),
    [
        ("Q8_0", "int8", 16),  # seven tensors of each layer, embedding and head
        ("Q4_0", "int4", 14),
        ("Q4_1", "int4", 14),
        ("Q4_1", "int8", 0),
        ("Q4_1", "none", 0),
    ],
)
def test_stored_bits_are_kept_where_they_are_asked_for(
    tmp_path: Path, kind: str, quantization: str, num_kept: int
) -> None:
    """Kept tensors are exactly what the file says, in the model's order of rows."""
    path = write_quantized(tmp_path / "q.gguf", TINY_LLAMA, {"": kind})
    checkpoint = read_checkpoint(resolve_model(str(path)))

    model, report = load_packed(checkpoint, "float32", quantization)

    plain = build_stand_in(checkpoint.spec)
    place_weights(plain, "cpu", torch.float32)
    load_weights(plain, checkpoint)
    expected = dict(plain.named_parameters())
    if num_kept or quantization == "none":
        for name in ("layers.1.self_attn.qkv_proj.weight", "layers.0.mlp.down_proj.weight"):
            assert torch.equal(rows_of(weight_of(model, name)), expected[name]), name
    untied_embedding = int(kind == "Q8_0")  # a plain table: dequantised
    assert report.num_kept == num_kept - untied_embedding


def test_a_weight_fused_from_unlike_tensors_keeps_what_it_can(tmp_path: Path) -> None:
    """Where v is stored in another format, q and k keep their bits and v is quantised."""
    path = write_quantized(tmp_path / "q.gguf", TINY_LLAMA, {"attn_v": "Q8_0", "attn": "Q4_0"})
    checkpoint = read_checkpoint(resolve_model(str(path)))

    model, report = load_packed(checkpoint, "float32", "int4")

    plain = build_stand_in(checkpoint.spec)
    place_weights(plain, "cpu", torch.float32)
    load_weights(plain, checkpoint)
    name, first_v = "layers.0.self_attn.qkv_proj.weight", TINY_LLAMA.q_size + TINY_LLAMA.kv_size
    expected, rows = dict(plain.named_parameters())[name], rows_of(weight_of(model, name))
    assert torch.equal(rows[:first_v], expected[:first_v])
    assert not torch.equal(rows[first_v:], expected[first_v:])
    torch.testing.assert_close(rows[first_v:], expected[first_v:], rtol=0, atol=0.4)
    assert report.num_kept == 6  # q, k and o of each layer


def test_importance_is_measured_for_what_is_fitted_alone(tmp_path: Path) -> None:
    """It steers the fit of the weight it is told of; where bits are kept nobody asks for it."""
    name = "layers.1.self_attn.qkv_proj.weight"
    importance = torch.full((64,), 1e-3)
    importance[5] = 1.0
    tensors = random_tensors(TINY_LLAMA)
    fitted = read_folder(write_folder(tmp_path, tensors))
    path = write_quantized(tmp_path / "q.gguf", TINY_LLAMA, {"": "Q4_0"})
    kept = read_checkpoint(resolve_model(str(path)))
    asked: list[Checkpoint] = []

    def load(checkpoint: Checkpoint) -> Tensor:
        model = build_stand_in(checkpoint.spec)
        packed = packed_formats(model, choose_formats("int4", "float32"))
        place_weights(model, "cpu", torch.float32, packed)

        def measure(reader: FloatReader) -> dict[str, Tensor]:
            asked.append(checkpoint)
            return {name: importance}

        load_weights(model, checkpoint, packed=packed, fitting=Int4Fitting(measure))
        return rows_of(weight_of(model, name))

    error = (load(fitted) - fused(TINY_LLAMA, tensors)[name]).abs()
    load(kept)

    assert asked == [fitted]
    assert error[:, 5].mean() < 0.1 * error[:, 6:32].mean()


def test_the_default_model_keeps_its_bits() -> None:
    """All 210 projections of the Q4_1 file as int4, and its Q8_0 embedding as an int8 head."""
    checkpoint = read_checkpoint(resolve_model("smollm2"))

    model, report = load_packed(checkpoint, "bfloat16", "int4")

    down = torch.from_numpy(reference(checkpoint, "blk.7.ffn_down.weight"))
    assert torch.equal(rows_of(weight_of(model, "layers.7.mlp.down_proj.weight")), down)
    embedding = torch.from_numpy(reference(checkpoint, "token_embd.weight"))
    assert torch.equal(rows_of(weight_of(model, "embed_tokens.weight")), embedding)
    assert report.num_kept == 211
