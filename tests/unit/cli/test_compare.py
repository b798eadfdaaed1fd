"""`nanoserve compare` and `plan --find`, as a shell sees them."""

import errno
import json
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from nanoserve.cli.main import app, main
from nanoserve.errors import OptionError
from nanoserve.spec.gpu_spec import custom_gpu
from nanoserve.units import GIB


def call(*words: str) -> Result:
    return CliRunner().invoke(app, list(words))


def test_compare_prints_a_row_for_each_combination() -> None:
    """Two cards, one format each for weights and KV: two rows, a best one and its command."""
    result = call(
        "compare", "llama-3.1-70b", "--gpu", "h100, 2x h200",
        "--quantization", "fp8", "--kv-cache-dtype", "fp8",
    )  # fmt: skip

    assert result.exit_code == 0
    rows = [
        line for line in result.stdout.splitlines() if line.endswith(("serves", "serve", "load"))
    ]
    assert [row.split("  ")[0] for row in rows] == ["H100 SXM", "2 x H200"]
    assert "most requests for each GPU: " in result.stdout
    assert "vllm serve meta-llama/Llama-3.1-70B-Instruct" in result.stdout


def test_compare_is_json_on_demand() -> None:
    """Each row has its plan, whole."""
    result = call("compare", "llama-3.1-8b", "--gpu", "h100", "--tp", "1,3", "--json")
    found = json.loads(result.stdout)
    rows = found["rows"]

    assert (found["version"], found["model"]) == (1, "meta-llama/Llama-3.1-8B-Instruct")
    assert (found["engine"], found["fits"]) == ("vllm", True)
    assert len(rows) == 12
    best = rows[found["best"]]
    assert best["requests_on_all_gpus"] == max(row["requests_on_all_gpus"] for row in rows)
    for row in rows:
        if row["plan"]:
            for key in ("gpu", "num_gpus", "tensor_parallel", "weight_format", "kv_format"):
                assert row[key] == row["plan"][key]
    assert {row["plan"]["verdict"] for row in rows if row["plan"]} == {"serves"}
    assert all("does not divide" in row["refusal"] for row in rows if not row["plan"])


def test_the_page_names_every_key_of_the_json() -> None:
    """docs/planner.md lists the keys of a comparison and of its rows."""
    page = (Path(__file__).parents[3] / "docs" / "planner.md").read_text()
    found = json.loads(call("compare", "llama-3.1-8b", "--gpu", "h100", "--json").stdout)

    assert all(f"`{key}`" in page for key in (*found, *found["rows"][0]))


def test_json_has_the_savings_that_the_text_has() -> None:
    """Tokens that each adds, and the pool at which they add the same."""
    words = ("compare", "llama-3-8b", "--gpu", "h100")
    text = call(*words).stdout
    savings = json.loads(call(*words, "--json").stdout)["savings"]

    assert f"8-bit KV adds {savings['tokens_added_by_kv']:,} tokens" in text
    assert f"{savings['weight_format']} weights add {savings['tokens_added_by_weights']:,}" in text
    assert f"a pool of {savings['break_even_pool_bytes'] / GIB:.2f} GiB" in text
    assert f"more here: {savings['more']}" in text


def test_nothing_that_serves_is_exit_code_4() -> None:
    """As `plan` says it."""
    found = json.loads(call("compare", "deepseek-v3", "--gpu", "l4", "--json").stdout)
    assert (found["fits"], found["best"]) == (False, None)
    result = call("compare", "deepseek-v3", "--gpu", "l4", "--quantization", "fp8")

    assert result.exit_code == 4
    assert "none of them serves" in result.stdout


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (("--gpu", "h100,,a100"), "empty part"),
        (("--gpu", "h100", "--tp", "two"), "not a whole number"),
        (("--gpu", "h100", "--tp", "-1"), "--tp is -1"),
    ],
)
def test_lists_with_mistakes_are_refused(words: tuple[str, ...], problem: str) -> None:
    """The flag and the part are named."""
    result = call("compare", "llama-3.1-8b", *words)

    if isinstance(result.exception, OptionError):
        assert problem in str(result.exception)
    else:
        assert problem in result.stdout


def test_find_prints_the_way_to_the_answer() -> None:
    """Each number of GPUs that was tried, the answer, and the command for it."""
    result = call("plan", "llama-3.1-70b", "--gpu", "h100", "--find", "gpus", "--users", "100")

    assert result.exit_code == 0
    assert "gpus: 8 GPUs for 100 users at once" in result.stdout
    assert "--tensor-parallel-size 8" in result.stdout


def test_find_says_what_cannot_be_had() -> None:
    """Exit code 4 and no command."""
    result = call("plan", "llama-3.1-8b", "--gpu", "h100", "--find", "users", "--users", "9999")

    assert result.exit_code == 4
    assert "nothing tried serves 9,999 users" in result.stdout


def test_a_plan_that_does_not_fit_offers_ways_out() -> None:
    """In text and in JSON the same ones."""
    text = call("plan", "llama-3.1-70b", "--gpu", "h100")
    data = json.loads(call("plan", "llama-3.1-70b", "--gpu", "h100", "--json").stdout)

    assert text.exit_code == 4
    assert [remedy["flags"] for remedy in data["remedies"]] == [
        "--quantization awq",
        "--num-gpus 4 --tp 4",
    ]
    for remedy in data["remedies"]:
        assert remedy["flags"] in text.stdout


