"""`nanoserve plan` as a shell sees it: output, exit codes, refusals."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from nanoserve.cli import main as command_line
from nanoserve.cli import plan as plan_command
from nanoserve.cli.plan_options import PlanOptions
from nanoserve.errors import NanoserveError
from nanoserve.plan.formula import evaluate
from nanoserve.spec.gpu_names import GpuGroup, find_gpu
from nanoserve.spec.gpu_spec import custom_gpu
from nanoserve.units import GIB
from tests.shape_cases import TINY


def run(*flags: str) -> Result:
    """Run the command."""
    return CliRunner().invoke(command_line.app, ["plan", *flags])


def refusal(*flags: str) -> str:
    """Return the message of a command that is refused by an error we know."""
    error = run(*flags).exception
    assert isinstance(error, NanoserveError), error
    return str(error)


def test_a_plan_that_fits() -> None:
    """The table has the budget's lines in order, the verdict and the command; exit code 0."""
    result = run("llama-3.1-8b", "--gpu", "h100")

    assert result.exit_code == 0, result.output
    order = ["total", "- kept back", "- weights", "- activations", "= KV pool", "serves:"]
    positions = [result.output.index(word) for word in order]
    assert positions == sorted(positions)
    assert "vllm serve meta-llama/Llama-3.1-8B-Instruct --max-model-len 131072" in result.output


def test_a_plan_that_does_not_fit() -> None:
    """Exit code 4, and the reason."""
    result = run("llama-3.1-70b", "--gpu", "h100")

    assert result.exit_code == 4
    order = ["= KV pool", "does not load: the weights take 131.4", "what would serve"]
    positions = [result.output.index(word) for word in order]
    assert positions == sorted(positions)


@pytest.mark.parametrize(
    ("model", "flags"),
    [
        ("llama-3.1-70b", ["--gpu", "h100"]),
        ("qwen3-next", ["--gpu", "rtx 4060"]),
        ("llama-3.1-8b", ["--gpu-mem", "16.5GiB"]),
        ("llama-3.1-8b", ["--gpu", "rtx 4060", "--engine", "sglang"]),
    ],
)
def test_without_a_pool_nothing_is_said_of_requests(model: str, flags: list[str]) -> None:
    """No command that cannot work, no speed, no length that nothing was planned with."""
    text = run(model, *flags).output
    found = json.loads(run(model, *flags, "--json").output)

    assert "= KV pool" in text
    for word in ("--max-model-len", "requests of", "decode step", "prefill of", "max_num_seqs"):
        assert word not in text.partition("what would serve")[0], word
    assert (found["command"], found["capacity"], found["speed"]) == (None, None, None)
    assert found["memory"]["pool_bytes"]["likely"] <= 0
    assert not any("decode" in formula["name"] for formula in found["formulas"])
    assert found["remedies"]
    assert all(remedy["command"] for remedy in found["remedies"])


def test_changes_that_the_engine_refuses_are_not_offered() -> None:
    """Our own server takes neither other weights nor several GPUs: the plan ends all the same."""
    result = run("llama-3.1-8b", "--gpu", "rtx 4060", "--engine", "nanoserve")

    assert result.exit_code == 4
    assert "does not load: the weights take 14.96 GiB" in result.output
    assert "--quantization" not in result.output
    assert "--num-gpus" not in result.output


def test_a_length_that_does_not_fit_has_no_command() -> None:
    """The engine refuses to start with it; the pool and its speed are still said."""
    flags = ("llama-3.1-8b", "--gpu", "rtx 4090", "--max-model-len", "131072")
    text, found = run(*flags).output, json.loads(run(*flags, "--json").output)

    assert "loads, cannot serve: one request of 131,072 tokens takes 16.00 GiB" in text
    assert "vllm serve" not in text
    assert found["command"] is None
    assert found["capacity"]["tokens"]["likely"] > 0


def test_a_length_not_worth_serving_is_not_chosen() -> None:
    """Where less than 1,024 tokens fit, the plan says so rather than serve a few."""
    text = run("llama-3.1-8b", "--gpu-mem", "17.1GiB").output

    assert "loads, cannot serve: one request of 131,072 tokens takes 16.00 GiB" in text
    assert "planned with" not in text


