"""`quantization_config` of config.json files."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nanoserve.errors import ModelError, UnsupportedModelError
from nanoserve.spec.quant_config import read_quant_config
from nanoserve.spec.quant_spec import LINEAR_GROUPS

PATH = "config.json"


def compressed(weights: dict[str, Any], **extra: Any) -> dict[str, Any]:
    group = {"targets": ["Linear"], "weights": weights}
    return {"quant_method": "compressed-tensors", "config_groups": {"group_0": group}, **extra}


CASES: list[tuple[dict[str, Any], str, float]] = [
    ({"quant_method": "gptq", "bits": 4, "group_size": 128}, "gptq-int4-g128", 4.1640625),
    ({"quant_method": "gptq", "bits": 8, "group_size": -1}, "gptq-int8", 8 + 24 / 4096),
    ({"quant_method": "awq", "bits": 4, "group_size": 64}, "awq-int4-g64", 4.3125),
    ({"quant_method": "awq", "w_bit": 4, "q_group_size": 128}, "awq-int4-g128", 4.15625),
    ({"quant_method": "fp8", "activation_scheme": "dynamic"}, "fp8", 8),
    (
        {"quant_method": "fp8", "weight_block_size": [128, 128]},
        "fp8-block-128x128",
        8 + 32 / 16384,
    ),
    ({"quant_method": "fbgemm_fp8"}, "fp8-channel", 8 + 32 / 4096),
    ({"quant_method": "bitsandbytes", "load_in_8bit": True}, "bnb-int8", 8 + 32 / 4096),
    ({"quant_method": "bitsandbytes", "load_in_4bit": True}, "bnb-4bit", 4.5),
    (
        {
            "quant_method": "bitsandbytes",
            "load_in_4bit": True,
            "bnb_4bit_use_double_quant": True,
        },
        "bnb-4bit-double",
        4 + (8 + 32 / 256) / 64,
    ),
    ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, "nvfp4", 4.5),
    ({"quant_algo": "FP8", "producer": {"name": "modelopt"}}, "fp8", 8),
    ({"quant_method": "modelopt", "quantization": {"quant_algo": "FP8"}}, "fp8", 8),
    (
        {
            "quant_method": "quark",
            "global_quant_config": {"weight": {"dtype": "fp8_e4m3", "qscheme": "per_channel"}},
        },
        "fp8-channel",
        8 + 32 / 4096,
    ),
    (
        {"quant_method": "quark", "global_quant_config": {"weight": {"dtype": "fp4"}}},
        "mxfp4",
        4.25,
    ),
    (
        {
            "quant_method": "quark",
            "global_quant_config": {"weight": {"dtype": "uint4", "group_size": 128}},
        },
        "quark-int4-g128",
        4.15625,
    ),
    ({"quant_method": "auto-round", "bits": 4, "group_size": 128}, "gptq-int4-g128", 4.15625),
    (
        {"quant_method": "auto-round", "bits": 4, "packing_format": "auto_round:auto_awq"},
        "awq-int4-g128",
        4.15625,
    ),
    (
        {"quant_method": "hqq", "weight_quant_params": {"nbits": 4, "group_size": 64}},
        "hqq-int4-g64",
        4.5,
    ),
    ({"quant_method": "nvfp4"}, "nvfp4", 4.5),
    ({"quant_method": "awq", "bits": 4, "group_size": -1}, "awq-int4", 4 + 20 / 4096),
    (
        {"quant_method": "compressed-tensors", "format": "int8 w8a8"},
        "int8-channel",
        8 + 16 / 4096,
    ),
    ({"quant_method": "exl3", "bits": 3.5, "head_bits": 6}, "exl-3.5bpw", 3.5),
    (
        compressed({"num_bits": 4, "type": "int", "strategy": "group", "group_size": 128}),
        "packed-int4-g128",
        4.125,
    ),
    (
        compressed(
            {
                "num_bits": 4,
                "type": "int",
                "strategy": "group",
                "group_size": 32,
                "symmetric": False,
            }
        ),
        "packed-int4-g32",
        4 + 20 / 32,
    ),
    (
        compressed({"num_bits": 8, "type": "int", "strategy": "channel"}),
        "int8-channel",
        8 + 16 / 4096,
    ),
    (
        compressed({"num_bits": 8, "type": "float", "strategy": "channel"}),
        "fp8-channel",
        8 + 32 / 4096,
    ),
    (compressed({"num_bits": 8, "type": "float", "strategy": "tensor"}), "fp8", 8),
    (
        compressed(
            {"num_bits": 8, "type": "float", "strategy": "block", "block_structure": [128, 128]}
        ),
        "fp8-block-128x128",
        8 + 32 / 16384,
    ),
    (
        compressed({"num_bits": 8, "type": "float", "strategy": "group", "group_size": 32}),
        "mxfp8",
        8.25,
    ),
    (compressed({"num_bits": 4, "type": "float", "group_size": 16}), "nvfp4", 4.5),
    (
        compressed(
            {"num_bits": 4, "type": "float", "group_size": 32}, format="mxfp4-pack-quantized"
        ),
        "mxfp4",
        4.25,
    ),
]


@pytest.mark.parametrize(("values", "name", "bits"), CASES, ids=[case[1] for case in CASES])
def test_methods(values: dict[str, Any], name: str, bits: float) -> None:
    """Each method's keys lead to a format with its true bits."""
    found = read_quant_config(values, PATH)

    assert found.weight_format.name == name
    assert found.weight_format.bits_per_weight() == pytest.approx(bits)


