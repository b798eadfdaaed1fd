"""Commands: each engine's own flags, and nothing that is its default."""

from dataclasses import replace

import pytest

from nanoserve.capacity.plan_answer import answer
from nanoserve.capacity.workload import parse_workload
from nanoserve.spec.quant_spec import find_weight_format
from tests.planner import planned

FP8 = find_weight_format("fp8")


@pytest.mark.parametrize(
    ("engine", "command"),
    [
        (
            "vllm",
            "vllm serve meta-llama/Llama-3.1-8B-Instruct --tensor-parallel-size 2 "
            "--pipeline-parallel-size 2 --max-model-len 4096 --max-num-seqs 32 "
            "--max-num-batched-tokens 4096 --gpu-memory-utilization 0.8 --kv-cache-dtype fp8 "
            "--quantization fp8 --enforce-eager",
        ),
        (
            "sglang",
            "python -m sglang.launch_server --model-path meta-llama/Llama-3.1-8B-Instruct "
            "--tp-size 2 --pp-size 2 --context-length 4096 --max-running-requests 32 "
            "--chunked-prefill-size 4096 --mem-fraction-static 0.8 --kv-cache-dtype fp8_e4m3 "
            "--quantization fp8 --disable-cuda-graph",
        ),
        (
            "tensorrt-llm",
            "trtllm-serve meta-llama/Llama-3.1-8B-Instruct --tp_size 2 --pp_size 2 "
            "--max_seq_len 4096 --max_batch_size 32 --max_num_tokens 4096 "
            "--kv_cache_free_gpu_memory_fraction 0.8 --kv_cache_dtype fp8",
        ),
    ],
)
def test_every_flag(engine: str, command: str) -> None:
    """What was asked is said in the engine's words."""
    plan = planned(
        "llama-3.1-8b",
        "4x h100",
        engine=engine,
        tp=2,
        pp=2,
        max_model_len=4096,
        max_num_seqs=32,
        max_num_batched_tokens=4096,
        utilization=0.8,
        kv_cache_dtype="fp8",
        weight_format=FP8,
        is_eager=True,
        workload=parse_workload("tokens=1024"),
    )

    assert plan.command == command


def test_defaults_are_left_out() -> None:
    """A plain plan gives length and slots alone."""
    plan = planned("llama-3.1-8b", "h100")

    assert plan.command == (
        "vllm serve meta-llama/Llama-3.1-8B-Instruct --max-model-len 131072 "
        f"--max-num-seqs {plan.fit.max_num_seqs}"
    )


def test_llama_cpp_has_one_context_for_all_slots() -> None:
    """The context is slots times the workload's length, and fits the pool."""
    plan = planned(
        "llama-3.1-8b", "rtx 4090", engine="llama.cpp", workload=parse_workload("tokens=4096")
    )
    slots = plan.fit.max_num_seqs

    assert f"--ctx-size {4096 * slots} --parallel {slots}" in (plan.command or "")
    assert plan.stage.cost.request_bytes(4096 * slots) <= plan.pool.mid


def test_our_own() -> None:
    """Our own server's flags."""
    plan = planned(engine="nanoserve", utilization=0.8, max_num_seqs=4, is_eager=True)

    assert plan.command == (
        "nanoserve serve meta-llama/Llama-3.1-8B-Instruct --max-model-len 2048 "
        "--max-num-seqs 4 --gpu-memory-utilization 0.8 --no-cuda-graphs"
    )


def test_formats_that_need_a_checkpoint_are_said() -> None:
    """AWQ is not made while loading: the note says to find such a checkpoint."""
    awq = planned(weight_format=find_weight_format("awq"))
    online = planned(weight_format=FP8)

    assert any("checkpoint of this model in awq-int4-g128" in note for note in awq.notes)
    assert awq.command is not None
    assert "--quantization" not in awq.command
    assert not any("checkpoint of this model" in note for note in online.notes)


def test_names_with_spaces_are_quoted() -> None:
    """A command can be pasted whatever the model is called."""
    plan = planned()
    renamed = answer(replace(plan.query, model=replace(plan.query.model, name="my model; rm")))

    assert "vllm serve 'my model; rm' --" in (renamed.command or "")


@pytest.mark.parametrize(
    ("engine", "start"),
    [
        ("vllm@0.2.7", "python -m vllm.entrypoints.openai.api_server --model meta-llama/"),
        ("vllm@0.5.4", "vllm serve meta-llama/"),
    ],
)
def test_a_release_is_started_as_it_could_be(engine: str, start: str) -> None:
    """Release 0.5.2 of vLLM gave it a command of its own."""
    plan = planned("llama-3.2-1b", "l4", engine=engine, max_model_len=4096)

    assert plan.command is not None
    assert plan.command.startswith(start)
