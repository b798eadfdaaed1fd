"""Which formats of weights, keys and values each engine has, and how its flags spell them.

Owns the refusals: a plan in a format that the engine cannot be asked for is a plan of nothing.
"""

import re

from nanoserve.errors import OptionError
from nanoserve.spec.kv_format import find_kv_format
from nanoserve.spec.quant_spec import WeightFormat, find_weight_format

# Our name of a format to the flag's value; None needs no flag. Source: vLLM config/cache.py
# (CacheDType), SGLang server_args.py (--kv-cache-dtype), TensorRT-LLM llm_args.py
# (KvCacheConfig.dtype), llama.cpp common/arg.cpp (kv_cache_types).
_KV_VALUES: dict[str, dict[str, str | None]] = {
    "vllm": {
        "bf16": None,
        "fp8": "fp8",
        "fp8_ds_mla": "fp8",
        "fp8_per_token_head": "fp8_per_token_head",
        "int8_per_token_head": "int8_per_token_head",
        "nvfp4": "nvfp4",
        "nvfp4_ds_mla": "nvfp4_ds_mla",
    },
    "sglang": {"bf16": None, "fp8": "fp8_e4m3", "fp8_ds_mla": "fp8_e4m3", "nvfp4": "fp4_e2m1"},
    "tensorrt-llm": {"bf16": None, "fp8": "fp8", "nvfp4": "nvfp4"},
    "llama.cpp": {
        "bf16": "f16",
        "fp32": "f32",
        **{name: name for name in ("q8_0", "q5_0", "q5_1", "q4_0", "q4_1", "iq4_nl")},
    },
}
# Spellings that say more than our name does, and are passed on as written.
_EXACT = {"vllm": ("fp8_e4m3", "fp8_e5m2"), "sglang": ("fp8_e5m2",), "llama.cpp": ("bf16",)}
_AUTO = ("auto", "")
_GGUF_WEIGHTS = re.compile(r"I?Q\d.*|TQ\d.*|B?F16|F32|bf16|fp32|mxfp4", re.IGNORECASE)


def kv_flag_value(engine: str, asked: str) -> str | None:
    """Return what the engine's flag is given for a format asked for; None for no flag.

    Raises:
        OptionError: The format is unknown, or the engine has none of that kind.

    Example: `fp8` is `fp8_e4m3` to SGLang, and `bf16` is `f16` to llama.cpp unless it was
    written so.
    """
    spelled = asked.strip().casefold()
    if spelled in _AUTO:
        return None
    if spelled in _EXACT.get(engine, ()):
        return spelled
    values, name = _KV_VALUES[engine], find_kv_format(asked).name
    if name not in values:
        message = (
            f"--kv-cache-dtype {asked[:40]!r}: {engine} stores no keys and values so. "
            f"It has {', '.join(values)}."
        )
        raise OptionError(message)
    return values[name]


def engine_weight_format(engine: str, name: str) -> WeightFormat | None:
    """Return the format that a name means to an engine; None for weights as they come.

    Raises:
        UnsupportedModelError: There is none of that name.
        OptionError: Our own server has none of that name.

    Example: `int4` is a checkpoint in groups of 128 to vLLM, and our server's own groups of 32.
    """
    if engine != "nanoserve":
        return find_weight_format(name)
    from nanoserve.capacity.own_formats import find_own_format  # other engines do without

    return find_own_format(name)


def check_weight_format(engine: str, stored: WeightFormat) -> None:
    """Refuse weights that the engine reads from no file.

    Raises:
        OptionError: llama.cpp is to hold what no GGUF file does.
    """
    if engine == "llama.cpp" and not _GGUF_WEIGHTS.fullmatch(stored.name):
        message = (
            f"--quantization {stored.name}: llama.cpp reads GGUF files, and they hold no such "
            "weights. Ask for one of theirs, as Q8_0 or Q4_K_M."
        )
        raise OptionError(message)
