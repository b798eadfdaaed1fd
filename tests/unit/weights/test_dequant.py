"""Dequantised values equal those of gguf.quants bit for bit."""

import numpy as np
import pytest
import torch
from gguf import quants
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

from nanoserve.errors import UnsupportedModelError
from nanoserve.weights.dequant import check_type, dequantize

QUANTISABLE = ("F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0")
K_QUANTS = {"Q2_K": (80, 84), "Q4_K": (0, 4), "Q5_K": (0, 4), "Q6_K": (208, 210)}  # fp16 bytes


@pytest.mark.parametrize("type_name", QUANTISABLE)
def test_quantised_data_equals_the_reference(type_name: str) -> None:
    """Random weights, quantised by gguf, come back as gguf dequantises them."""
    kind = GGMLQuantizationType[type_name]
    weights = np.random.default_rng(0).normal(size=(48, 256)).astype(np.float32)
    raw = np.ascontiguousarray(quants.quantize(weights, kind)).view(np.uint8)

    values = dequantize(torch.from_numpy(raw).flatten(), type_name).float()

    expected = quants.dequantize(raw, kind)
    assert np.array_equal(values.numpy().reshape(48, 256), expected)


@pytest.mark.parametrize("type_name", K_QUANTS)
def test_k_quants_equal_the_reference(type_name: str) -> None:
    """Random blocks with finite scales are dequantised as gguf does it."""
    kind = GGMLQuantizationType[type_name]
    rng = np.random.default_rng(1)
    raw = rng.integers(0, 256, (64, GGML_QUANT_SIZES[kind][1]), dtype=np.uint8)
    first, last = K_QUANTS[type_name]
    scales = rng.normal(size=(64, (last - first) // 2)).astype(np.float16)
    raw[:, first:last] = scales.view(np.uint8)

    values = dequantize(torch.from_numpy(raw).flatten(), type_name)

    assert np.array_equal(values.numpy().reshape(64, -1), quants.dequantize(raw, kind))
    assert torch.isfinite(values).all()


@pytest.mark.parametrize("type_name", ["F32", "Q4_1", "Q8_0", "Q4_K", "Q6_K", "IQ4_XS"])
def test_a_readable_format_is_accepted(type_name: str) -> None:
    """A format gguf can dequantise passes the check."""
    check_type(type_name, "Tensor x")


@pytest.mark.parametrize("type_name", ["I32", "Q8_K"])
def test_an_unreadable_format_is_refused_by_name(type_name: str) -> None:
    """A format without a dequantiser is refused, naming it and the tensor."""
    with pytest.raises(UnsupportedModelError, match=f"Tensor x.*{type_name}") as caught:
        check_type(type_name, "Tensor x")

    assert "Q4_K" in caught.value.known
