"""Vision towers that no golden config has; the others are held against transformers there."""

from typing import Any

from nanoserve.spec.config_fields import ConfigFields
from nanoserve.spec.param_count import count_parameters
from nanoserve.spec.read_shape import read_model_shape
from nanoserve.spec.tower_counts import TOWERS
from tests.shape_cases import TINY

SIGLIP: dict[str, Any] = {
    "hidden_size": 768,
    "intermediate_size": 3072,
    "num_hidden_layers": 12,
    "image_size": 224,
    "patch_size": 16,
}


def test_siglip_with_its_pooling_head() -> None:
    """Counted by transformers for the defaults of its Gemma 3 classes."""
    fields = ConfigFields(SIGLIP, "config.json")

    assert TOWERS["gemma3"](fields, 5376) == 97_013_760


def test_mistral_small_3_1s_pixtral() -> None:
    """Counted by transformers for the defaults of its Mistral 3 classes."""
    vision = {"hidden_size": 1024, "num_attention_heads": 16, "head_dim": 64, "patch_size": 14}
    fields = ConfigFields(vision | {"intermediate_size": 4096}, "config.json")

    assert TOWERS["mistral3"](fields, 5120) == 438_958_080


def test_a_tower_stands_in_its_own_group() -> None:
    """So that it can be dropped when text alone is served."""
    config = {"model_type": "gemma3", "vision_config": SIGLIP, "text_config": TINY}
    shape = read_model_shape(config, "config.json")

    fields = ConfigFields(SIGLIP, "config.json")
    assert count_parameters(shape).tower == TOWERS["gemma3"](fields, 64)
    assert shape.uncounted == ()
