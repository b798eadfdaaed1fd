"""Whatever a config or a GGUF header holds, the outcome is a shape that can be sized or a refusal."""

import json
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from nanoserve.capacity.kv_groups import group_cache
from nanoserve.errors import ModelError
from nanoserve.plan.kv_layout import CacheFormat, kv_request_bytes
from nanoserve.plan.sharding import plan_stages, valid_tp
from nanoserve.spec.family_index import FAMILY_NAMES
from nanoserve.spec.gguf_file import GGUFFile, GGUFTensor
from nanoserve.spec.gguf_shape import model_shape_of_gguf
from nanoserve.spec.model_shape import ModelShape
from nanoserve.spec.param_count import count_active_parameters, count_parameters
from nanoserve.spec.read_shape import read_model_shape

LINES = (Path(__file__).parents[1] / "golden" / "planner_configs.jsonl").read_text().splitlines()
BY_TYPE = {
    json.dumps(row["config"].get("model_type")): row["config"] for row in map(json.loads, LINES)
}
CONFIGS = list(BY_TYPE.values())
JUNK: st.SearchStrategy[Any] = st.one_of(
    st.sampled_from([None, True, False, -1, 0, 1, 3, 2**20, 2**70, -(2**70), 1.5, float("nan")]),
    st.sampled_from(
        ["", "x", "all", [], {}, [None], [1], [-1], ["full_attention"], {"a": 1}, [[]]]
    ),
    st.integers(1, 600),
)
GGUF_KEYS = (
    "block_count",
    "context_length",
    "embedding_length",
    "feed_forward_length",
    "attention.head_count",
    "attention.head_count_kv",
    "attention.key_length",
    "attention.value_length",
    "attention.key_length_mla",
    "attention.value_length_mla",
    "attention.kv_lora_rank",
    "attention.q_lora_rank",
    "attention.sliding_window",
    "expert_count",
    "expert_used_count",
    "expert_feed_forward_length",
    "leading_dense_block_count",
    "nextn_predict_layers",
    "rope.dimension_count",
    "ssm.inner_size",
    "ssm.time_step_rank",
    "ssm.state_size",
    "ssm.group_count",
)
ARCHITECTURES = ("llama", "qwen3moe", "deepseek2", "gemma3", "qwen3next", "gpt-oss", "glm4moe")


def size_everything(shape: ModelShape) -> None:
    """Use a shape in every way the planner does; the results hang together."""
    cache = CacheFormat()
    assert 0 <= count_active_parameters(shape).total <= count_parameters(shape).total
    steady = kv_request_bytes(shape, 1000, cache)
    assert 0 <= steady <= kv_request_bytes(shape, 1000, cache, "admitted")
    assert group_cache(shape, cache).request_bytes(1000, cache) >= 0
    assert valid_tp(shape, 8)[0] == 1
    assert sum(stage.num_layers for stage in plan_stages(shape, 1)) == len(shape.layers)


@st.composite
def mutated_configs(draw: st.DrawFn) -> dict[str, Any]:
    """A real config with some keys, nested ones too, replaced or left out."""
    config: dict[str, Any] = json.loads(json.dumps(draw(st.sampled_from(CONFIGS))))
    for _ in range(draw(st.integers(1, 3))):
        sections = [config, *(v for v in config.values() if isinstance(v, dict) and v)]
        section = draw(st.sampled_from(sections))
        key = draw(st.sampled_from(sorted(section)))
        if draw(st.booleans()):
            section[key] = draw(JUNK)
        elif len(section) > 1:
            del section[key]
    return config


@given(mutated_configs())
def test_a_mutated_config_is_sized_or_refused(config: dict[str, Any]) -> None:
    """No value under any key gives anything but a usable shape or a ModelError."""
    try:
        shape = read_model_shape(config, "config.json")
    except ModelError:
        return
    size_everything(shape)


@given(st.sampled_from(sorted(FAMILY_NAMES)), st.dictionaries(st.text(max_size=8), JUNK))
def test_a_bare_family_is_sized_or_refused(kind: str, config: dict[str, Any]) -> None:
    """A config that says little more than its family is refused by a missing key."""
    try:
        shape = read_model_shape({**config, "model_type": kind}, "config.json")
    except ModelError:
        return
    size_everything(shape)


@given(
    st.sampled_from(ARCHITECTURES),
    st.dictionaries(st.sampled_from(GGUF_KEYS), st.integers(1, 64) | JUNK),
)
def test_any_gguf_metadata_is_sized_or_refused(architecture: str, values: dict[str, Any]) -> None:
    """A GGUF header likewise."""
    metadata = {f"{architecture}.{key}": value for key, value in values.items()}
    table = GGUFTensor("token_embd.weight", (32, 64), "F16", 0, 4096)
    file = GGUFFile(
        Path("x.gguf"), metadata | {"general.architecture": architecture}, {table.name: table}
    )
    try:
        shape = model_shape_of_gguf(file)
    except ModelError:
        return
    size_everything(shape)
