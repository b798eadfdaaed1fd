"""Make `planner_configs.jsonl` and `param_counts.json`: what transformers itself counts.

Run by hand with a file of abridged configs, one object a line:
`python tests/golden/recipes/param_counts.py CONFIGS.jsonl`. Each abridged row is put back
into the form of a config.json (nested where the family nests), then its model is built
without storage on the meta device and its parameters are counted. Needs transformers 5.24.
"""

import json
import sys
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import AutoConfig, PretrainedConfig

GOLDEN = Path(__file__).parents[1]
_NOT_CONFIG = frozenset(
    [
        "model",
        "source",
        "source_kind",
        "kv_bytes_per_token_bf16",
        "params_computed",
        "bf16_gib_computed",
        "note",
        "note2",
        "kv_rule",
        "hf_quant_config",
        "mlp_class",
        "head_dim_derived",
        "full_attention_layers",
        "text_model_type",
        "kv_bytes_per_token_with_indexer_bf16",
        "sliding_window_indices",
    ]
)
_OUTER = ("architectures", "model_type", "quantization_config", "vision_config", "torch_dtype")
_TYPE_BY_NAME = (  # rows copied from files that do not name the architecture
    ("gemma-3-", "gemma3"),
    ("gemma-7b", "gemma"),
    ("falcon", "falcon"),
    ("Llama-3.2-11B-Vision", "mllama"),
    ("lama", "llama"),
    ("Phi-4-mini", "phi3"),
    ("hi-", "phi3"),
    ("pixtral", "llava"),
    ("llava", "llava_next"),
    ("istral", "mistral"),
    ("Qwen2-VL", "qwen2_vl"),
    ("Qwen2.5-VL", "qwen2_5_vl"),
    ("Qwen2.5", "qwen2"),
    ("QwQ", "qwen2"),
    ("Distill-Qwen", "qwen2"),
    ("Qwen3-4B", "qwen3"),
    ("Qwen3-235B", "qwen3_moe"),
    ("Qwen3-30B", "qwen3_moe"),
    ("mpt", "mpt"),
    ("Qwen3.5", "qwen3_5"),
)
_TEXT_TYPE = {
    "mllama": "mllama_text_model", "gemma3": "gemma3_text", "llava": "mistral",
    "llava_next": "mistral", "qwen2_vl": "qwen2_vl_text", "qwen2_5_vl": "qwen2_5_vl_text",
    "minimax_m3": "minimax_m3_vl_text", "minimax_m3_vl": "minimax_m3_vl_text", "step3p7": "step3p5",
}  # fmt: skip
_TIED = ("gemma", "Llama-3.2-1B", "Llama-3.2-3B", "Qwen2.5-0.5B", "Qwen2.5-1.5B", "Qwen3-4B")
_UNKNOWN_TYPE = {"phi-msft": "phi", "kimi_k2": "deepseek_v3", "minimax_m3": "minimax_m3_vl"}
_FAMILY_EXTRAS: dict[str, dict[str, Any]] = {
    "falcon-7b": {"multi_query": True, "new_decoder_architecture": False, "bias": False,
                  "parallel_attn": True},
    "falcon": {"multi_query": True, "new_decoder_architecture": True, "bias": False,
               "parallel_attn": True},
    "Phi-4-mini": {"tie_word_embeddings": True},
    "DeepSeek-V2-Lite": {"q_lora_rank": None},
    "GLM-4.7": {"attention_bias": True, "use_qk_norm": True},
    "emma-4-26B": {"enable_moe_block": True, "top_k_experts": 8},
    "Nemotron-3-Nano": {"moe_shared_expert_intermediate_size": 3712},
    "Nemotron-3-Super": {"moe_shared_expert_intermediate_size": 5376, "moe_latent_size": 1024},
    "phi-2": {"hidden_size": 2560, "num_hidden_layers": 32, "num_attention_heads": 32,
              "intermediate_size": 10240, "max_position_embeddings": 2048},
    "gemma-7b": {"max_position_embeddings": 8192},
    "gemma-3-": {"vocab_size": 262208, "vision_config": {
        "hidden_size": 1152, "intermediate_size": 4304, "num_hidden_layers": 27,
        "num_attention_heads": 16, "image_size": 896, "patch_size": 14,
        "vision_use_head": False}},
    "Llama-4": {"vision_config": {
        "hidden_size": 1408, "intermediate_size": 5632, "num_hidden_layers": 34,
        "num_attention_heads": 16, "image_size": 336, "patch_size": 14,
        "vision_output_dim": 4096, "projector_input_dim": 4096, "projector_output_dim": 4096}},
    "Qwen2.5-VL": {"vision_config": {
        "hidden_size": 1280, "out_hidden_size": 3584, "depth": 32, "num_heads": 16,
        "intermediate_size": 3420, "patch_size": 14}},
    "Qwen2-VL": {"vision_config": {
        "depth": 32, "embed_dim": 1280, "mlp_ratio": 4, "hidden_size": 3584, "patch_size": 14}},
    "pixtral": {"vision_config": {
        "model_type": "pixtral", "hidden_size": 1024, "intermediate_size": 4096,
        "num_hidden_layers": 24, "num_attention_heads": 16, "head_dim": 64,
        "image_size": 1024, "patch_size": 16}},
    "11B-Vision": {"vision_config": {
        "hidden_size": 1280, "intermediate_size": 5120, "num_hidden_layers": 32,
        "num_global_layers": 8, "attention_heads": 16, "image_size": 560, "patch_size": 14,
        "max_num_tiles": 4, "vision_output_dim": 7680, "supported_aspect_ratios": [
            [1, 1], [1, 2], [1, 3], [1, 4], [2, 1], [2, 2], [3, 1], [4, 1]]}},
    "Step-3.7": {"vision_config": {
        "width": 1536, "layers": 47, "heads": 16, "image_size": 728, "patch_size": 14,
        "mlp_ratio": 8960 / 1536}},
    "llava-v1.6": {"vision_config": {
        "model_type": "clip_vision_model", "hidden_size": 1024, "intermediate_size": 4096,
        "num_hidden_layers": 24, "num_attention_heads": 16, "image_size": 336,
        "patch_size": 14}},
}  # fmt: skip  # keys the abridged rows lack, from the published configs
_MORE: dict[str, dict[str, Any]] = {  # families with no row: the configuration classes' own defaults, and what changes them
    "gemma3n_text": {}, "qwen2_moe": {}, "jamba": {}, "mamba": {}, "mamba2": {},
    "falcon_mamba": {}, "bamba": {"attn_layer_indices": [3, 9]}, "granitemoehybrid": {
        "layer_types": ["mamba"] * 5 + ["attention"] + ["mamba"] * 26},
    "falcon_h1": {}, "kimi_linear": {}, "longcat_flash": {}, "glm4_moe_lite": {}, "cohere2": {},
    "cohere": {"use_qk_norm": True}, "olmo2": {}, "olmo3": {}, "olmoe": {}, "granite": {},
    "granitemoe": {}, "granitemoeshared": {}, "smollm3": {}, "starcoder2": {}, "stablelm": {},
    "gpt2": {}, "gpt_neox": {}, "opt": {}, "bloom": {"hidden_size": 1024, "n_layer": 24,
    "n_head": 16}, "nemotron": {"num_key_value_heads": 8}, "exaone4": {}, "seed_oss": {},
    "ernie4_5": {}, "ernie4_5_moe": {}, "phimoe": {}, "whisper": {}, "bart": {}, "t5": {},
    "mistral3": {}, "gpt_bigcode": {}, "glm4": {}, "glm": {}, "hunyuan_v1_dense": {"head_dim": 128},
    "gemma4_text": {}, "ministral3": {}, "phi": {},
    "zamba2": {"num_mem_blocks": 2, "use_shared_attention_adapter": True, "layers_block_type":
        ["mamba"] * 6 + ["hybrid"] + ["mamba"] * 5 + ["hybrid"] + ["mamba"] * 41},
    "internlm3": {}, "arcee": {}, "olmo": {}, "mistral4": {}, "exaone_moe": {}, "dots1": {
        "n_shared_experts": 2, "n_routed_experts": 128, "num_experts_per_tok": 6,
        "first_k_dense_replace": 1},
}  # fmt: skip
_FROM_CLASS = frozenset(
    [
        "num_hidden_layers",
        "n_layer",
        "num_layers",
        "num_decoder_layers",
        "encoder_layers",
        "decoder_layers",
        "hidden_size",
        "n_embd",
        "d_model",
        "num_attention_heads",
        "n_head",
        "num_heads",
        "encoder_attention_heads",
        "decoder_attention_heads",
        "num_key_value_heads",
        "head_dim",
        "d_kv",
        "vocab_size",
        "intermediate_size",
        "d_ff",
        "ffn_dim",
        "encoder_ffn_dim",
        "decoder_ffn_dim",
        "max_position_embeddings",
        "n_positions",
        "max_source_positions",
        "max_target_positions",
        "model_max_length",
        "tie_word_embeddings",
        "num_experts",
        "num_local_experts",
        "n_routed_experts",
        "moe_num_experts",
        "num_experts_per_tok",
        "num_experts_per_token",
        "moe_k",
        "moe_topk",
        "n_shared_experts",
        "num_shared_experts",
        "moe_num_shared_experts",
        "moe_intermediate_size",
        "shared_expert_intermediate_size",
        "shared_intermediate_size",
        "expert_ffn_hidden_size",
        "ffn_hidden_size",
        "zero_expert_num",
        "q_lora_rank",
        "kv_lora_rank",
        "qk_rope_head_dim",
        "qk_nope_head_dim",
        "v_head_dim",
        "layer_types",
        "mlp_layer_types",
        "sliding_window",
        "linear_head_dim",
        "linear_num_heads",
        "mamba_d_ssm",
        "mamba_rms_norm",
        "n_mamba_heads",
        "first_k_dense_replace",
        "vision_config",
        "text_config",
    ]
)