def test_flags_of_each_gpu_hold_for_all_of_them() -> None:
    """A stated memory, and how many there are, reach every row; a contradiction is refused."""
    words = ("compare", "llama-3.1-8b", "--quantization", "bf16", "--kv-cache-dtype", "auto")
    result = call(*words, "--gpu", "h100,a100 80gb", "--gpu-mem", "40GiB", "--num-gpus", "2",
                  "--json")  # fmt: skip
    rows = json.loads(result.stdout)["rows"]

    assert [row["num_gpus"] for row in rows] == [2, 2]
    assert {row["plan"]["memory"]["total_bytes"] for row in rows} == {40 << 30}
    refused = call(*words, "--gpu", "h100,4x a100 80gb", "--num-gpus", "2")
    assert isinstance(refused.exception, OptionError)
    assert "--gpu says 4 GPUs and --num-gpus 2" in str(refused.exception)


def test_a_best_row_whose_weights_have_to_be_found_says_so() -> None:
    """The command alone would start the checkpoint in 16 bits."""
    result = call("compare", "qwen3-32b", "--gpu", "h100", "--quantization", "bf16,awq")

    assert "needs a checkpoint of this model in awq-int4-g128" in result.stdout


def test_compare_has_no_picture() -> None:
    """A flag that would do nothing is none."""
    result = call("compare", "llama-3.1-8b", "--gpu", "h100", "--plot", "x.png")

    assert result.exit_code == 2


def test_our_own_server_has_one_format_on_a_gpu() -> None:
    """Its row is a plan and no refusal, with as many slots as it has room for."""
    result = call("compare", "qwen3-8b", "--gpu", "h100", "--engine", "nanoserve", "--json")
    (row,) = json.loads(result.stdout)["rows"]

    assert result.exit_code == 0
    assert (row["weight_format"], row["kv_format"], row["refusal"]) == ("bf16", "bf16", None)
    capacity = row["plan"]["capacity"]
    assert row["requests_on_all_gpus"] <= capacity["requests_of_p95"]["likely"]
    assert row["requests_on_all_gpus"] == capacity["sized_for_max_num_seqs"] > 100


def on_host(monkeypatch: pytest.MonkeyPatch, *has: str) -> None:
    """Make this machine one of 16 GiB that has what is named."""
    memory = custom_gpu(16 * GIB)
    host = replace(memory, compute_capability="host", host_has=frozenset(has))
    monkeypatch.setattr("nanoserve.cli.plan.machine_memory", lambda: host)


def test_our_own_server_crosses_its_formats_on_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three of weights times three of keys and values; fewer bits never serve fewer requests."""
    on_host(monkeypatch, "bf16", "native")
    words = ("compare", "llama-3.2-1b", "--gpu", "cpu", "--engine", "nanoserve", "--json")
    rows = json.loads(call(*words).stdout)["rows"]
    served = {(row["weight_format"], row["kv_format"]): row["requests_on_all_gpus"] for row in rows}

    assert list(served) == list(product(("bf16", "int8", "int4"), ("bf16", "int8", "fp8")))
    assert served["bf16", "bf16"] < served["int8", "bf16"] < served["int4", "bf16"]
    for weights in ("bf16", "int8", "int4"):
        assert served[weights, "bf16"] < served[weights, "int8"] < served[weights, "fp8"]


def test_a_cpu_without_a_compiler_has_no_formats(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing there reads them: one row, and a flag that asks for them is refused."""
    on_host(monkeypatch)
    words = ("compare", "llama-3.2-1b", "--gpu", "cpu", "--engine", "nanoserve", "--json")
    (row,) = json.loads(call(*words).stdout)["rows"]
    assert (row["weight_format"], row["kv_format"]) == ("fp32", "fp32")

    for flags in (("--quantization", "int8"), ("--kv-cache-dtype", "fp8")):
        refused = call("plan", *words[1:-1], *flags)
        assert isinstance(refused.exception, OptionError)
        assert "C++ compiler" in str(refused.exception)


@pytest.mark.parametrize(
    ("wanted", "flag"),
    [
        ("users", "--max-num-seqs"),
        ("precision", "--quantization"),
        ("gpus", "--num-gpus"),
        ("max-len", "--max-model-len"),
    ],
)
def test_our_own_server_is_searched_on_a_cpu(
    wanted: str, flag: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More users than the default slots are found, and the command has slots for them."""
    on_host(monkeypatch, "bf16", "native")
    words = ("plan", "llama-3.2-1b", "--gpu", "cpu", "--engine", "nanoserve", "--json")
    found = json.loads(call(*words, "--find", wanted, "--users", "100").stdout)
    slots = int(found["command"].partition("--max-num-seqs ")[2].split()[0])

    assert found["flags"].startswith(flag)
    assert slots * found["plan"]["num_replicas"] >= 100
    assert found["candidates"][-1]["users"] >= 100


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (("--users", "5"), "give --find as well"),
        (("--find", "users", "--plot", "x.png"), "--find prints none"),
        (("--find", "users", "--explain"), "--explain has the formulas"),
        (("--find", "max-len", "--max-model-len", "5"), "leave out --max-model-len"),
        (("--find", "gpus", "--tp", "2"), "leave out --tp"),
        (("--quantization", "zzz"), "--quantization: No weight format"),
    ],
)
def test_flags_that_would_do_nothing_are_refused(words: tuple[str, ...], problem: str) -> None:
    """Each says what to do instead."""
    result = call("plan", "llama-3.1-8b", "--gpu", "h100", *words)

    assert isinstance(result.exception, OptionError)
    assert problem in str(result.exception)


def test_what_cannot_be_written_is_one_message(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A full disk behind standard output is no traceback."""

    def full() -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("nanoserve.cli.main.app", full)
    with pytest.raises(SystemExit) as raised:
        main()

    assert raised.value.code == 1
    assert "cannot be written: No space left" in capsys.readouterr().err
