"""The metadata of a GGUF file to `ModelShape`, by way of the names config.json has.

So every family has one arithmetic. The tensors say what the metadata leaves out: the rows of
the embedding, whether the head is tied, which projections have a bias.

Source: gguf-py 0.19, constants.py; llama.cpp's convert_hf_to_gguf.py, which writes the keys.
"""

from typing import Any

from nanoserve.spec.config_fields import MAX_LAYERS, MAX_VOCAB, MAX_WIDTH, ConfigFields
from nanoserve.spec.gguf_fields import architecture_fields
from nanoserve.spec.gguf_file import GGUFFile
from nanoserve.spec.model_shape import ModelShape
from nanoserve.spec.read_shape import read_model_shape

_EMBEDDING = "token_embd.weight"
_FAMILIES = {  # llama.cpp's name to ours
    "llama": "llama",
    "qwen2": "qwen2",
    "qwen3": "qwen3",
    "qwen2moe": "qwen2_moe",
    "qwen3moe": "qwen3_moe",
    "qwen3next": "qwen3_next",
    "gemma": "gemma",
    "gemma2": "gemma2",
    "gemma3": "gemma3_text",
    "phi3": "phi3",
    "deepseek2": "deepseek_v2",
    "gpt-oss": "gpt_oss",
    "glm4moe": "glm4_moe",
    "granite": "granite",
    "cohere2": "cohere2",
    "olmo2": "olmo2",
    "smollm3": "smollm3",
    "seed_oss": "seed_oss",
    "minimax-m2": "minimax_m2",
}
ARCHITECTURES = tuple(_FAMILIES)
_NAMES = {
    "embedding_length": "hidden_size",
    "block_count": "num_hidden_layers",
    "feed_forward_length": "intermediate_size",
    "context_length": "max_position_embeddings",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.key_length": "head_dim",
    "attention.sliding_window": "sliding_window",
    "attention.q_lora_rank": "q_lora_rank",
    "attention.kv_lora_rank": "kv_lora_rank",
    "expert_count": "num_experts",
    "expert_used_count": "num_experts_per_tok",
    "expert_feed_forward_length": "moe_intermediate_size",
    "expert_shared_count": "n_shared_experts",
    "expert_shared_feed_forward_length": "shared_expert_intermediate_size",
    "leading_dense_block_count": "first_k_dense_replace",
    "full_attention_interval": "full_attention_interval",
    "ssm.conv_kernel": "linear_conv_kernel_dim",
    "ssm.state_size": "linear_key_head_dim",
    "ssm.group_count": "linear_num_key_heads",
    "ssm.time_step_rank": "linear_num_value_heads",
}
_NOT_READ = ("attention.shared_kv_layers", "moe_latent_size", "moe_every_n_layers")


def model_shape_of_gguf(file: GGUFFile) -> ModelShape:
    """Read the shape of a model from the header of its GGUF file.

    Raises:
        UnsupportedModelError: An unknown architecture, or a key whose value changes the
            arithmetic in a way that is not known; the key is named.
        CorruptFileError: A key is missing, of the wrong type, or out of bounds.
    """
    architecture, fields = architecture_fields(
        file, _FAMILIES, _NOT_READ, "this is not known here."
    )
    config = _common_config(fields)
    config |= _facts_of_tensors(file, fields)
    config["model_type"] = _family(architecture, config)
    if architecture == "deepseek2":
        config |= _latent_config(fields)
    if architecture == "qwen3next":
        config["linear_value_head_dim"] = _value_width(fields)
    return read_model_shape(config, str(file.path))


def _common_config(fields: ConfigFields) -> dict[str, Any]:
    """Return what metadata keys say, under the names of config.json."""
    config = {name: _one_value(fields, key) for key, name in _NAMES.items() if fields.has(key)}
    if fields.has("nextn_predict_layers"):  # counted among the blocks, and not decoder layers
        num_ahead = fields.size("nextn_predict_layers", MAX_LAYERS, low=0)
        config["num_hidden_layers"] = fields.size("block_count", MAX_LAYERS) - num_ahead
    if config.get("sliding_window") == 0:
        del config["sliding_window"]
    return config


def _one_value(fields: ConfigFields, key: str) -> Any:
    """Return a value; newer files may state it per layer, which must then be the same."""
    value = fields.raw(key)
    if not isinstance(value, list):
        return value
    if not value or any(item != value[0] for item in value):
        fields.fail_unsupported(key, "layers that differ are not known here.")
    return value[0]


def _facts_of_tensors(file: GGUFFile, fields: ConfigFields) -> dict[str, Any]:
    embedding = file.tensors.get(_EMBEDDING)
    if embedding is None or not embedding.shape or embedding.shape[0] > MAX_VOCAB:
        fields.fail_corrupt(f"there is no tensor {_EMBEDDING} of a possible size.")
    has_bias = "blk.0.attn_q.bias" in file.tensors
    return {
        "vocab_size": embedding.shape[0],
        "tie_word_embeddings": "output.weight" not in file.tensors,
        "attention_bias": has_bias,
        "mlp_bias": "blk.0.ffn_down.bias" in file.tensors,
        "use_qk_norm": "blk.0.attn_q_norm.weight" in file.tensors,
    }


def _family(architecture: str, config: dict[str, Any]) -> str:
    """Return the family; `llama` files are Mixtrals with experts, Mistrals with a window."""
    if architecture != "llama":
        return _FAMILIES[architecture]
    if config.get("num_experts"):
        return "mixtral"
    return "mistral" if "sliding_window" in config else "llama"


def _latent_config(fields: ConfigFields) -> dict[str, Any]:
    """Return the widths of latent attention; newer files keep the unabsorbed ones apart."""
    suffix = "_mla" if fields.has("attention.key_length_mla") else ""
    key_width = fields.size(f"attention.key_length{suffix}", MAX_WIDTH)
    rope_dim = fields.size("rope.dimension_count", MAX_WIDTH)
    if rope_dim >= key_width:
        fields.fail_corrupt(f"rope.dimension_count {rope_dim} is not under {key_width}.")
    config: dict[str, Any] = {
        "qk_rope_head_dim": rope_dim,
        "qk_nope_head_dim": key_width - rope_dim,
        "v_head_dim": fields.size(f"attention.value_length{suffix}", MAX_WIDTH),
        "num_key_value_heads": None,
    }
    if not fields.has("attention.q_lora_rank"):
        config["q_lora_rank"] = None
    return config


def _value_width(fields: ConfigFields) -> int:
    inner = fields.size("ssm.inner_size", MAX_WIDTH)
    heads = fields.size("ssm.time_step_rank", MAX_WIDTH)
    if inner % heads:
        fields.fail_corrupt(f"ssm.inner_size {inner} is not a multiple of {heads} heads.")
    return inner // heads