def test_json() -> None:
    """Bytes are integers, ranges have three figures, formulas evaluate."""
    found: dict[str, Any] = json.loads(run("gpt-oss-20b", "--gpu", "h100", "--json").output)

    assert found["verdict"] == "serves"
    assert found["fits"] is True
    inside = [part for part in found["memory"]["parts"] if part["is_inside"]]
    assert sum(part["bytes"]["likely"] for part in inside) == found["memory"]["total_bytes"]
    assert found["kv"]["bytes_per_token"] == 24_576
    assert {"name", "expression", "substituted", "value", "unit"} == set(found["formulas"][0])


def test_explain() -> None:
    """Formulas follow the table, with numbers in the place of symbols."""
    output = run("llama-3.1-8b", "--gpu", "h100", "--explain").output

    assert "layers * (max(1, num_kv_heads // tp) * (head_dim + v_head_dim) * itemsize)" in output
    assert "32 * (max(1, 8 // 1) * (128 + 128) * 2)" in output
    assert "= 131,072 bytes" in output
    assert "num_key_value_heads = 8" in output


@pytest.mark.parametrize("model", ["llama-3.1-8b", "gemma-3-27b", "qwen3-next", "deepseek-v3"])
def test_printed_formulas_evaluate_to_what_is_printed(model: str) -> None:
    """Whoever pastes a line of numbers into Python gets the figure of the next line."""
    lines = run(model, "--gpu", "8x b300", "--tp", "4", "--explain").output.splitlines()
    checked = 0
    for symbols, numbers, result in zip(lines, lines[1:], lines[2:], strict=False):
        if all(line.startswith("  = ") for line in (symbols, numbers, result)):
            figure = float(result[4:].split()[0].replace(",", ""))
            value = evaluate(numbers[4:])
            scale = 1000 if result.endswith(" ms") else 1
            assert scale * value == pytest.approx(figure, abs=0.0006), numbers
            checked += 1

    assert checked >= 15


@pytest.mark.parametrize(
    ("flags", "tp", "pp"),
    [
        (["--gpu", "2x h100"], 2, 1),
        (["--gpu", "h100", "--num-gpus", "2"], 2, 1),
        (["--gpu", "h100", "--tp", "2"], 2, 1),
        (["--gpu", "4x h100", "--pp", "2"], 2, 2),
        (["--gpu", "h100", "--tp", "2", "--pp", "2"], 2, 2),
    ],
)
def test_ways_to_say_how_many(flags: list[str], tp: int, pp: int) -> None:
    """GPUs are counted in the name, by a flag, or by the ranks."""
    found = json.loads(run("llama-3.1-70b", *flags, "--json").output)

    assert (found["tensor_parallel"], found["pipeline_parallel"]) == (tp, pp)


def test_every_flag_reaches_the_plan() -> None:
    """Each option changes what is planned."""
    flags = "--quantization fp8 --kv-cache-dtype fp8 --max-model-len 4096 --max-num-seqs 64"
    more = "--max-num-batched-tokens 4096 --gpu-memory-utilization 0.8 --enforce-eager"
    stated = "--gpu-mem 40GiB --bandwidth 1000 --tflops 100 --engine vllm@0.21"
    words = [*flags.split(), *more.split(), *stated.split(), "--workload", "prompt=100,output=50"]
    found = json.loads(run("llama-3.1-8b", "--gpu", "h100", *words, "--json").output)

    assert found["memory"]["total_bytes"] == 40 * GIB
    assert (found["weight_format"], found["kv_format"]) == ("fp8", "fp8")
    assert found["capacity"]["max_model_len"] == 4096
    assert found["capacity"]["sized_for_max_num_seqs"] == 64
    assert found["capacity"]["workload"]["p95_tokens"] == 150
    assert found["gpu_memory_utilization"] == 0.8
    assert "--quantization fp8" in found["command"]
    assert "--enforce-eager" in found["command"]


