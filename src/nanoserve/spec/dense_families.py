"""Dense decoders with grouped-query attention and a gated MLP: a table of what differs.

Source: the modelling files of transformers 5.24; the layers that slide, of vLLM 0.32.
"""

from collections.abc import Mapping

from nanoserve.spec.family import AttentionStyle, Family, dense_mlp, grouped_query

_TIED = {"tie_word_embeddings": True}
_BY_KEY = AttentionStyle(qkv_bias="attention_bias", output_bias="attention_bias")
_QWEN2 = Family(
    grouped_query(AttentionStyle(qkv_bias=True, pattern="qwen")),
    dense_mlp(),
    defaults={"num_key_value_heads": 32, "sliding_window": 4096},
)
_QWEN3_STYLE = AttentionStyle(
    qkv_bias="attention_bias", output_bias="attention_bias", qk_norm="head", pattern="qwen"
)
_LLAMA = Family(grouped_query(_BY_KEY), dense_mlp(bias="mlp_bias"))
_MISTRAL = Family(
    grouped_query(AttentionStyle(pattern="all")),
    dense_mlp(),
    defaults={"num_key_value_heads": 8, "sliding_window": 4096},
)
_COHERE = {"tie_word_embeddings": True, "logit_scale": 0.0625}

DENSE_FAMILIES: Mapping[str, Family] = {
    "llama": _LLAMA,
    "granite": _LLAMA,
    "smollm3": Family(
        grouped_query(_BY_KEY),
        dense_mlp(bias="mlp_bias"),
        defaults={"num_key_value_heads": 4} | _TIED,
    ),
    "internlm3": _LLAMA,
    "arcee": Family(grouped_query(_BY_KEY), dense_mlp(is_gated=False, bias="mlp_bias")),
    "olmo": Family(grouped_query(_BY_KEY), dense_mlp(), num_norms=0, has_final_norm=False),
    "baichuan": Family(grouped_query(AttentionStyle()), dense_mlp()),
    "internlm": Family(
        grouped_query(AttentionStyle(qkv_bias="bias", output_bias="bias")),
        dense_mlp(),
        defaults={"bias": True},
    ),
    "mistral": _MISTRAL,
    "ministral3": Family(
        grouped_query(AttentionStyle(pattern="all")),
        dense_mlp(),
        defaults={"num_key_value_heads": 8, "head_dim": 128},
    ),
    "qwen2": _QWEN2,
    "qwen2_vl_text": _QWEN2,
    "qwen2_5_vl_text": _QWEN2,
    "mimo": _QWEN2,
    "qwen3": Family(
        grouped_query(_QWEN3_STYLE),
        dense_mlp(),
        defaults={"num_key_value_heads": 32, "head_dim": 128, "sliding_window": 4096},
    ),
    "qwen3_vl_text": Family(
        grouped_query(_QWEN3_STYLE),
        dense_mlp(),
        defaults={"num_key_value_heads": 32, "head_dim": 128},
    ),
    "phi3": Family(grouped_query(AttentionStyle(pattern="all")), dense_mlp()),
    "phi3_v": Family(grouped_query(AttentionStyle(pattern="all")), dense_mlp()),
    "gemma": Family(
        grouped_query(_BY_KEY),
        dense_mlp(),
        defaults={"num_key_value_heads": 16, "head_dim": 256} | _TIED,
    ),
    "gemma2": Family(
        grouped_query(
            AttentionStyle(qkv_bias="attention_bias", output_bias="attention_bias", pattern=2)
        ),
        dense_mlp(),
        num_norms=4,
        defaults={"num_key_value_heads": 4, "head_dim": 256, "sliding_window": 4096} | _TIED,
    ),
    "gemma3_text": Family(
        grouped_query(
            AttentionStyle(
                qkv_bias="attention_bias",
                output_bias="attention_bias",
                qk_norm="head",
                pattern=6,
            )
        ),
        dense_mlp(),
        num_norms=4,
        defaults={
            "num_attention_heads": 8,
            "num_key_value_heads": 4,
            "head_dim": 256,
            "sliding_window": 4096,
            "vocab_size": 262_208,
            "max_position_embeddings": 131_072,
        }
        | _TIED,
    ),
    "cohere": Family(
        grouped_query(
            AttentionStyle(
                qkv_bias="attention_bias",
                output_bias="attention_bias",
                qk_norm="heads",
                qk_norm_key="use_qk_norm",
            )
        ),
        dense_mlp(),
        num_norms=1,
        defaults=_COHERE,
    ),
    "cohere2": Family(
        grouped_query(
            AttentionStyle(qkv_bias="attention_bias", output_bias="attention_bias", pattern=4)
        ),
        dense_mlp(),
        num_norms=1,
        defaults={"sliding_window": 4096} | _COHERE,
    ),
    "olmo2": Family(
        grouped_query(
            AttentionStyle(qkv_bias="attention_bias", output_bias="attention_bias", qk_norm="heads")
        ),
        dense_mlp(),
    ),
    "olmo3": Family(
        grouped_query(
            AttentionStyle(
                qkv_bias="attention_bias",
                output_bias="attention_bias",
                qk_norm="heads",
                pattern=4,
            )
        ),
        dense_mlp(),
        defaults={"sliding_window": 4096},
    ),
    "exaone4": Family(
        grouped_query(AttentionStyle(qk_norm="head", pattern=4)),
        dense_mlp(),
    ),
    "seed_oss": Family(
        grouped_query(AttentionStyle(qkv_bias="attention_bias", output_bias="attention_out_bias")),
        dense_mlp(bias="mlp_bias"),
        defaults={"attention_bias": True, "num_key_value_heads": 8, "head_dim": 128},
    ),
    "glm4": Family(
        grouped_query(AttentionStyle(qkv_bias="attention_bias")),
        dense_mlp(),
        num_norms=4,
        defaults={"num_key_value_heads": 2, "head_dim": 128, "attention_bias": True},
    ),
    "chatglm": Family(
        grouped_query(AttentionStyle(qkv_bias="add_qkv_bias", output_bias="add_bias_linear")),
        dense_mlp(bias="add_bias_linear"),
    ),
    "glm": Family(
        grouped_query(AttentionStyle(qkv_bias="attention_bias")),
        dense_mlp(),
        defaults={"num_key_value_heads": 2, "head_dim": 128, "attention_bias": True},
    ),
    "ernie4_5": Family(
        grouped_query(AttentionStyle(qkv_bias="use_bias", output_bias="use_bias")),
        dense_mlp(bias="use_bias"),
        defaults={"num_key_value_heads": 2, "head_dim": 128} | _TIED,
    ),
    "hunyuan_v1_dense": Family(
        grouped_query(
            AttentionStyle(qkv_bias="attention_bias", output_bias="attention_bias", qk_norm="head")
        ),
        dense_mlp(),
    ),
    "stablelm": Family(
        grouped_query(AttentionStyle(qkv_bias="use_qkv_bias")),
        dense_mlp(),
        has_norm_bias=True,
    ),
}
