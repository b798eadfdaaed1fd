"""Checkpoints of every form fill the parameters they should, or are refused before copying."""

import json
import os
import subprocess
import sys
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from nanoserve.errors import (
    CorruptFileError,
    InvariantError,
    ModelError,
    UnsupportedModelError,
    WeightMismatchError,
)
from nanoserve.spec.checkpoint import Checkpoint, read_checkpoint
from nanoserve.spec.model_dir import ModelSource, resolve_model
from nanoserve.spec.model_spec import ModelSpec
from nanoserve.weights.loader import Packing, load_weights
from nanoserve.weights.placement import place_weights
from tests.unit.weights.stand_in import TINY_LLAMA, build_stand_in, fused, random_tensors

BIASED_QWEN3 = replace(
    TINY_LLAMA,
    architecture="qwen3",
    has_qkv_bias=True,
    has_output_bias=True,
    has_mlp_bias=True,
    has_qk_norm=True,
)


def write_folder(folder: Path, tensors: dict[str, Tensor], num_shards: int = 1) -> Path:
    """Write a checkpoint of the tiny Llama; with more than one shard, with an index."""
    config = {
        "architectures": ["LlamaForCausalLM"],
        "num_hidden_layers": TINY_LLAMA.num_layers,
        "hidden_size": TINY_LLAMA.hidden_size,
        "num_attention_heads": TINY_LLAMA.num_heads,
        "num_key_value_heads": TINY_LLAMA.num_kv_heads,
        "intermediate_size": TINY_LLAMA.intermediate_size,
        "vocab_size": TINY_LLAMA.vocab_size,
        "max_position_embeddings": TINY_LLAMA.max_position_embeddings,
        "rms_norm_eps": TINY_LLAMA.rms_norm_eps,
        "tie_word_embeddings": "lm_head.weight" not in tensors,
    }
    (folder / "config.json").write_text(json.dumps(config))
    if num_shards == 1:
        save_file(tensors, folder / "model.safetensors")
        return folder
    names = list(tensors)
    weight_map: dict[str, str] = {}
    for shard in range(num_shards):
        file_name = f"model-{shard + 1:05}-of-{num_shards:05}.safetensors"
        part = {name: tensors[name] for name in names[shard::num_shards]}
        save_file(part, folder / file_name)
        weight_map |= dict.fromkeys(part, file_name)
    index = json.dumps({"metadata": {}, "weight_map": weight_map})
    (folder / "model.safetensors.index.json").write_text(index)
    return folder


def read_folder(folder: Path) -> Checkpoint:
    return read_checkpoint(resolve_model(str(folder)))


def with_spec(checkpoint: Checkpoint, spec: ModelSpec) -> Checkpoint:
    return replace(checkpoint, spec=spec)