def test_a_gpu_that_nobody_listed() -> None:
    """Memory alone is enough; what follows from bandwidth is said to be unknown."""
    result = run("qwen3-0.6b", "--gpu-mem", "12GiB")

    assert result.exit_code == 0
    assert "unknown  the bandwidth is not known: state --bandwidth" in result.output


@pytest.mark.parametrize(
    ("flags", "word"),
    [
        (["llama-3.1-8b", "--gpu", "h900"], "No GPU is known"),
        (["llama-9b", "--gpu", "h100"], "Nearest: "),
        (["llama-3.1-8b", "--gpu", "h100", "--tp", "3"], "--tp 3 does not divide"),
        (["llama-3.1-8b", "--gpu", "h100", "--quantization", "int3"], "No weight format"),
        (["llama-3.1-8b", "--gpu", "h100", "--kv-cache-dtype", "fp3"], "--kv-cache-dtype 'fp3'"),
        (["llama-3.1-8b", "--gpu", "h100", "--gpu-mem", "lots"], "--gpu-mem: 'lots'"),
        (["llama-3.1-8b", "--gpu", "h100", "--bandwidth", "-1"], "--bandwidth must be"),
        (["llama-3.1-8b", "--gpu", "h100", "--workload", "x"], "is not a workload"),
        (["llama-3.1-8b", "--gpu", "h100", "--workload", "~nobody-here"], "is not a workload"),
        (["~nobody-here/model", "--gpu", "h100"], "There is no file, folder or preset"),
        (["llama-3.1-8b", "--gpu", "2x h100", "--num-gpus", "4"], "give one of them"),
        (["gemma-3-27b", "--gpu", "h100", "--engine", "nanoserve"], "architecture"),
        (["llama-3.1-8b", "--gpu", "2x h100", "--engine", "nanoserve"], "on one GPU"),
        (["llama-3.1-8b", "--gpu", "", "--engine", "vllm"], "name a GPU, as in --gpu h100"),
        (["llama-3.1-8b", "--gpu", "2x cpu"], "this one machine's memory"),
        (["llama-3.1-8b", "--gpu", "h100", "--engine", ""], "--engine ''"),
        (["llama-3.1-8b", "--gpu", "h100", "--engine", "vllm@99"], "up to 0.33"),
        (["llama-3.1-8b", "--gpu", "cpu", "--engine", "vllm"], "planned on GPUs alone"),
        (["llama-3.1-8b", "--gpu", "2x h100", "--engine", "llama.cpp", "--tp", "2"], "row and"),
        (
            ["llama-3.1-8b", "--gpu", "h100", "--engine", "nanoserve", "--quantization", "awq"],
            "int8, int4",
        ),
        (
            ["llama-3.1-8b", "--gpu", "h100", "--engine", "nanoserve", "--quantization", "int4"],
            "--gpu cpu",
        ),
        (
            ["llama-3.1-8b", "--gpu", "h100", "--engine", "nanoserve", "--kv-cache-dtype", "fp8"],
            "--gpu cpu",
        ),
        ([], "Give a model"),
    ],
)
def test_refusals(flags: list[str], word: str) -> None:
    """What is refused is an error we know, which says what to change."""
    assert word in refusal(*flags)


@pytest.mark.parametrize(
    ("content", "word"),
    [
        ("not json", "not JSON"),
        ("[]", "not an object"),
        ("{}", "model_type"),
        (json.dumps(TINY | {"model_type": "mystery_7"}), "model_type mystery_7"),
        (json.dumps(TINY | {"hidden_size": -64}), "hidden_size is -64"),
        (json.dumps(TINY | {"num_hidden_layers": 10**12}), "num_hidden_layers"),
        (json.dumps({k: v for k, v in TINY.items() if k != "vocab_size"}), "vocab_size"),
        (json.dumps(TINY | {"quantization_config": {"quant_method": "magic"}}), "quant_method"),
        (json.dumps(TINY | {"quantization_config": {"quant_method": "gptq", "bits": 99}}), "bits"),
    ],
)
def test_configs_that_cannot_be_read(tmp_path: Path, content: str, word: str) -> None:
    """The file and the key are named."""
    path = tmp_path / "config.json"
    path.write_text(content)

    assert word in refusal(str(path), "--gpu", "h100")


