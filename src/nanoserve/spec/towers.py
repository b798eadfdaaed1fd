"""Which parts a config has beside its text model: counted, or named as not counted.

Nothing is dropped in silence: a part whose size cannot be told stands in `uncounted`, and the
plan says so. Sizes are counted in `tower_counts`.
"""

from collections.abc import Mapping

from nanoserve.spec.config_fields import ConfigFields
from nanoserve.spec.model_shape import Weight
from nanoserve.spec.tower_counts import FIXED_TOWERS, TOWERS

_WITH_VISION = frozenset({*TOWERS, "gemma3n"})
# Keys under which configs describe such parts, by what people call the part.
_PARTS: Mapping[str, tuple[str, ...]] = {
    "vision": (
        "vision_config",
        "visual",
        "visual_tokenizer_config",
        "vision_backbone",
        "vision_tower",
        "mm_vision_tower",
        "img_processor",
        "vit_config",
    ),
    "audio": ("audio_config", "audio_processor", "audio_encoder_config", "speech_config"),
    "speech output": ("talker_config", "code2wav_config", "token2wav_config"),
}


def read_towers(outer: ConfigFields, text_size: int) -> tuple[tuple[Weight, ...], tuple[str, ...]]:
    """Return the towers' weights, and the names of the parts that cannot be counted.

    Args:
        outer: The whole config; of a model that speaks, what it thinks with is a section.
        text_size: Width of the text model.
    """
    thinker = outer.section("thinker_config")
    kind = outer.text("model_type", "")
    found = {name for name in _PARTS if _has_part(name, outer) or _has_part(name, thinker)}
    num_params = _vision_params(outer, kind, text_size)
    if num_params is None:
        if kind in _WITH_VISION:
            found.add("vision")
    else:
        found.discard("vision")
    weights = () if num_params is None else (Weight("tower", num_params),)
    return weights, tuple(name for name in _PARTS if name in found)


def _has_part(name: str, fields: ConfigFields | None) -> bool:
    if fields is None:
        return False
    return any(fields.raw(key) not in (None, {}, "", False) for key in _PARTS[name])


def _vision_params(outer: ConfigFields, kind: str, text_size: int) -> int | None:
    """Return the parameters of the vision tower; None where there is none, or no count."""
    if kind in FIXED_TOWERS:
        return FIXED_TOWERS[kind](text_size)
    vision, count = outer.section("vision_config"), TOWERS.get(kind)
    return None if vision is None or count is None else count(vision, text_size)