def load(checkpoint: Checkpoint, dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
    model = build_stand_in(checkpoint.spec)
    place_weights(model, "cpu", dtype)
    load_weights(model, checkpoint)
    return {
        name: parameter.detach()
        for name, parameter in model.named_parameters(remove_duplicate=False)
    }


def assert_same(loaded: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert loaded.keys() == expected.keys()
    for name, tensor in expected.items():
        assert torch.equal(loaded[name], tensor), name


def write_gguf(path: Path, spec: ModelSpec, tensors: dict[str, Tensor]) -> Path:
    """Write a GGUF as llama.cpp converts it: for llama, rows of q and k are interleaved."""
    writer = gguf.GGUFWriter(path, spec.architecture)
    writer.add_block_count(spec.num_layers)
    writer.add_context_length(spec.max_position_embeddings)
    writer.add_embedding_length(spec.hidden_size)
    writer.add_feed_forward_length(spec.intermediate_size)
    writer.add_head_count(spec.num_heads)
    writer.add_head_count_kv(spec.num_kv_heads)
    writer.add_key_length(spec.head_dim)
    writer.add_layer_norm_rms_eps(spec.rms_norm_eps)
    for name, tensor in tensors.items():
        values = tensor.numpy()
        for part, heads in (("q_proj", spec.num_heads), ("k_proj", spec.num_kv_heads)):
            if part in name and spec.architecture == "llama":
                values = llama_cpp_permute(values, heads)
        writer.add_tensor(gguf_name(name), np.ascontiguousarray(values))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def llama_cpp_permute(values: np.ndarray, num_heads: int) -> np.ndarray:
    """Interleave the rows of each head. Source: `permute` in llama.cpp's convert_hf_to_gguf.py."""
    by_half = values.reshape(num_heads, 2, values.shape[0] // num_heads // 2, *values.shape[1:])
    return by_half.swapaxes(1, 2).reshape(values.shape)


def gguf_name(hf_name: str) -> str:
    outer = {
        "model.embed_tokens.weight": "token_embd.weight",
        "model.norm.weight": "output_norm.weight",
        "lm_head.weight": "output.weight",
    }
    if hf_name in outer:
        return outer[hf_name]
    inner = hf_name.replace("model.layers.", "blk.")
    for old, new in (
        ("self_attn.q_proj", "attn_q"),
        ("self_attn.k_proj", "attn_k"),
        ("self_attn.v_proj", "attn_v"),
        ("self_attn.o_proj", "attn_output"),
        ("self_attn.q_norm", "attn_q_norm"),
        ("self_attn.k_norm", "attn_k_norm"),
        ("mlp.gate_proj", "ffn_gate"),
        ("mlp.up_proj", "ffn_up"),
        ("mlp.down_proj", "ffn_down"),
        ("input_layernorm", "attn_norm"),
        ("post_attention_layernorm", "ffn_norm"),
    ):
        inner = inner.replace(old, new)
    return inner


@pytest.mark.parametrize("num_shards", [1, 3])
def test_safetensors_fill_the_fused_parameters(tmp_path: Path, num_shards: int) -> None:
    """One file or three with an index: q, k, v and gate, up end up where they belong."""
    tensors = random_tensors(TINY_LLAMA)

    loaded = load(read_folder(write_folder(tmp_path, tensors, num_shards)))

    assert_same(loaded, fused(TINY_LLAMA, tensors))


def test_biases_and_head_norms_are_loaded(tmp_path: Path) -> None:
    """A model with every optional tensor gets all of them."""
    tensors = random_tensors(BIASED_QWEN3)
    checkpoint = with_spec(read_folder(write_folder(tmp_path, tensors)), BIASED_QWEN3)

    assert_same(load(checkpoint), fused(BIASED_QWEN3, tensors))


@pytest.mark.parametrize("stored", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("wanted", [torch.float32, torch.bfloat16])
def test_values_are_cast_on_the_way(
    tmp_path: Path, stored: torch.dtype, wanted: torch.dtype
) -> None:
    """Stored values are rounded once, to the parameter's dtype."""
    tensors = {name: tensor.to(stored) for name, tensor in random_tensors(TINY_LLAMA).items()}
    expected = {name: t.to(wanted) for name, t in fused(TINY_LLAMA, tensors).items()}

    loaded = load(read_folder(write_folder(tmp_path, tensors)), wanted)

    assert_same(loaded, expected)


def test_a_tied_head_is_loaded_once_and_a_stored_copy_is_left(tmp_path: Path) -> None:
    """The head shows the embedding's bytes, whatever the file holds under its name."""
    tensors = random_tensors(TINY_LLAMA)
    checkpoint = read_folder(write_folder(tmp_path, tensors))
    tied = with_spec(checkpoint, replace(checkpoint.spec, tie_word_embeddings=True))

    loaded = load(tied)

    assert loaded["lm_head.weight"].data_ptr() == loaded["embed_tokens.weight"].data_ptr()
    assert torch.equal(loaded["lm_head.weight"], tensors["model.embed_tokens.weight"])


class RecordingLoad:
    """Keeps what it is told; see `LoadListener`."""

    def __init__(self) -> None:
        self.calls: list[tuple[int, int]] = []
        self.packings: list[Packing] = []

    def progress(self, done: int, total: int) -> None:
        self.calls.append((done, total))

    def packing_started(self, packing: Packing) -> None:
        self.packings.append(packing)


def test_progress_ends_at_the_total(tmp_path: Path) -> None:
    """Progress rises with every tensor and ends at the bytes of all; the report counts both."""
    tensors = random_tensors(TINY_LLAMA)
    checkpoint = read_folder(write_folder(tmp_path, tensors, num_shards=2))
    model = build_stand_in(checkpoint.spec)
    num_bytes = place_weights(model, "cpu", torch.float32)
    listener = RecordingLoad()
    calls = listener.calls

    report = load_weights(model, checkpoint, listener)

    assert report.num_tensors == len(tensors) == len(calls)
    assert report.weight_bytes == num_bytes
    assert [done for done, _ in calls] == sorted({done for done, _ in calls})
    assert calls[-1] == (num_bytes, num_bytes)
    assert listener.packings == []


@pytest.mark.parametrize("spec", [TINY_LLAMA, BIASED_QWEN3], ids=["llama", "qwen3"])
def test_a_gguf_loads_to_the_parameters_of_its_twin(tmp_path: Path, spec: ModelSpec) -> None:
    """The same weights, stored llama.cpp's way, give the same parameters."""
    tensors = random_tensors(spec)
    path = write_gguf(tmp_path / "tiny.gguf", spec, tensors)

    checkpoint = read_checkpoint(resolve_model(str(path)))

    assert replace(checkpoint.spec, rms_norm_eps=spec.rms_norm_eps) == spec  # stored in float32
    assert_same(load(checkpoint), fused(spec, tensors))


def test_interleaved_biases_are_put_in_order(tmp_path: Path) -> None:
    """A Llama with attention bias has its q and k biases reordered like their weights."""
    spec = replace(TINY_LLAMA, has_qkv_bias=True, has_output_bias=True)
    tensors = random_tensors(spec)
    path = write_gguf(tmp_path / "tiny.gguf", spec, tensors)

    assert_same(load(read_checkpoint(resolve_model(str(path)))), fused(spec, tensors))


def test_a_tensor_of_many_pieces_is_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pieces of a few rows, or of one head, add up to the tensor."""
    monkeypatch.setattr("nanoserve.weights.row_copy.PIECE_VALUES", 200)
    tensors = random_tensors(TINY_LLAMA)
    path = write_gguf(tmp_path / "tiny.gguf", TINY_LLAMA, tensors)

    assert_same(load(read_checkpoint(resolve_model(str(path)))), fused(TINY_LLAMA, tensors))


def test_mismatches_are_named_before_anything_is_copied(tmp_path: Path) -> None:
    """Missing, left-over and misshapen tensors stand in one error, and no parameter changed."""
    tensors = random_tensors(TINY_LLAMA)
    del tensors["model.norm.weight"]
    tensors["model.layers.0.self_attn.q_proj.bias"] = torch.zeros(64)
    tensors["model.layers.1.mlp.down_proj.weight"] = torch.zeros(64, 95)
    checkpoint = read_folder(write_folder(tmp_path, tensors))
    model = build_stand_in(checkpoint.spec)
    place_weights(model, "cpu", torch.float32)
    before = {name: parameter.clone() for name, parameter in model.named_parameters()}

    with pytest.raises(WeightMismatchError) as caught:
        load_weights(model, checkpoint)

    assert caught.value.missing == ("model.norm.weight",)
    assert caught.value.unexpected == ("model.layers.0.self_attn.q_proj.bias",)
    assert caught.value.misshapen == (
        "model.layers.1.mlp.down_proj.weight is [64, 95], expected [64, 96]",
    )
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter.view(torch.int32), before[name].view(torch.int32))


def test_an_untied_model_without_a_head_is_refused(tmp_path: Path) -> None:
    """The head is missing where the config does not tie it."""
    tensors = random_tensors(replace(TINY_LLAMA, tie_word_embeddings=True))
    checkpoint = read_folder(write_folder(tmp_path, tensors))

    with pytest.raises(WeightMismatchError, match=r"1 missing \(lm_head.weight\)"):
        load(with_spec(checkpoint, replace(checkpoint.spec, tie_word_embeddings=False)))


def test_a_quantised_safetensors_is_refused_by_name(tmp_path: Path) -> None:
    """An int8 weight is refused, naming the tensor."""
    tensors = random_tensors(TINY_LLAMA)
    name = "model.layers.0.mlp.up_proj.weight"
    tensors[name] = tensors[name].to(torch.int8)

    with pytest.raises(UnsupportedModelError, match=rf"{name}.*I8"):
        load(read_folder(write_folder(tmp_path, tensors)))


def test_a_model_without_memory_is_a_bug(tmp_path: Path) -> None:
    """Loading before placing is refused, and so is a model of another shape."""
    checkpoint = read_folder(write_folder(tmp_path, random_tensors(TINY_LLAMA)))
    other = build_stand_in(replace(checkpoint.spec, num_layers=1))

    with pytest.raises(InvariantError, match="meta"):
        load_weights(build_stand_in(checkpoint.spec), checkpoint)
    with pytest.raises(InvariantError, match=r"layers\.1"):
        load_weights(other, checkpoint)


def test_a_truncated_shard_is_refused(tmp_path: Path) -> None:
    """A file cut short is found from its header."""
    path = write_folder(tmp_path, random_tensors(TINY_LLAMA)) / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])

    with pytest.raises(CorruptFileError, match="the tensors end at byte"):
        read_folder(tmp_path)


@pytest.mark.parametrize("change", ["cut", "empty", "written", "replaced", "gone"])
def test_a_file_that_changes_behind_its_header_is_refused(tmp_path: Path, change: str) -> None:
    """Its tensors would lie elsewhere, or be half of one model and half of another."""
    checkpoint = read_folder(write_folder(tmp_path, random_tensors(TINY_LLAMA)))
    path = tmp_path / "model.safetensors"
    data = path.read_bytes()
    if change in ("replaced", "gone"):
        path.unlink()
    if change != "gone":
        kept = {"cut": len(data) - 4, "empty": 0}.get(change, len(data))
        path.write_bytes(data[:kept])

    problem = "cannot be read any more" if change == "gone" else "was changed while it was read"
    with pytest.raises(ModelError, match=problem):
        load(checkpoint)


@pytest.mark.parametrize("change", ["written", "replaced", "linked"])
def test_a_file_that_changes_beside_the_loading_is_refused(tmp_path: Path, change: str) -> None:
    """What is mapped of one that was replaced is the old one's, and a link changes no byte."""
    checkpoint = read_folder(write_folder(tmp_path, random_tensors(TINY_LLAMA)))
    path, other = tmp_path / "model.safetensors", tmp_path / "other"
    other.write_bytes(path.read_bytes())
    model = build_stand_in(checkpoint.spec)
    place_weights(model, "cpu", torch.float32)

    class Disturber(RecordingLoad):
        def progress(self, done: int, total: int) -> None:
            if done < total:
                return
            if change == "written":
                os.utime(path)
            if change == "replaced":
                other.replace(path)
            if change == "linked":
                os.link(path, tmp_path / "link")

    refusal = (
        pytest.raises(ModelError, match="was changed") if change == "written" else nullcontext()
    )
    with refusal:
        load_weights(model, checkpoint, Disturber())


def test_parameters_made_in_inference_mode_are_filled(tmp_path: Path) -> None:
    """A caller inside torch.inference_mode gets the same weights."""
    checkpoint = read_folder(write_folder(tmp_path, random_tensors(TINY_LLAMA)))
    expected = load(checkpoint)

    with torch.inference_mode():
        assert_same(load(checkpoint), expected)


def test_torch_threads_are_as_before(tmp_path: Path) -> None:
    """Loading does not change how many threads torch uses."""
    num_threads = torch.get_num_threads()
    torch.set_num_threads(num_threads + 1)
    try:
        load(read_folder(write_folder(tmp_path, random_tensors(TINY_LLAMA))))

        assert torch.get_num_threads() == num_threads + 1
    finally:
        torch.set_num_threads(num_threads)


def test_the_default_model_equals_its_reference() -> None:
    """Tensors of the real SmolLM2 file are what gguf and llama.cpp's order say."""
    checkpoint = read_checkpoint(resolve_model("smollm2"))
    loaded = load(checkpoint)
    spec, q_size = checkpoint.spec, checkpoint.spec.q_size

    qkv = loaded["layers.29.self_attn.qkv_proj.weight"].numpy()
    q = llama_cpp_permute(qkv[:q_size], spec.num_heads)
    k = llama_cpp_permute(qkv[q_size : q_size + spec.kv_size], spec.num_kv_heads)
    gate_up = loaded["layers.7.mlp.gate_up_proj.weight"].numpy()

    assert np.array_equal(q, reference(checkpoint, "blk.29.attn_q.weight"))
    assert np.array_equal(k, reference(checkpoint, "blk.29.attn_k.weight"))
    assert np.array_equal(
        qkv[q_size + spec.kv_size :], reference(checkpoint, "blk.29.attn_v.weight")
    )
    assert np.array_equal(
        gate_up[spec.intermediate_size :], reference(checkpoint, "blk.7.ffn_up.weight")
    )
    assert np.array_equal(
        loaded["norm.weight"].numpy(), reference(checkpoint, "output_norm.weight")
    )
    assert np.array_equal(
        loaded["embed_tokens.weight"].numpy(), reference(checkpoint, "token_embd.weight")
    )


def reference(checkpoint: Checkpoint, name: str) -> np.ndarray:
    """Return one tensor of a GGUF as gguf.quants dequantises it."""
    assert checkpoint.gguf is not None
    tensor = checkpoint.gguf.tensors[name]
    raw = np.memmap(
        checkpoint.gguf.path, np.uint8, "r", offset=tensor.offset, shape=(tensor.num_bytes,)
    )
    kind = gguf.GGMLQuantizationType[tensor.type_name]
    values: np.ndarray = gguf.quants.dequantize(raw.reshape(tensor.shape[0], -1), kind)
    return values.reshape(tensor.shape)


PEAK_SCRIPT = """
import sys
import torch
from pathlib import Path
from nanoserve.spec.checkpoint import read_checkpoint
from nanoserve.spec.model_dir import ModelSource
from nanoserve.weights.loader import load_weights
from nanoserve.weights.placement import place_weights
from tests.unit.weights.stand_in import build_stand_in

def status(key):
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(key))

checkpoint = read_checkpoint(ModelSource("hf", Path(sys.argv[1]), "big"))
model = build_stand_in(checkpoint.spec)
torch.ones(1).to(torch.bfloat16).add_(1)
baseline = status("VmRSS")
place_weights(model, "cpu", torch.bfloat16)
report = load_weights(model, checkpoint)
print(report.weight_bytes, status("VmHWM") - baseline)
"""


@pytest.mark.slow
def test_loading_never_holds_a_second_copy(tmp_path: Path) -> None:
    """Peak resident memory while loading 300 MiB stays within 1.15 times the weights."""
    hidden, vocab = 1024, 96 * 1024
    spec = replace(TINY_LLAMA, hidden_size=hidden, head_dim=256, vocab_size=vocab)
    spec = replace(spec, intermediate_size=8 * hidden)
    shapes = {
        name: tensor.shape for name, tensor in random_tensors(replace(spec, vocab_size=1)).items()
    }
    tensors = {
        name: torch.zeros(
            (vocab if "embed" in name or "head" in name else shape[0], *shape[1:])
        ).to(torch.bfloat16)
        for name, shape in shapes.items()
    }
    write_folder(tmp_path, tensors, num_shards=3)
    config = json.loads((tmp_path / "config.json").read_text())
    config |= {"hidden_size": hidden, "head_dim": 256, "vocab_size": vocab}
    config |= {"intermediate_size": spec.intermediate_size}
    (tmp_path / "config.json").write_text(json.dumps(config))

    finished = subprocess.run(
        [sys.executable, "-c", PEAK_SCRIPT, str(tmp_path)],
        capture_output=True,
        text=True,
        check=True,
    )

    weight_bytes, peak_bytes = map(int, finished.stdout.split())
    assert weight_bytes > 300 * 2**20
    assert weight_bytes <= peak_bytes <= 1.15 * weight_bytes


def test_sources_stay_what_they_were(tmp_path: Path) -> None:
    """Reading maps the file privately: loading leaves its bytes alone."""
    path = write_gguf(tmp_path / "tiny.gguf", TINY_LLAMA, random_tensors(TINY_LLAMA))
    before = path.read_bytes()

    load(read_checkpoint(ModelSource("gguf", path, "tiny")))

    assert path.read_bytes() == before
