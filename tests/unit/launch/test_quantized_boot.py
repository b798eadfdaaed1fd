"""Booting with packed weights: what is planned is held, and what cannot be read is refused."""

import re
import threading
from functools import partial
from pathlib import Path

import pytest
from safetensors import safe_open

from nanoserve.errors import OptionError
from nanoserve.kernels.packed_weight import PackedWeight
from nanoserve.launch.boot import boot
from nanoserve.launch.llm import LLM
from nanoserve.options import EngineOptions, Quantization
from nanoserve.sched.sampling_params import SamplingParams
from nanoserve.units import MIB
from nanoserve.weights.cached_files import CachedFiles
from nanoserve.weights.weight_cache import WeightCache
from tests.boot_fakes import RecordingListener
from tests.model_folders import LlamaShape, write_llama
from tests.native_kernels import needs_kernels

GREEDY = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)


@pytest.fixture(params=[False, True], ids=["untied", "tied"])
def folder(tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a tiny model's folder: one token per byte, random weights, whole groups."""
    monkeypatch.setattr("nanoserve.launch.boot_model.cache_folder", lambda part: tmp_path / part)
    however_few = partial(WeightCache, least_bytes=1)
    monkeypatch.setattr("nanoserve.launch.boot_model.WeightCache", however_few)
    return write_llama(tmp_path, LlamaShape(intermediate_size=64, is_tied=request.param))


@needs_kernels
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("quantization", ["none", "int8", "int4"])
def test_every_format_serves_in_every_dtype(
    folder: Path, dtype: str, quantization: Quantization
) -> None:
    """Alone, among others, captured and deterministic: the same tokens."""
    options = {"device": "cpu", "dtype": dtype, "quantization": quantization, "num_blocks": 64}
    prompts = ["a", "a longer one", "b" * 40]

    def tokens(llm: LLM, prompts: list[str]) -> list[list[int]]:
        return [one.outputs[0].token_ids for one in llm.generate(prompts, GREEDY)]

    eager = LLM(str(folder), **options)  # type: ignore[arg-type]
    together = tokens(eager, prompts)
    assert [tokens(eager, [prompt])[0] for prompt in prompts] == together
    for changes in ({"decode_mode": "captured"}, {"deterministic": True}):
        other = LLM(str(folder), **options, **changes)  # type: ignore[arg-type]
        assert tokens(other, prompts) == together, changes


@needs_kernels
@pytest.mark.parametrize("quantization", ["none", "int8", "int4"])
def test_planned_weights_are_those_that_are_held(folder: Path, quantization: Quantization) -> None:
    """Every byte of the decoder's parameters, packed weights and rotary table was planned."""
    listener = RecordingListener()

    booted = boot(
        EngineOptions(
            model=str(folder),
            device="cpu",
            dtype="bfloat16",
            quantization=quantization,
            num_blocks=8,
        ),
        listener,
    )

    decoder = booted.core._runner._model  # type: ignore[attr-defined]
    packed = {
        id(module.weight): module.weight.num_bytes
        for module in decoder.modules()
        if isinstance(getattr(module, "weight", None), PackedWeight)
    }
    plain = {id(one): one.nbytes for one in decoder.parameters()}
    rope = 2 * booted.plan.max_model_len * decoder.spec.head_dim * 2
    held_bytes = sum(packed.values()) + sum(plain.values()) + rope
    assert packed
    assert held_bytes == booted.plan.weight_bytes
    assert booted.info["weights"]["quantization"] == quantization
    (detail,) = [one.detail for one in listener.reports if one.name == "weights"]
    assert ("int8 in groups of 32" in detail) == (quantization != "none")


def test_without_a_compiler_quantisation_is_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Plain torch reads no packed weights; the refusal says what would."""
    monkeypatch.setattr("nanoserve.launch.boot.find_kernels", lambda *arguments: None)
    options = EngineOptions(model=str(folder), device="cpu", quantization="int8", num_blocks=8)

    with pytest.raises(OptionError, match=r"install a C\+\+ compiler"):
        boot(options)


@needs_kernels
@pytest.mark.parametrize("quantization", ["none", "int8", "int4"])
def test_a_second_start_has_what_the_first_one_packed(
    folder: Path, quantization: Quantization
) -> None:
    """The stage says so, and the tokens are the same; without a cache all is packed."""
    details, answers = [], []
    for options in ({}, {}, {"weight_cache_bytes": 0}):
        listener = RecordingListener()
        llm = LLM(
            str(folder),
            listener,
            device="cpu",
            dtype="bfloat16",
            quantization=quantization,
            num_blocks=64,
            **options,
        )
        wait_for_keeper()
        details += [one.detail for one in listener.reports if one.name == "weights"]
        answers.append(llm.generate("a", GREEDY)[0].outputs[0].token_ids)

    assert ["an earlier start packed" in detail for detail in details] == [False, True, False]
    assert answers[0] == answers[1] == answers[2]


@needs_kernels
@pytest.mark.parametrize(
    ("quantization", "cache_bytes", "expected"),
    [
        (
            "int4",
            None,
            r"packing .* MiB, after measuring inputs .*; the next start finds it on disk",
        ),
        ("int8", None, r"packing .* MiB; the next start finds it on disk"),
        ("int4", 0, r"packing .* MiB, after measuring inputs on random tokens to fit .* 4 bits"),
        (
            "none",
            MIB,
            r"packing .* MiB, as at every start: 2\.0 MiB on disk is more than the 1\.0 MiB that is "
            r"kept; --weight-cache-bytes 1GiB would keep it",
        ),
    ],
)
def test_a_start_that_packs_says_so_before_it_does(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    quantization: Quantization,
    cache_bytes: int | None,
    expected: str,
) -> None:
    """One line with bytes, and whether the next start waits again; a start that maps has none."""
    monkeypatch.setattr("nanoserve.launch.boot_model.LEAST_BYTES", 1)
    options = EngineOptions(
        model=str(folder),
        device="cpu",
        quantization=quantization,
        num_blocks=8,
        weight_cache_bytes=cache_bytes,
    )
    first, second = RecordingListener(), RecordingListener()

    boot(options, first)
    wait_for_keeper()
    boot(options, second)

    lines = [[note for note in one.notes if "packing" in note] for one in (first, second)]
    assert len(lines[0]) == 1
    assert re.fullmatch(expected, lines[0][0])
    assert lines[1] == ([] if cache_bytes is None else lines[0])


@needs_kernels
def test_a_start_says_that_its_packed_weights_cannot_be_kept(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the folder: on a full disk, and where its user may not write."""
    monkeypatch.setattr("nanoserve.launch.boot_model.LEAST_BYTES", 1)
    monkeypatch.setattr(CachedFiles, "has_room", lambda files, num_bytes: False)
    listener = RecordingListener()

    boot(
        EngineOptions(model=str(folder), device="cpu", quantization="int8", num_blocks=8), listener
    )

    (note,) = [note for note in listener.notes if "packing" in note]
    where = re.escape(str(tmp_path / "weights"))
    assert re.fullmatch(
        rf"packing .* MiB, as at every start: {where} may not be written, or its disk is full; "
        "NANOSERVE_CACHE names another folder",
        note,
    )


@needs_kernels
@pytest.mark.parametrize(("quantization", "num_passes"), [("int8", 1), ("int4", 2)])
def test_a_first_start_shows_how_far_it_is(
    folder: Path, quantization: Quantization, num_passes: int
) -> None:
    """The bar moves while inputs are measured, too: the bytes of layers count twice."""
    listener = RecordingListener()

    boot(
        EngineOptions(model=str(folder), device="cpu", quantization=quantization, num_blocks=8),
        listener,
    )

    steps = listener.steps["weights"]
    with safe_open(str(folder / "model.safetensors"), "pt") as file:
        sizes = {name: file.get_tensor(name).nbytes for name in file.keys()}  # noqa: SIM118
    layer_bytes = sum(size for name, size in sizes.items() if ".layers." in name)
    total_bytes = sum(sizes.values()) + (num_passes - 1) * layer_bytes
    assert {total for _, total in steps} == {total_bytes}
    assert [done for done, _ in steps] == sorted({done for done, _ in steps})
    assert steps[-1][0] == total_bytes
    (report,) = [one for one in listener.reports if one.name == "weights"]
    assert ("inputs measured in" in report.detail) == (num_passes == 2)


def wait_for_keeper() -> None:
    """Wait until the weights are on disk; a server does not."""
    for thread in threading.enumerate():
        if thread.name == "keep-weights":
            thread.join()
