"""Bytes of keys and values in the KV cache's formats."""

import pytest

from nanoserve.errors import OptionError
from nanoserve.spec.kv_format import KV_FORMATS, find_kv_format
from nanoserve.spec.quant_spec import quant_rows

ROWS = {
    "KV bf16/fp16": "bf16",
    "KV fp8 (per tensor)": "fp8",
    "KV int8/fp8 per-token-head (vLLM)": "fp8_per_token_head",
    "KV nvfp4 (vLLM)": "nvfp4",
    "KV q8_0 (llama.cpp/Ollama)": "q8_0",
    "KV q4_0 (llama.cpp/Ollama)": "q4_0",
}
LATENT_ROWS = {"KV fp8_ds_mla": "fp8_ds_mla", "KV nvfp4_ds_mla": "nvfp4_ds_mla"}
BITS = {row["format"]: float(row["bits_per_weight"]) for row in quant_rows()}


@pytest.mark.parametrize(("row", "name"), ROWS.items())
def test_bits_of_a_value(row: str, name: str) -> None:
    """A head of 128 values costs the table's bits, scales included."""
    assert find_kv_format(name).bits_per_value(128) == BITS[row]


@pytest.mark.parametrize(("row", "name"), LATENT_ROWS.items())
def test_bits_of_a_latent(row: str, name: str) -> None:
    """DeepSeek-V3's 576 values cost the table's bits."""
    num_bytes = find_kv_format(name).latent_bytes(512, 64)

    assert 8 * num_bytes / 576 == pytest.approx(BITS[row], abs=1e-4)


def test_latents_of_deepseek_v3() -> None:
    """A token takes 1,152 bytes of a layer in bf16, 656 in fp8_ds_mla, 352 in nvfp4_ds_mla."""
    sizes = [find_kv_format(name).latent_bytes(512, 64) for name in ("bf16", *LATENT_ROWS.values())]

    assert sizes == [1152, 656, 352]


def test_every_row_of_the_table_is_known() -> None:
    """No KV format of the table is left out."""
    assert {name for name in BITS if name.startswith("KV ")} == ROWS.keys() | LATENT_ROWS.keys()


@pytest.mark.parametrize(
    ("spelled", "name"),
    [("float16", "bf16"), ("FP8_E5M2", "fp8"), ("fp8-e4m3", "fp8"), ("f16", "bf16")],
)
def test_spellings(spelled: str, name: str) -> None:
    """Engines spell the same layout in several ways."""
    assert find_kv_format(spelled) is KV_FORMATS[name]


def test_auto_is_the_models_own() -> None:
    """`auto` has the bytes of the model's dtype."""
    assert find_kv_format("auto").head_bytes(128) == 256
    assert find_kv_format("auto", model_bytes=4).head_bytes(128) == 512


def test_an_unknown_format_is_refused() -> None:
    """The message names the flag and the known formats."""
    with pytest.raises(OptionError, match=r"--kv-cache-dtype 'fp6'.*nvfp4"):
        find_kv_format("fp6")