def restore(row: dict[str, Any]) -> dict[str, Any]:
    """Return the row as a config.json would have it."""
    config = _complete(row)
    kind = config["model_type"]
    if kind == "falcon":
        config["num_kv_heads"] = config.pop("num_key_value_heads")
        config.pop("head_dim")
    if kind == "mpt":
        names = {"d_model": "hidden_size", "n_layers": "num_hidden_layers", "n_heads":
                 "num_attention_heads", "vocab_size": "vocab_size"}  # fmt: skip
        return {"model_type": kind} | {new: config[old] for new, old in names.items()}
    text_type = row.get("text_model_type") or _TEXT_TYPE.get(kind)
    return config if text_type is None else _nest(config, text_type)


def _complete(row: dict[str, Any]) -> dict[str, Any]:
    """Return the row's keys, with those that it lacks and its family or model needs."""
    config = {key: _expand(value) for key, value in row.items() if key not in _NOT_CONFIG}
    if "model_type" not in config:
        found = (kind for part, kind in _TYPE_BY_NAME if part in row["model"])
        config["model_type"] = next(found, "not stated")
    config |= next((more for part, more in _FAMILY_EXTRAS.items() if part in row["model"]), {})
    if "tie_word_embeddings" not in config and any(part in row["model"] for part in _TIED):
        config["tie_word_embeddings"] = True
    if config["model_type"] == "gemma3_text":
        del config["vision_config"]
    if config["model_type"] in ("mistral", "llava", "llava_next"):
        config.setdefault("sliding_window", None)  # stated as null, which the rows leave out
    return config


