"""Which module holds a model family, so that a plan of one model imports one of them.

All of them together cost a command 40 ms. A test holds the names against the modules.
"""

from importlib import import_module

from nanoserve.spec.family import Family

_TABLES = {  # module and table: the families in it
    "dense_families:DENSE_FAMILIES": (
        "llama granite smollm3 internlm3 arcee olmo baichuan internlm mistral ministral3 "
        "qwen2 qwen2_vl_text qwen2_5_vl_text mimo qwen3 qwen3_vl_text phi3 phi3_v gemma "
        "gemma2 gemma3_text cohere cohere2 olmo2 olmo3 exaone4 seed_oss glm4 chatglm glm "
        "ernie4_5 hunyuan_v1_dense stablelm"
    ),
    "expert_families:EXPERT_FAMILIES": (
        "mixtral phimoe granitemoe granitemoeshared olmoe qwen2_moe qwen3_moe "
        "qwen3_vl_moe_text qwen3_omni_moe_text gpt_oss glm4_moe dots1 exaone_moe "
        "minimax_m2 minimax_m3_vl_text ernie4_5_moe mimo_v2_flash llama4_text step3p5"
    ),
    "latent_families:LATENT_FAMILIES": (
        "deepseek_v2 deepseek_v3 deepseek_v32 glm_moe_dsa glm4_moe_lite mistral4 longcat_flash"
    ),
    "hybrid_families:HYBRID_FAMILIES": (
        "qwen3_next qwen3_5_text qwen3_5_moe_text jamba mamba falcon_mamba mamba2 bamba "
        "granitemoehybrid falcon_h1 kimi_linear"
    ),
    "gemma_families:GEMMA_FAMILIES": ("gemma3n_text gemma4_text"),
    "classic_families:CLASSIC_FAMILIES": (
        "gpt2 gpt_bigcode gpt_neox bloom opt mpt falcon phi starcoder2 nemotron qwen dbrx"
    ),
    "encoder_families:ENCODER_FAMILIES": ("whisper bart t5 mllama_text_model"),
}
_ALONE = {  # family: module and object
    "nemotron_h": "nemotron_family:NEMOTRON_H",
    "nemotron-nas": "nas_family:NEMOTRON_NAS",
    "zamba2": "zamba_family:ZAMBA2",
}
_HOMES = {name: home for home, names in _TABLES.items() for name in names.split()} | _ALONE
FAMILY_NAMES = tuple(_HOMES)


def find_family(name: str) -> Family:
    """Return a family by one of `FAMILY_NAMES`."""
    module, _, attribute = _HOMES[name].partition(":")
    found = getattr(import_module(f"nanoserve.spec.{module}"), attribute)
    family: Family = found if name in _ALONE else found[name]
    return family
