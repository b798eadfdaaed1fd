"""RoPE settings are read in every spelling transformers has used."""

from typing import Any

import pytest

from nanoserve.errors import CorruptFileError, UnsupportedModelError
from nanoserve.spec.config_fields import ConfigFields
from nanoserve.spec.model_spec import RopeScaling
from nanoserve.spec.rope_fields import read_rope, stretched_context

LLAMA3 = {
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
LLAMA3_SCALING = RopeScaling(
    kind="llama3",
    factor=8.0,
    original_max_position_embeddings=8192,
    low_freq_factor=1.0,
    high_freq_factor=4.0,
)


def read(config: dict[str, Any]) -> tuple[float, RopeScaling | None]:
    config = {"max_position_embeddings": 131072, **config}
    return read_rope(ConfigFields(config, "config.json"))


@pytest.mark.parametrize(
    "config",
    [
        {"rope_theta": 5e5, "rope_scaling": {"rope_type": "llama3", **LLAMA3}},
        {"rope_theta": 5e5, "rope_scaling": {"type": "llama3", **LLAMA3}},
        {"rope_parameters": {"rope_type": "llama3", "rope_theta": 5e5, **LLAMA3}},
        {"rope_theta": 5e5, "rope_parameters": {"rope_type": "llama3", **LLAMA3}},
        {
            "rope_theta": 1e4,
            "rope_scaling": None,
            "rope_parameters": {"rope_type": "llama3", "rope_theta": 5e5, **LLAMA3},
        },
    ],
)
def test_every_spelling_gives_the_same_scaling(config: dict[str, Any]) -> None:
    """Old, newer and newest files say the same thing."""
    assert read(config) == (5e5, LLAMA3_SCALING)


@pytest.mark.parametrize(
    "config",
    [
        {"rope_theta": 1e6},
        {"rope_theta": 1e6, "rope_scaling": None},
        {"rope_theta": 1e6, "rope_scaling": {}},
        {"rope_parameters": {"rope_type": "default", "rope_theta": 1e6}},
        {"rope_parameters": {"rope_theta": 1e6}},
        {"rope_parameters": {"rope_theta": 1e6, "partial_rotary_factor": 1.0}},
    ],
)
def test_plain_rope_has_no_scaling(config: dict[str, Any]) -> None:
    """Without a kind, or with the default kind, frequencies are not stretched."""
    assert read(config) == (1e6, None)


def test_theta_is_10000_where_absent() -> None:
    """The default base is that of the RoPE paper."""
    assert read({}) == (10000.0, None)


def test_linear_scaling_is_a_factor() -> None:
    """Linear needs nothing but its factor; an integer will do."""
    scaling = read({"rope_scaling": {"type": "linear", "factor": 4}})[1]

    assert scaling == RopeScaling(kind="linear", factor=4.0)


def test_yarn_takes_its_defaults_from_transformers() -> None:
    """Absent, null and zero betas are 32 and 1; without an original length it is the declared."""
    plain = read({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}})[1]
    odd = read(
        {"rope_scaling": {"rope_type": "yarn", "factor": 4.0, "beta_fast": 0, "beta_slow": None}}
    )[1]

    assert plain == odd
    assert plain == RopeScaling(kind="yarn", factor=4.0, original_max_position_embeddings=131072)


def test_yarn_reads_all_its_settings() -> None:
    """Every optional key of yarn reaches the spec."""
    settings: dict[str, Any] = {
        "factor": 40,
        "original_max_position_embeddings": 4096,
        "beta_fast": 16,
        "beta_slow": 2,
        "attention_factor": 1.5,
        "mscale": 0.7,
        "mscale_all_dim": 0.9,
        "truncate": False,
    }

    scaling = read({"rope_scaling": {"rope_type": "yarn", **settings}})[1]

    assert scaling == RopeScaling(kind="yarn", **settings)


def test_yarn_without_a_factor_derives_it() -> None:
    """A null factor is the declared length over the original one."""
    settings = {"rope_type": "yarn", "factor": None, "original_max_position_embeddings": 32768}

    scaling = read({"rope_scaling": settings})[1]

    assert scaling is not None
    assert scaling.factor == 4.0


def test_an_original_length_beside_the_settings_wins() -> None:
    """As in transformers, the key at the top of the config counts before the one inside."""
    config = {
        "original_max_position_embeddings": 2048,
        "rope_scaling": {"type": "llama3", **LLAMA3},
    }

    scaling = read(config)[1]

    assert scaling is not None
    assert scaling.original_max_position_embeddings == 2048


@pytest.mark.parametrize("kind", ["dynamic", "longrope", "su", "mrope", "proportional"])
def test_other_kinds_are_refused_by_name(kind: str) -> None:
    """A RoPE kind that is not implemented is named, with those that are."""
    with pytest.raises(UnsupportedModelError, match=f"{kind}.*llama3, linear, yarn"):
        read({"rope_scaling": {"rope_type": kind, "factor": 2.0}})


def test_settings_per_layer_are_refused() -> None:
    """RoPE settings nested by layer type are another architecture's."""
    nested = {"full_attention": {"rope_theta": 1e6}, "sliding_attention": {"rope_theta": 1e4}}

    with pytest.raises(UnsupportedModelError, match="per layer"):
        read({"rope_parameters": nested})


def test_a_partial_rotation_is_refused_in_either_place() -> None:
    """Only whole heads are rotated."""
    with pytest.raises(UnsupportedModelError, match="partial_rotary_factor"):
        read({"rope_parameters": {"rope_theta": 1e4, "partial_rotary_factor": 0.25}})
    with pytest.raises(UnsupportedModelError, match="partial_rotary_factor"):
        read({"partial_rotary_factor": 0.25})


@pytest.mark.parametrize(
    ("key", "settings"),
    [
        ("factor", {"rope_type": "linear"}),
        ("factor", {"rope_type": "linear", "factor": 0}),
        ("factor", {"rope_type": "linear", "factor": float("nan")}),
        ("low_freq_factor", {"rope_type": "llama3", "factor": 8.0}),
        ("high_freq_factor", {"rope_type": "llama3", **LLAMA3, "high_freq_factor": 1.0}),
        ("rope_type", {"rope_type": 3}),
        ("truncate", {"rope_type": "yarn", "factor": 2.0, "truncate": 1}),
    ],
)
def test_missing_or_impossible_settings_are_named(key: str, settings: dict[str, Any]) -> None:
    """The error names the key inside the settings."""
    with pytest.raises(CorruptFileError, match=key):
        read({"rope_scaling": settings})


def test_only_yarn_stretches_the_declared_context() -> None:
    """A yarn file may declare the length before stretching; a llama3 file never does."""
    yarn = RopeScaling(kind="yarn", factor=4.0, original_max_position_embeddings=32768)

    assert stretched_context(32768, yarn) == 131072
    assert stretched_context(200000, yarn) == 200000
    assert stretched_context(131072, LLAMA3_SCALING) == 131072
    assert stretched_context(4096, None) == 4096
