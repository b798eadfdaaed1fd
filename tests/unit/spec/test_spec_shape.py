"""Our own models as the planner sees them."""

from nanoserve.spec.hf_config import spec_from_hf_config
from nanoserve.spec.model_spec import ModelSpec
from nanoserve.spec.read_shape import read_model_shape
from nanoserve.spec.spec_shape import shape_of_spec
from tests.shape_cases import TINY

SPEC = ModelSpec("llama", 2, 64, 4, 2, 16, 96, 128, 512)


def test_both_readers_give_one_shape() -> None:
    """A config read for our decoder and for the planner is the same model."""
    for model_type in ("llama", "mistral", "qwen2", "qwen3"):
        config = {**TINY, "model_type": model_type, "torch_dtype": "bfloat16"}

        ours = shape_of_spec(spec_from_hf_config(config, "config.json"))

        assert ours == read_model_shape(config, "config.json")


def test_a_window_is_of_every_layer() -> None:
    """Mistral v0.1 slides throughout."""
    config = {**TINY, "model_type": "mistral", "sliding_window": 32}
    shape = shape_of_spec(spec_from_hf_config(config, "config.json"))

    assert {layer.attention.span for layer in shape.layers if layer.attention} == {32}


def test_a_tied_head_has_no_weight() -> None:
    """The embedding is the head."""
    assert not shape_of_spec(SPEC).tie_word_embeddings
    assert [weight.group for weight in shape_of_spec(SPEC).weights] == [
        "embedding",
        "head",
        "norms",
    ]
