"""Parameters of vision towers and the projectors behind them, from `vision_config`.

Only totals: towers stay in 16 bits and are on every rank or dropped whole. A tower that is not
in the table, or whose config is absent, is not counted, and the shape says so.
Source: the modelling files of transformers 5.24.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise

from nanoserve.spec.config_fields import MAX_LAYERS, MAX_WIDTH, ConfigFields
from nanoserve.spec.shape_fields import width

MAX_PIXELS = 1 << 16


@dataclass(frozen=True, slots=True)
class _Vit:
    """A vision transformer's layers.

    Attributes:
        size: Width.
        inner: Width of the MLP.
        attention: Width of all heads together.
        has_attention_bias: Bias on the four projections.
        has_mlp_bias: Bias in the MLP.
        is_gated: The MLP has a gate.
        num_norm_params: Parameters of a layer's norms.
    """

    size: int
    inner: int
    attention: int
    has_attention_bias: bool
    has_mlp_bias: bool
    is_gated: bool
    num_norm_params: int

    def layer(self) -> int:
        """Return the parameters of one layer."""
        ups = 2 if self.is_gated else 1
        count = 4 * self.size * self.attention + (ups + 1) * self.size * self.inner
        count += self.num_norm_params
        if self.has_attention_bias:
            count += 3 * self.attention + self.size
        if self.has_mlp_bias:
            count += ups * self.inner + self.size
        return count


CountTower = Callable[[ConfigFields, int], int]


def _plain_vit(vision: ConfigFields, depth_key: str = "num_hidden_layers") -> tuple[_Vit, int]:
    """Return a ViT with LayerNorms and biases everywhere, and its depth."""
    size = width(vision, "hidden_size")
    vit = _Vit(size, width(vision, "intermediate_size"), size, True, True, False, 4 * size)
    return vit, vision.size(depth_key, MAX_LAYERS)


def _mlp(*sizes: int) -> int:
    """Return the parameters of linear layers with biases, one after the other."""
    return sum((columns + 1) * rows for columns, rows in pairwise(sizes))


def _patches(vision: ConfigFields, default: int, frames: int = 1) -> int:
    """Return the values of one patch: three colours, and `frames` frames of a video."""
    side = vision.size("patch_size", MAX_PIXELS, default)
    return 3 * frames * side * side


def _siglip(vision: ConfigFields, text_size: int) -> int:
    """Gemma 3: SigLIP, its pooling head where the config keeps it, a projection with a norm."""
    vit, depth = _plain_vit(vision)
    size = vit.size
    side = vision.size("image_size", MAX_PIXELS, 224) // vision.size("patch_size", MAX_PIXELS, 16)
    count = depth * vit.layer() + size * (_patches(vision, 16) + 1) + side * side * size
    count += 2 * size + size * text_size + size
    if vision.flag("vision_use_head", default=True):
        probe_and_norm = 3 * size
        count += probe_and_norm + _mlp(size, 3 * size) + _mlp(size, size)
        count += _mlp(size, vit.inner, size)
    return count


def _qwen_vl(num_mergers: int) -> CountTower:
    """Qwen3-VL and 3.5: learned positions, and mergers of four patches; see `_merger`."""

    def count(vision: ConfigFields, text_size: int) -> int:
        vit, depth = _plain_vit(vision, "depth")
        size = vit.size
        out_size = width(vision, "out_hidden_size", text_size)
        frames = vision.size("temporal_patch_size", MAX_PIXELS, 2)
        merged = size * vision.size("spatial_merge_size", 64, 2) ** 2
        total = depth * vit.layer() + size * (_patches(vision, 16, frames) + 1)
        total += vision.size("num_position_embeddings", MAX_WIDTH, 2304) * size
        total += 2 * size + _mlp(merged, merged, out_size)
        more = len(vision.raw("deepstack_visual_indexes") or [0] * num_mergers)
        return total + (more if num_mergers else 0) * (2 * merged + _mlp(merged, merged, out_size))

    return count


def _qwen2_vl(vision: ConfigFields, text_size: int) -> int:
    size = width(vision, "embed_dim", 1280)
    inner = vision.size("mlp_ratio", 64, 4) * size
    vit = _Vit(size, inner, size, True, True, False, 4 * size)
    merged = size * vision.size("spatial_merge_size", 64, 2) ** 2
    patches = _patches(vision, 14, vision.size("temporal_patch_size", MAX_PIXELS, 2))
    layers = vision.size("depth", MAX_LAYERS, 32) * vit.layer()
    return layers + size * patches + 2 * size + _mlp(merged, merged, text_size)


def _qwen2_5_vl(vision: ConfigFields, text_size: int) -> int:
    size = width(vision, "hidden_size")
    inner = width(vision, "intermediate_size", 3420)
    vit = _Vit(size, inner, size, True, True, True, 2 * size)
    merged = size * vision.size("spatial_merge_size", 64, 2) ** 2
    patches = _patches(vision, 14, vision.size("temporal_patch_size", MAX_PIXELS, 2))
    layers = vision.size("depth", MAX_LAYERS, 32) * vit.layer()
    return layers + size * patches + size + _mlp(merged, merged, text_size)


def _gemma4(vision: ConfigFields, text_size: int) -> int:
    size = width(vision, "hidden_size")
    head_dim = width(vision, "head_dim", 64)
    inner = width(vision, "num_attention_heads", 12) * head_dim
    vit = _Vit(
        size,
        width(vision, "intermediate_size"),
        inner,
        False,
        False,
        True,
        4 * size + 2 * head_dim,
    )
    positions = 2 * vision.size("position_embedding_size", MAX_WIDTH, 10240) * size
    count = vision.size("num_hidden_layers", MAX_LAYERS) * vit.layer() + positions
    return count + _patches(vision, 16) * size + size * text_size


def _llama4(vision: ConfigFields, text_size: int) -> int:
    vit, depth = _plain_vit(vision)
    size = vit.size
    side = vision.size("image_size", MAX_PIXELS, 448) // vision.size("patch_size", MAX_PIXELS, 14)
    out = width(vision, "vision_output_dim", 7680)
    between = width(vision, "projector_input_dim", 4096)
    count = depth * vit.layer() + size + (side * side + 1) * size + _patches(vision, 14) * size
    adapter = vit.inner * between + between * width(vision, "projector_output_dim", 4096)
    return count + 4 * size + adapter + out * text_size


def _kimi(vision: ConfigFields, text_size: int) -> int:
    """Kimi K2.5: its keys have names of their own in the published config."""
    size = width(vision, "vt_hidden_size", 1152)
    inner = width(vision, "vt_intermediate_size", 4304)
    vit = _Vit(size, inner, size, True, True, False, 4 * size)
    positions = width(vision, "init_pos_emb_height", 64) * width(vision, "init_pos_emb_width", 64)
    merged = 4 * size
    depth = vision.size("vt_num_hidden_layers", MAX_LAYERS, 27)
    count = depth * vit.layer() + size * (_patches(vision, 14) + 1) + positions * size + 2 * size
    return count + 2 * size + _mlp(merged, merged, text_size)


def _minimax_m3(vision: ConfigFields, text_size: int) -> int:
    vit, depth = _plain_vit(vision)
    size = vit.size
    patches = _patches(vision, 14, vision.size("temporal_patch_size", MAX_PIXELS, 2))
    merge = vision.size("spatial_merge_size", 64, 2) ** 2
    projector = _mlp(size, text_size, text_size) + _mlp(text_size * merge, text_size, text_size)
    return depth * vit.layer() + size * patches + 2 * size + projector


def _clip(num_more: Callable[[int], int]) -> CountTower:
    """LLaVA: CLIP with its norms before and after, two projections, and what the family adds."""

    def count(vision: ConfigFields, text_size: int) -> int:
        if vision.text("model_type", "clip_vision_model") == "pixtral":
            return _pixtral(vision) + _mlp(width(vision, "hidden_size", 1024), text_size, text_size)
        vit, depth = _plain_vit(vision)
        size = vit.size
        side = vision.size("image_size", MAX_PIXELS, 336) // vision.size(
            "patch_size", MAX_PIXELS, 14
        )
        total = depth * vit.layer() + size + _patches(vision, 14) * size + (side * side + 1) * size
        return total + 4 * size + _mlp(size, text_size, text_size) + num_more(text_size)

    return count


def _pixtral(vision: ConfigFields) -> int:
    size = width(vision, "hidden_size", 1024)
    heads = width(vision, "num_attention_heads", 16)
    attention = heads * width(vision, "head_dim", size // heads or 1)
    inner = width(vision, "intermediate_size", 4096)
    vit = _Vit(size, inner, attention, False, False, True, 2 * size)
    depth = vision.size("num_hidden_layers", MAX_LAYERS, 24)
    return depth * vit.layer() + _patches(vision, 16) * size + size


def _mistral3(vision: ConfigFields, text_size: int) -> int:
    """Mistral Small 3.1: Pixtral, four patches merged, two projections without bias."""
    size = width(vision, "hidden_size", 1024)
    projector = size + 4 * size * size + size * text_size + text_size * text_size
    return _pixtral(vision) + projector


def _mllama(vision: ConfigFields, text_size: int) -> int:
    """Llama 3.2 Vision: two stacks of layers, and positions for each shape of tiles."""
    vit, depth = _plain_vit(vision)
    size = vit.size
    vit = replace(vit, has_attention_bias=False)
    side = vision.size("image_size", MAX_PIXELS, 448) // vision.size("patch_size", MAX_PIXELS, 14)
    ratios = vision.raw("supported_aspect_ratios")
    num_shapes = 1 + (len(ratios) if isinstance(ratios, list) else 8)
    patches = side * side + 1
    tiles = vision.size("max_num_tiles", 64, 4)
    count = depth * vit.layer()
    count += vision.size("num_global_layers", MAX_LAYERS, 8) * (vit.layer() + 2)
    count += size + _patches(vision, 14) * size + patches * size + 3 + 4 * size
    count += num_shapes * tiles * size * (patches + 2)
    return count + _mlp(width(vision, "vision_output_dim", 7680), text_size)


def _step3(vision: ConfigFields, text_size: int) -> int:
    """Step 3.7: layers with a scale on each branch, and two convolutions that shrink the image."""
    size = width(vision, "width", 1536)
    inner = int(size * min(vision.positive("mlp_ratio", 8960 / 1536), 64.0))
    vit = _Vit(size, inner, size, True, True, False, 6 * size)
    side = vision.size("image_size", MAX_PIXELS, 728) // vision.size("patch_size", MAX_PIXELS, 14)
    count = vision.size("layers", MAX_LAYERS, 47) * vit.layer()
    count += (_patches(vision, 14) + side * side + 2) * size
    count += _mlp(9 * size, 2 * size) + _mlp(9 * 2 * size, 4 * size)
    return count + 4 * size * text_size


TOWERS: Mapping[str, CountTower] = {
    "gemma3": _siglip,
    "gemma4": _gemma4,
    "qwen2_vl": _qwen2_vl,
    "qwen2_5_vl": _qwen2_5_vl,
    "qwen3_vl": _qwen_vl(3),
    "qwen3_vl_moe": _qwen_vl(3),
    "qwen3_5": _qwen_vl(0),
    "qwen3_5_moe": _qwen_vl(0),
    "llama4": _llama4,
    "kimi_k25": _kimi,
    "minimax_m3_vl": _minimax_m3,
    "llava": _clip(lambda _: 0),
    "llava_next": _clip(lambda text_size: text_size),
    "mistral3": _mistral3,
    "mllama": _mllama,
    "step3p7": _step3,
}


def _phi3_vision(text_size: int) -> int:
    """Phi-3-vision and 3.5: CLIP ViT-L/14 of 336 pixels, two separators, two projections.

    Source: the published modelling file: the tower's sizes stand there, not in the config, and
    four of its rows are projected as one. Its total is the checkpoint's, 4,146,621,440.
    """
    size, side = 1024, 336 // 14
    vit = _Vit(size, 4096, size, True, True, False, 4 * size)
    count = 24 * vit.layer() + size + 3 * 14 * 14 * size + (side * side + 1) * size + 4 * size
    return count + 2 * 4 * size + _mlp(4 * size, text_size, text_size)


FIXED_TOWERS: Mapping[str, Callable[[int], int]] = {  # by the width of the text model alone
    "phi3_v": _phi3_vision,
}