def test_this_machine_without_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without --gpu and without a GPU the memory is planned, for our own server."""
    monkeypatch.setattr(plan_command, "machine_gpus", lambda: None)
    host = replace(custom_gpu(16 * GIB), compute_capability="host")
    monkeypatch.setattr(plan_command, "machine_memory", lambda: host)

    own = run("qwen3-0.6b").output
    assert "as nanoserve would divide it" in own
    assert "memory of this machine" in own
    assert "kept back" not in own  # a machine's memory is held by demand
    assert "fp32" in own  # no native bfloat16 was stated
    assert "as llama.cpp would divide it" in run("gemma-3-1b").output


def test_this_machine_with_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without --gpu the GPUs that are there are planned."""
    group = GpuGroup(2, find_gpu("rtx 3090"))
    monkeypatch.setattr(plan_command, "machine_gpus", lambda: group)

    assert "on 2 x RTX 3090, as vLLM" in run("llama-3.1-8b").output


def test_lists() -> None:
    """Models and GPUs that are known by name."""
    models, gpus = run("--list-models").output, run("--list-gpus").output

    assert "openai/gpt-oss-120b" in models
    assert "llama-3.1-8b" in models
    assert "H100 SXM" in gpus


def test_options_have_help() -> None:
    """Every field of the options says what it means."""
    text = run("--help").output

    for name in PlanOptions.__slots__:
        assert f"--{name.replace('_', '-')}" in text


ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "planner.md").read_text()


def test_the_pages_example_is_what_is_printed() -> None:
    """docs/planner.md shows the output of its own command."""
    command, _, shown = PAGE.partition("$ nanoserve plan ")[2].partition("\n")

    assert run(*command.split()).output.strip() == shown.partition("```")[0].strip()


def test_the_pages_own_example_is_what_is_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    """So does the plan of our own server on a CPU, whatever machine this is."""
    host = replace(
        custom_gpu(64 * GIB),
        name="this machine's memory",
        compute_capability="host",
        host_has=frozenset({"bf16", "native"}),
    )
    monkeypatch.setattr(plan_command, "machine_gpus", lambda: None)
    monkeypatch.setattr(plan_command, "machine_memory", lambda: host)
    section = PAGE.partition("## Our own server")[2]
    command, _, shown = section.partition("$ nanoserve plan ")[2].partition("\n")

    assert run(*command.split()).output.strip() == shown.partition("```")[0].strip()


def test_the_pages_verdict_of_our_own_server_is_what_is_printed() -> None:
    """Its slots first, as the command below has them, then what fits."""
    output = run("llama-3.1-8b", "--gpu", "h100", "--engine", "nanoserve").output
    verdict = next(line for line in output.splitlines() if line.startswith("serves: "))

    assert f"`{verdict}`" in PAGE
    assert "--max-num-seqs 8\n" in output


def test_the_pages_table_has_the_right_bytes() -> None:
    """Bytes of a further token of each family in docs/planner.md are the planner's."""
    rows = [line.split(" | ") for line in PAGE.partition("Families that")[2].splitlines()]
    found = {row[0].strip("| "): row[2] for row in rows if len(row) == 4 and "layers" in row[1]}
    found |= {row[0].strip("| "): row[2] for row in rows if row[0].startswith("| Mixtral")}

    assert len(found) == 8
    for model, cell in found.items():
        name = {"Qwen3-Next-80B": "qwen3-next"}.get(model, model)
        plan = json.loads(run(name, "--gpu", "8x b300", "--tp", "1", "--json").output)
        assert f"{plan['kv']['bytes_per_token']:,}" == cell.split(" (")[0], model


def test_the_readme_has_the_same_table() -> None:
    """The families that others miss stand on the first page too, row for row."""
    rows = [line for line in PAGE.partition("Families that")[2].splitlines() if line[:1] == "|"]

    assert len(rows) == 10
    assert set(rows) <= set((ROOT / "README.md").read_text().splitlines())