def test_gpt_oss_stores_experts_in_4_bits() -> None:
    """Attention, router, embedding and head stay in 16 bits."""
    kept = [
        "model.layers.*.self_attn",
        "model.layers.*.mlp.router",
        "model.embed_tokens",
        "lm_head",
    ]
    found = read_quant_config({"quant_method": "mxfp4", "modules_to_not_convert": kept}, PATH)

    assert found.weight_format.quantised == {"experts"}
    assert found.kept == tuple(kept)


def test_wildcards_leave_whole_groups_alone() -> None:
    """Kimi-K2.5 stores its routed experts in 4 bits and nothing else."""
    values = compressed(
        {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32},
        ignore=[
            "lm_head",
            "re:.*self_attn.*",
            "re:.*shared_experts.*",
            r"re:.*mlp\.(gate|up|gate_up|down)_proj.*",
        ],
    )

    assert read_quant_config(values, PATH).weight_format.quantised == {"experts"}


def test_single_modules_are_handed_on() -> None:
    """A module of one layer takes no group out."""
    values = {"quant_method": "awq", "modules_to_not_convert": ["model.layers.0.self_attn.q_proj"]}
    found = read_quant_config(values, PATH)

    assert "attention" in found.weight_format.quantised
    assert found.kept == ("model.layers.0.self_attn.q_proj",)


def test_a_quantised_head() -> None:
    """GPTQ files may quantise the head as well, and say so."""
    found = read_quant_config({"quant_method": "gptq", "bits": 4, "lm_head": True}, PATH)

    assert found.weight_format.group_bits_per_weight("head") < 5


@pytest.mark.parametrize(
    ("extra", "dtype"),
    [
        ({"kv_cache_scheme": {"num_bits": 8, "type": "float"}}, "fp8"),
        ({"kv_cache_scheme": {"num_bits": 8, "type": "int"}}, "int8"),
        ({"kv_cache_quant_algo": "FP8"}, "fp8"),
        ({"kv_cache_scheme": "FP8"}, "fp8"),
        ({"kv_cache_scheme": None}, None),
    ],
)
def test_what_is_asked_of_the_kv_cache(extra: dict[str, Any], dtype: str | None) -> None:
    """Some files say how keys and values are to be stored."""
    values = {"quant_method": "modelopt", "quant_algo": "FP8", **extra}

    assert read_quant_config(values, PATH).kv_cache_dtype == dtype


