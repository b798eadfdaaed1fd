"""Whatever is asked of the planner, it answers or refuses by an error we know."""

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nanoserve.capacity.plan_answer import answer
from nanoserve.capacity.plan_formulas import plan_formulas
from nanoserve.capacity.plan_json import plan_as_dict
from nanoserve.capacity.plan_query import PlanQuery
from nanoserve.capacity.plan_table import plan_lines
from nanoserve.capacity.workload import parse_workload
from nanoserve.errors import NanoserveError
from nanoserve.plan.formula import evaluate
from nanoserve.spec.gpu_names import find_gpus
from nanoserve.spec.gpu_spec import gpu_table
from nanoserve.spec.presets import presets
from nanoserve.spec.quant_spec import find_weight_format
from nanoserve.spec.read_model import planned_model_of, read_planned_model

PRESETS = list(presets())
ENGINES = ["vllm", "vllm@0.6", "vllm@0.21", "sglang", "tensorrt-llm", "llama.cpp", "nanoserve"]
FORMATS = [None, "fp8", "awq", "int8", "nf4", "Q4_K_M", "mxfp4"]
KV_FORMATS = ["auto", "fp8", "q8_0", "q4_0", "nvfp4", "fp8_per_token_head", "fp8_ds_mla"]
small = st.integers(-2, 70)
sizes = st.none() | st.integers(-1, 1 << 20)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=8,
)


@given(st.data())
@settings(max_examples=150, deadline=None)
def test_any_query_is_answered_or_refused(data: st.DataObject) -> None:
    """Text, JSON and formulas of every answer hold together."""
    draw = data.draw
    preset = draw(st.sampled_from(PRESETS))
    try:
        stored = draw(st.sampled_from(FORMATS))
        plan = answer(
            PlanQuery(
                model=planned_model_of(preset.model, preset.config, "config.json"),
                gpu=draw(st.sampled_from(gpu_table())),
                num_gpus=draw(small),
                engine=draw(st.sampled_from(ENGINES)),
                weight_format=None if stored is None else find_weight_format(stored),
                kv_cache_dtype=draw(st.sampled_from(KV_FORMATS)),
                tp=draw(st.none() | small),
                pp=draw(st.integers(0, 4)),
                max_model_len=draw(sizes),
                max_num_seqs=draw(sizes),
                max_num_batched_tokens=draw(sizes),
                utilization=draw(st.none() | st.floats(-0.1, 1.1)),
                is_eager=draw(st.booleans()),
            )
        )
    except NanoserveError:
        return
    assert plan_lines(plan)
    json.dumps(plan_as_dict(plan))
    assert all(evaluate(one.substituted) == one.value for one in plan_formulas(plan))
    inside = sum(line.size.mid for line in plan.lines if line.is_inside)
    assert inside == plan.stage.total_bytes
    assert plan.pool.low <= plan.pool.mid <= plan.pool.high


@given(st.sampled_from(PRESETS), st.text(max_size=12), json_values)
@settings(max_examples=150, deadline=None)
def test_a_config_with_one_key_of_anything(preset: Any, key: str, value: Any) -> None:
    """A key of the config replaced by any JSON gives a plan or names what is wrong."""
    keys = [*preset.config, key]
    changed = {**preset.config, keys[sum(map(ord, key)) % len(keys)]: value}
    with suppress(NanoserveError):
        model = planned_model_of(preset.model, changed, "config.json")
        answer(PlanQuery(model=model, gpu=gpu_table()[0]))


@given(st.binary(max_size=200))
@settings(
    max_examples=100,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
def test_any_bytes_as_a_config_or_a_workload(tmp_path: Path, content: bytes) -> None:
    """A file of anything is read or refused."""
    for name in ("config.json", "model.gguf", "lengths.csv", "lengths.jsonl"):
        path = tmp_path / name
        path.write_bytes(content)
        read = parse_workload if name.startswith("lengths") else read_planned_model
        with suppress(NanoserveError):
            read(str(path))


@given(st.text(max_size=60))
@settings(max_examples=200, deadline=None)
def test_any_text_as_a_gpu_or_a_workload(text: str) -> None:
    """Any spelling is understood or refused."""
    for read in (find_gpus, parse_workload):
        with suppress(NanoserveError):
            read(text)


@pytest.mark.parametrize("engine", ENGINES)
def test_every_preset_on_every_engine(engine: str) -> None:
    """No preset stops an engine's plan on any of a few cards but by an error we know."""
    for preset in PRESETS:
        model = planned_model_of(preset.model, preset.config, "config.json")
        for name in ("rtx 4090", "8x h200"):
            group = find_gpus(name)
            try:
                plan = answer(
                    PlanQuery(
                        model=model, gpu=group.gpu, num_gpus=group.num_gpus, tp=1, engine=engine
                    )
                )
            except NanoserveError:
                assert engine == "nanoserve"
                continue
            assert (plan.command is not None) == plan.can_start
            assert plan.can_start or not plan.fits
