"""Start-up logs of five engines over their versions, explained.

The excerpts in `tests/logs` are written in each engine's format with figures from public
issues; nanoserve's were printed by it.
"""

from pathlib import Path

import pytest

from nanoserve.explain.explain import Explanation, explain_log
from nanoserve.explain.log_text import decode_log

LOGS = Path(__file__).parents[2] / "logs"

# file: engine, version, outcome, exit code, number of the quoted line, first change
EXPECTED: dict[str, tuple[str, str | None, str, int, int | None, str | None]] = {
    "vllm_0.2.6_no_blocks": ("vllm", None, "no room for pool", 4, 8, None),
    "vllm_0.4_too_long": (
        "vllm",
        "0.4.1",
        "request larger than pool",
        4,
        7,
        "--max-model-len 5296",
    ),
    "vllm_0.6.5_two_ranks_healthy": (
        "vllm",
        "0.6.4.post1",
        "ok",
        0,
        None,
        "--gpu-memory-utilization 0.92",
    ),
    "vllm_0.7_graph_oom_ray": (
        "vllm",
        None,
        "capture out of headroom",
        4,
        9,
        "--gpu-memory-utilization 0.97",
    ),
    "vllm_0.9.1_crowded": (
        "vllm",
        "0.9.1",
        "free memory below utilization",
        4,
        2,
        "stop other processes on the GPU",
    ),
    "vllm_omni_stage_crowded": (
        "vllm",
        None,
        "free memory below utilization",
        4,
        3,
        "stop other processes on the GPU",
    ),
    "vllm_0.11_too_long_colours": (
        "vllm",
        "0.11.0",
        "request larger than pool",
        4,
        7,
        "--max-model-len 32912",
    ),
    "vllm_0.11_sampler_oom": (
        "vllm",
        "0.11.0",
        "capture out of headroom",
        4,
        4,
        "--max-num-seqs 128",
    ),
    "vllm_0.18_healthy_announced": ("vllm", "0.18.0", "ok", 0, None, "--kv-cache-dtype fp8"),
    "vllm_0.25_two_ranks_healthy": ("vllm", "0.25.1", "ok", 0, None, "--kv-cache-dtype fp8"),
    "vllm_0.26_runner_v2_graph_oom": (
        "vllm",
        "0.26.0",
        "capture out of headroom",
        4,
        9,
        "--gpu-memory-utilization 0.91",
    ),
    "vllm_0.27_estimate_ate_the_pool": (
        "vllm",
        "0.27.0",
        "no room for pool",
        4,
        6,
        "--enforce-eager",
    ),
    "vllm_weights_oom_k8s": ("vllm", None, "weights do not fit", 4, 5, None),
    "vllm_others_hold_the_card": (
        "vllm",
        "0.12.0",
        "others hold the memory",
        4,
        3,
        "stop other processes on the GPU",
    ),
    "vllm_no_kernel": ("vllm", "0.8.5", "driver", 3, 6, None),
    "vllm_gated_model": ("vllm", "0.10.1.1", "model not found", 3, 4, None),
    "vllm_other_traceback": ("vllm", "0.13.0", "other error", 3, 5, None),
    "vllm_killed_worker": ("vllm", "0.19.0", "host memory", 4, 4, None),
    "vllm_serving_oom": (
        "vllm",
        "0.9.0",
        "out of memory while serving",
        4,
        9,
        "--gpu-memory-utilization 0.88",
    ),
    "sglang_0.4_no_room": ("sglang", None, "no room for pool", 4, 8, "--mem-fraction-static 0.89"),
    "sglang_0.5_no_room_new_words": ("sglang", None, "no room for pool", 4, 4, "--tp-size 2"),
    "sglang_graph_oom": (
        "sglang",
        None,
        "capture out of headroom",
        4,
        10,
        "--mem-fraction-static 0.89",
    ),
    "sglang_graph_failed_gloo": ("sglang", None, "other error", 3, 6, None),
    "sglang_healthy_much_left": ("sglang", None, "ok", 0, None, "--mem-fraction-static 0.88"),
    "tensorrt_0.5_malloc": ("tensorrt-llm", None, "weights do not fit", 4, 2, None),
    "tensorrt_0.8_healthy": ("tensorrt-llm", None, "ok", 0, None, None),
    "tensorrt_0.12_little_left": ("tensorrt-llm", None, "ok", 0, None, "--max_batch_size 1"),
    "tensorrt_1.0_healthy": ("tensorrt-llm", "1.0.0", "ok", 0, None, "--max_batch_size 1683"),
    "llamacpp_weights": ("llama.cpp", None, "weights do not fit", 4, 11, "--n-gpu-layers 48"),
    "llamacpp_kv": ("llama.cpp", None, "pool does not fit", 4, 9, "--ctx-size 75008"),
    "llamacpp_compute": ("llama.cpp", "6795", "step does not fit", 4, 13, "--ubatch-size 512"),
    "llamacpp_old_two_cards": ("llama.cpp", None, "ok", 0, None, None),
    "vllm_ascend_pool_oom": (
        "vllm",
        None,
        "pool does not fit",
        4,
        6,
        "--gpu-memory-utilization 0.90",
    ),
    "ollama_journal_healthy": ("llama.cpp", None, "ok", 0, None, None),
    "ollama_weights": ("llama.cpp", None, "weights do not fit", 4, 4, None),
    "nanoserve_healthy": ("nanoserve", "0.1.0", "ok", 0, None, None),
    "nanoserve_long": (
        "nanoserve",
        "0.1.0",
        "request larger than pool",
        4,
        5,
        "--max-model-len 2912",
    ),
    "nanoserve_blocks": (
        "nanoserve",
        "0.1.0",
        "request larger than pool",
        4,
        5,
        "--max-model-len 160",
    ),
    "nanoserve_seqs": ("nanoserve", "0.1.0", "no room for pool", 4, 5, "--max-num-seqs 485"),
    "nanoserve_capture": ("nanoserve", "0.1.0", "option", 3, 5, "--warm-width 128"),
    "nanoserve_option": ("nanoserve", None, "option", 3, 1, None),
    "nanoserve_nomodel": ("nanoserve", "0.1.0", "model not found", 3, 3, None),
    "nanoserve_port": ("nanoserve", "0.1.0", "port in use", 3, 2, None),
}