def _nest(config: dict[str, Any], text_type: str) -> dict[str, Any]:
    """Return the config with the text model's keys in a section of their own."""
    text = {key: value for key, value in config.items() if key not in _OUTER}
    outer = {key: config[key] for key in _OUTER if key in config}
    if "tie_word_embeddings" in text:
        outer["tie_word_embeddings"] = text["tie_word_embeddings"]
    return outer | {"text_config": {"model_type": text_type} | text}


def _expand(value: Any) -> Any:
    if isinstance(value, dict) and set(value) == {"len", "runs"}:
        return [item for item, times in value["runs"] for _ in range(times)]
    return value


def build_config(config: dict[str, Any]) -> PretrainedConfig:
    """Return the configuration object transformers makes of a config.json."""
    values = {k: v for k, v in config.items() if k != "quantization_config"}
    kind = values.pop("model_type")
    return AutoConfig.for_model(_UNKNOWN_TYPE.get(kind, kind), **values)


def model_class(config: PretrainedConfig) -> Any:
    """Return the class with a head that serves this configuration."""
    kind = type(config)
    names = ["SPEECH_SEQ_2_SEQ", "SEQ_TO_SEQ_CAUSAL_LM", "IMAGE_TEXT_TO_TEXT", "CAUSAL_LM"]
    if not config.is_encoder_decoder and getattr(config, "vision_config", None) is None:
        names.reverse()
    for name in names:
        table = getattr(transformers, f"MODEL_FOR_{name}_MAPPING", {})
        if kind in table:
            found = table[kind]
            return found[0] if isinstance(found, tuple | list) else found
    message = f"no class with a head for {kind.__name__}"
    raise LookupError(message)


def count(config: PretrainedConfig) -> tuple[str, int, int]:
    """Return the class name, the parameters, and those of towers and projectors."""
    found = model_class(config)
    with torch.device("meta"):
        model = found._from_config(config) if hasattr(found, "_from_config") else found(config)
    model.tie_weights()
    total, vision = 0, 0
    for name, parameter in model.named_parameters():
        total += parameter.numel()
        tower = name.split(".")[:3]
        if any(
            part in word
            for word in tower
            for part in ("visi", "visual", "projector", "audio", "image")
        ):
            vision += parameter.numel()
    return found.__name__, total, vision


def more_configs() -> dict[str, dict[str, Any]]:
    """Return a config for each family without a row, as its class would write it."""
    configs = {}
    for kind, changes in _MORE.items():
        written = AutoConfig.for_model(kind, **changes).to_dict()
        kept = {k: v for k, v in written.items() if k in _FROM_CLASS and not _is_empty(v)}
        configs[f"defaults of {kind}"] = {"model_type": kind} | kept | changes
    return configs


def _is_empty(value: Any) -> bool:
    return value is None or value == {}


def main() -> None:
    """Write both files."""
    rows = [json.loads(line) for line in Path(sys.argv[1]).read_text().splitlines()]
    configs = {row["model"]: restore(row) for row in rows} | more_configs()
    counts: dict[str, dict[str, Any]] = {}
    for model, config in configs.items():
        try:
            name, total, towers = count(build_config(config))
        except Exception as error:
            counts[model] = {"unknown": f"{type(error).__name__}: {error}"[:120]}
        else:
            counts[model] = {"class": name, "total": total, "towers": towers}
    lines = [json.dumps({"model": model, "config": config}) for model, config in configs.items()]
    (GOLDEN / "planner_configs.jsonl").write_text("\n".join(lines) + "\n")
    lines = [f"{json.dumps(model)}: {json.dumps(found)}" for model, found in counts.items()]
    (GOLDEN / "param_counts.json").write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main()