@pytest.mark.parametrize(
    ("values", "key"),
    [
        ({"quant_method": "aqlm"}, "quant_method"),
        ({}, "quant_method"),
        ({"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION"}, "quant_algo"),
        ({"quant_method": "fp8", "quant_algo": "MIXED_PRECISION"}, "quant_algo"),
        ({"quant_method": "fp8", "weight_block_size": [128]}, "weight_block_size"),
        ({"quant_method": "bitsandbytes", "load_in_4bit": False}, "load_in_4bit"),
        ({"quant_method": "compressed-tensors"}, "format"),
        (compressed({"num_bits": 6, "type": "float"}), "num_bits"),
        (compressed({"num_bits": 8, "type": "posit"}), "type"),
        (compressed({"num_bits": 8, "type": "float", "strategy": "odd"}), "strategy"),
        ({"quant_method": "quark"}, "global_quant_config"),
        (
            {"quant_method": "quark", "global_quant_config": {"weight": {"dtype": "fp6"}}},
            "dtype",
        ),
        (
            {
                "quant_method": "compressed-tensors",
                "config_groups": {
                    "a": {"weights": {"num_bits": 4, "type": "float", "group_size": 16}},
                    "b": {"weights": {"num_bits": 8, "type": "float"}},
                },
            },
            "config_groups",
        ),
        ({"quant_method": "compressed-tensors", "config_groups": {"a": {"x": 1}}}, "weights"),
    ],
)
def test_what_is_not_known_is_refused_by_its_key(values: dict[str, Any], key: str) -> None:
    """Never a silent guess: the key that blocked it is in the message."""
    with pytest.raises(UnsupportedModelError, match=rf"\b{key} = "):
        read_quant_config(values, PATH)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=6,
)
METHODS = st.sampled_from(
    ["gptq", "awq", "fp8", "compressed-tensors", "bitsandbytes", "modelopt", "quark", "hqq", "exl2"]
)
KEYS = st.sampled_from(
    [
        "bits",
        "group_size",
        "weight_block_size",
        "config_groups",
        "quant_algo",
        "global_quant_config",
        "ignore",
        "modules_to_not_convert",
        "kv_cache_scheme",
        "format",
        "load_in_4bit",
        "weight_quant_params",
    ]
)


@given(METHODS, st.dictionaries(KEYS, JSON, max_size=6))
def test_any_object_is_read_or_refused(method: str, values: dict[str, Any]) -> None:
    """Nothing a file may hold makes reading fail in another way."""
    try:
        found = read_quant_config({**values, "quant_method": method}, PATH)
    except ModelError:
        return

    assert 0 < found.weight_format.bits_per_weight() < 1e31


@pytest.mark.parametrize(
    ("kept", "left"),
    [
        ([f"model.layers.{n}.self_attn*" for n in range(10)], {"attention"}),
        ([f"model.layers.{n}.self_attn*" for n in range(5)], set()),
        (
            [f"model.layers.{n}.self_attn.{p}_proj" for n in range(10) for p in "qkvo"],
            {"attention"},
        ),
        ([f"model.layers.{n}.self_attn.kv_b_proj" for n in range(10)], set()),
        ([f"vision_model.layers.{n}.self_attn*" for n in range(10)], set()),
        (["model.layers.0.self_attn*"], set()),
        (["*.self_attn*"], {"attention"}),
    ],
)
def test_modules_listed_layer_by_layer(kept: list[str], left: set[str]) -> None:
    """A group is left in 16 bits where most of 10 layers list it whole, or a pattern all."""
    values = {"quant_method": "awq", "bits": 4, "modules_to_not_convert": kept}
    quantised = read_quant_config(values, "config.json", num_layers=10).weight_format.quantised

    assert LINEAR_GROUPS - quantised == left


def test_lists_without_a_number_of_layers_name_no_group() -> None:
    """How many layers the list leaves out cannot be said."""
    values = {
        "quant_method": "awq",
        "bits": 4,
        "modules_to_not_convert": ["model.layers.0.self_attn*"],
    }

    assert read_quant_config(values, "config.json").weight_format.quantised == LINEAR_GROUPS
