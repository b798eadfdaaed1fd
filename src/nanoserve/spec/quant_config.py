"""`quantization_config` of a config.json to a weight format and what it leaves alone.

Whatever would change the bytes and is not understood is refused, naming its key. Which
single modules of a group stay in 16 bits is not resolved here, since that takes the
model's layers: `QuantConfig.kept` hands their patterns on.
"""

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from nanoserve.spec.config_fields import ConfigFields
from nanoserve.spec.quant_methods import READERS
from nanoserve.spec.quant_spec import WeightFormat

_MAX_PATTERNS = 1 << 20
_LAYER = re.compile(r"\blayers\.(\d{1,4})\.")
_TOWER = re.compile(r"vision|visual|audio")
_WHOLE_MODULES = 3  # of a layer's group listed one by one; fewer are a part of it
# Patterns that name a whole group of parameters; asked in this order.
_GROUP_WORDS = (
    ("attention", re.compile(r"self_attn|linear_attn|\.attn\b|attention")),
    ("experts", re.compile(r"(?<!shared_)experts")),
    ("shared_experts", re.compile(r"shared_expert")),
    ("mlp", re.compile(r"\bmlp\\?\.\(?[a-z_|]*\)?_proj")),
    ("head", re.compile(r"lm_head|^head$|^output$")),
)


@dataclass(frozen=True, slots=True)
class QuantConfig:
    """What a config.json says of its weights' storage.

    Attributes:
        method: As the file spells it, e.g. `compressed-tensors`.
        weight_format: Of the quantised groups, whole groups left in 16 bits taken out.
        kept: Patterns of modules left in 16 bits, as the file has them.
        kv_cache_dtype: What the file asks of the KV cache; None where nothing.
    """

    method: str
    weight_format: WeightFormat
    kept: tuple[str, ...] = ()
    kv_cache_dtype: str | None = None


def read_quant_config(values: Mapping[str, Any], path: str, num_layers: int = 0) -> QuantConfig:
    """Return what a `quantization_config` (or `compression_config`) means.

    Args:
        values: The object in the file; nothing of it is trusted.
        path: Of the file, for errors.
        num_layers: Layers of the text model; files that list modules layer by layer leave a
            group in 16 bits where they list it in most of them. 0 where it is not known.

    Raises:
        UnsupportedModelError: A method or a layout that is not known; the key is named.
        CorruptFileError: A value of the wrong type or out of range.
    """
    prefixed = {f"quantization_config.{key}": value for key, value in values.items()}
    config = ConfigFields(prefixed, path, "quantization_config.")
    method = _method(config)
    reader = READERS.get(method)
    if reader is None:
        config.fail_unsupported(
            "quant_method", f"weights of {method!r} are not known; known: {', '.join(READERS)}."
        )
    kept = _patterns(config)
    found = reader(config).leave(_whole_groups(kept) | _listed_groups(kept, num_layers))
    if config.has("lm_head") and config.raw("lm_head") is True:
        found = replace(found, quantised=found.quantised | {"head"})
    return QuantConfig(method, found, kept, _kv_cache_dtype(config))


def _method(config: ConfigFields) -> str:
    method = config.text("quant_method", "")
    if method == "" and config.has("quant_algo"):
        return "modelopt"
    if method == "fp8" and config.text("quant_algo", "").upper() == "MIXED_PRECISION":
        return "modelopt"
    if method == "":
        config.fail_unsupported("quant_method", "it does not say how its weights are stored.")
    return method.casefold().replace("_", "-")


def _patterns(config: ConfigFields) -> tuple[str, ...]:
    """Return the modules that stay in 16 bits, under whichever key the method uses."""
    for key in ("modules_to_not_convert", "ignore", "exclude_modules", "exclude", "ignored_layers"):
        value = config.raw(key)
        if isinstance(value, list | tuple) and len(value) <= _MAX_PATTERNS:
            return tuple(item for item in value if isinstance(item, str))
    return ()


def _whole_groups(kept: tuple[str, ...]) -> frozenset[str]:
    """Return groups that one wildcard pattern takes out of every layer."""
    wild = [
        one
        for one in kept
        if ("*" in one or one.startswith("re:") or "." not in one) and not _LAYER.search(one)
    ]
    return frozenset(group for group, word in _GROUP_WORDS if any(word.search(one) for one in wild))


def _listed_groups(kept: tuple[str, ...], num_layers: int) -> frozenset[str]:
    """Return groups that are listed whole in more than half of the layers, one by one."""
    modules: dict[tuple[str, int], set[str]] = {}
    for one in kept:
        layer = _LAYER.search(one)
        group = next((group for group, word in _GROUP_WORDS if word.search(one)), None)
        if layer is not None and group is not None and not _TOWER.search(one):
            modules.setdefault((group, int(layer[1])), set()).add(one[layer.end() :])
    whole = Counter(group for (group, _), names in modules.items() if _is_whole(names))
    return frozenset(group for group, count in whole.items() if 0 < num_layers < 2 * count)


def _is_whole(names: set[str]) -> bool:
    return len(names) >= _WHOLE_MODULES or any(name.endswith(("*", "attn")) for name in names)


def _kv_cache_dtype(config: ConfigFields) -> str | None:
    scheme = config.raw("kv_cache_scheme")
    algorithm = config.raw("kv_cache_quant_algo")
    if isinstance(scheme, Mapping) and scheme.get("num_bits") == 8:
        return "fp8" if scheme.get("type") == "float" else "int8"
    for named in (scheme, algorithm):
        if isinstance(named, str) and named.casefold() in ("fp8", "nvfp4", "int8"):
            return named.casefold()
    return None
