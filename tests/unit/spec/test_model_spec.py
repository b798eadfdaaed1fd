"""Widths that follow from a spec."""

from nanoserve.spec.model_spec import ModelSpec


def test_projection_widths_use_the_stated_head_width() -> None:
    """Mistral Nemo: 32 heads of 128 make 4096, although the hidden size is 5120."""
    spec = ModelSpec("mistral", 40, 5120, 32, 8, 128, 14336, 131072, 131072)

    assert (spec.q_size, spec.kv_size) == (4096, 1024)