def explained(name: str) -> Explanation:
    return explain_log(decode_log((LOGS / f"{name}.log").read_bytes()))


@pytest.mark.parametrize("name", EXPECTED)
def test_an_excerpt_is_explained(name: str) -> None:
    """Engine, version, outcome, exit code, quoted line and first change are right."""
    explanation = explained(name)
    first = explanation.fixes[0].change if explanation.fixes else None
    number = None if explanation.quote is None else explanation.quote.number

    assert (
        explanation.boot.engine,
        explanation.boot.version,
        explanation.outcome.kind,
        explanation.exit_code,
        number,
        first,
    ) == EXPECTED[name]


def test_every_excerpt_is_expected() -> None:
    """No file lies there unread."""
    assert {path.stem for path in LOGS.glob("*.log")} == set(EXPECTED)


@pytest.mark.parametrize("name", EXPECTED)
@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-16-le", "utf-16-be"])
def test_an_excerpt_in_another_encoding(name: str, encoding: str) -> None:
    """Windows' redirections read the same, line ends included."""
    text = (LOGS / f"{name}.log").read_text(encoding="utf-8")
    content = text.replace("\n", "\r\n").encode(encoding)

    assert explain_log(decode_log(content)).as_dict() == explained(name).as_dict()


@pytest.mark.parametrize(
    ("name", "lines"),
    [
        (
            "vllm_0.6.5_two_ranks_healthy",
            {
                "total": 6,
                "reserve": None,
                "weights": 7,
                "activations": 7,
                "kv pool": 7,
                "capture": 11,
            },
        ),
        ("sglang_0.4_no_room", {"free at start": 2, "weights": 3, "kv pool": None}),
        ("nanoserve_healthy", {"weights": 9, "kv pool": 11, "total": 14}),
    ],
)
def test_each_budget_line_names_its_line_of_the_log(name: str, lines: dict[str, int]) -> None:
    """A reader can look each figure up."""
    found = {one.row.name: one.line_number for one in explained(name).rows}

    assert {line: found[line] for line in lines} == lines


def test_two_cards_are_summed() -> None:
    """The first versions of llama.cpp named weights' buffers without the word model."""
    boot = explained("llamacpp_old_two_cards").boot

    assert boot.weight_bytes == round((12633.25 + 8652.0) * 1024**2)
    assert (boot.num_device_layers, boot.num_layers) == (78, 81)
