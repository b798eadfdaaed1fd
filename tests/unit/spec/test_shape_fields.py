"""Which layers slide, as each family's config says it."""

from typing import Any

import pytest

from nanoserve.errors import CorruptFileError, UnsupportedModelError
from nanoserve.spec.shape_fields import layer_numbers, names_of_layers, shape_fields, state_dtype
from tests.shape_cases import kinds_of, tiny_shape

WINDOW = {"sliding_window": 16}
FULL, SLIDING = "full", "sliding"


@pytest.mark.parametrize(
    ("model_type", "changes", "kinds"),
    [
        ("llama", WINDOW, [FULL] * 4),
        ("mistral", WINDOW, [SLIDING] * 4),
        ("mistral", {"sliding_window": None}, [FULL] * 4),
        ("mistral", {}, [SLIDING] * 4),
        ("gemma2", WINDOW, [SLIDING, FULL] * 2),
        ("gemma3_text", WINDOW | {"sliding_window_pattern": 2}, [SLIDING, FULL] * 2),
        ("cohere2", WINDOW, [SLIDING] * 3 + [FULL]),
        ("exaone4", WINDOW | {"sliding_window_pattern": "LG"}, [SLIDING, FULL] * 2),
        ("qwen2", WINDOW, [FULL] * 4),
        ("qwen2", WINDOW | {"use_sliding_window": True}, [FULL] * 4),
        (
            "qwen2",
            WINDOW | {"use_sliding_window": True, "max_window_layers": 1},
            [FULL] + [SLIDING] * 3,
        ),
        (
            "qwen2",
            WINDOW | {"layer_types": ["sliding_attention"] + ["full_attention"] * 3},
            [SLIDING] + [FULL] * 3,
        ),
    ],
)
def test_layers_slide_as_the_family_says(
    model_type: str, changes: dict[str, Any], kinds: list[str]
) -> None:
    """Patterns, windows from a layer on, and lists, which count first."""
    shape = tiny_shape(model_type, **changes)

    assert kinds_of(shape) == kinds
    spans = [layer.attention.span for layer in shape.layers if layer.attention]
    assert all((span is None) == (kind == FULL) for span, kind in zip(spans, kinds, strict=True))


def test_a_sliding_layer_needs_a_window() -> None:
    """A list that names sliding layers without a window is damaged."""
    with pytest.raises(CorruptFileError, match="sliding_window"):
        tiny_shape("llama", layer_types=["sliding_attention"] * 4)


def test_names_of_layers_ahead_are_left_out() -> None:
    """A list may go on with the layers that only guess ahead."""
    config = {"num_hidden_layers": 2, "num_nextn_predict_layers": 1, "names": ["a", "b", "a"]}

    assert names_of_layers(shape_fields(config, "c"), "names", ("a", "b")) == ["a", "b"]


@pytest.mark.parametrize("numbers", ["1", [-1], [True], [1.0], [2**40]])
def test_layer_numbers_are_checked(numbers: Any) -> None:
    """A list of layers holds layer numbers."""
    with pytest.raises(CorruptFileError, match="layers"):
        layer_numbers(shape_fields({"layers": numbers}, "c"), "layers")


@pytest.mark.parametrize(
    ("config", "name"), [({}, None), ({"d": "auto"}, None), ({"d": "float32"}, "float32")]
)
def test_a_states_dtype_may_be_the_models(config: dict[str, Any], name: str | None) -> None:
    """Absent and `auto` leave the state in the model's own dtype."""
    assert state_dtype(shape_fields(config, "c"), "d") == name


def test_an_odd_state_dtype_is_refused() -> None:
    """A dtype whose bytes are not known is named."""
    with pytest.raises(UnsupportedModelError, match="d = 'int4'"):
        state_dtype(shape_fields({"d": "int4"}, "c"), "d")
