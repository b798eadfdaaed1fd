"""`bench boot` prints the worked table, without torch and without weights."""

import csv
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from nanoserve.bench.boot_bench_options import BootBenchOptions
from nanoserve.bench.bootbench import (
    plan_cases,
    price_lines,
    read_num_heads,
    wanted_lines,
    write_csv,
)
from nanoserve.cli.main import app
from nanoserve.errors import CaptureTooSmall, OptionError
from nanoserve.options import DEFAULT_MODEL

GOLDEN: dict[str, Any] = json.loads(
    (Path(__file__).parents[2] / "golden" / "capture_plan_llama32_1b.json").read_text()
)
LLAMA_HEADS = ["--num-heads", "32"]


def run(*arguments: str) -> str:
    """Return what `bench boot` prints."""
    result = CliRunner().invoke(app, ["bench", "boot", *arguments])
    assert result.exit_code == 0, result.output
    return result.output


def test_the_csv_file_equals_the_golden_table(tmp_path: Path) -> None:
    """By default every case of the table is planned, and every cell is written."""
    file = tmp_path / "capture.csv"
    run(*LLAMA_HEADS, "--csv", str(file))
    with file.open() as lines:
        rows = {(row["max_num_seqs"], row["max_model_len"]): row for row in csv.DictReader(lines)}

    for case in GOLDEN["cases"]:
        row: dict[str, Any] = rows[str(case["slots"]), str(case["context"])]
        expected = {"max_num_seqs": case["slots"], "max_model_len": case["context"], **case}
        del expected["slots"], expected["context"]
        assert row == {name: str(value) for name, value in expected.items()}


def test_both_tables_have_a_line_for_each_deployment() -> None:
    """Lists are crossed; the figures stand under their names."""
    output = run(*LLAMA_HEADS, "--max-num-seqs", "8,16", "--max-model-len", "2048,8192")
    wanted, price = output.split("\n\n")

    assert wanted.splitlines() == [
        "Shapes wanted and kept",
        "requests  context  rows  widths  wanted  over  max width  kept  bound by   scores",
        "8           2,048     4      16      64     0      2,048    64   context  2.0 MiB",
        "8           8,192     4      64     256   192      2,048    64     limit  2.0 MiB",
        "16          2,048     5      16      80    16      1,536    60     limit  3.0 MiB",
        "16          8,192     5      64     320   256      1,536    60     limit  3.0 MiB",
    ]
    assert price.splitlines() == [
        "Their price at 0.05 s a graph",
        "requests  context  start-up  late  late latency  start-up saved",
        "8           2,048    3.20 s     0        0.00 s          0.00 s",
        "8           8,192    3.20 s    48        2.40 s          9.60 s",
        "16          2,048    3.00 s     4        0.20 s          1.00 s",
        "16          8,192    3.00 s    52        2.60 s         13.00 s",
    ]


def test_a_larger_limit_keeps_more() -> None:
    """The limit is the operator's."""
    options = BootBenchOptions(32, "16", "2048", capture_limit=80)
    (case,) = plan_cases("unread", options)

    assert (case.plan.count, case.plan.trimmed, case.cost.lazy_captures) == (80, 0, 0)
    assert "context" in wanted_lines([case])[1]
    assert "4.00 s" in price_lines([case])[1]


def test_a_limit_under_one_width_is_refused() -> None:
    """Nothing is left out of the table in silence; what is advised is enough for all of it."""
    with pytest.raises(CaptureTooSmall) as refusal:
        plan_cases("unread", BootBenchOptions(32, "8,300", "2048", capture_limit=3))

    assert refusal.value.advice == ("--capture-limit 10",)
    assert len(plan_cases("unread", BootBenchOptions(32, "8,300", "2048", capture_limit=10))) == 2


def test_a_context_that_no_machine_serves_is_counted_all_the_same() -> None:
    """The widths wanted are counted, not listed."""
    (case,) = plan_cases("unread", BootBenchOptions(32, "8", str(10**12)))

    assert case.figures()["width_buckets"] == 10**12 // 128
    assert case.plan.count == 64


def test_heads_come_from_a_config_alone(tmp_path: Path) -> None:
    """A folder needs no weights, and its query heads are counted, not its KV heads."""
    config = {
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": 256,
        "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-6,
    }
    (tmp_path / "config.json").write_text(json.dumps(config))

    assert read_num_heads(str(tmp_path)) == 4
    assert "8 " in run(str(tmp_path), "--max-num-seqs", "8")


def test_the_default_model_s_heads_come_from_its_gguf_header() -> None:
    """SmolLM2 135M has 9 query heads: 8 rows of 2,048 float32 scores each are 576 KiB."""
    assert read_num_heads(DEFAULT_MODEL) == 9
    assert "64   context  0.6 MiB" in run("--max-num-seqs", "8", "--max-model-len", "2048")


def test_the_tables_load_no_torch() -> None:
    """Planning a list costs no heavy import; only --repeat does."""
    code = (
        "import sys; from nanoserve.cli.main import app; "
        "app(['bench', 'boot', '--num-heads', '32'], standalone_mode=False); "
        "print({'torch', 'numpy', 'httpx'} & sys.modules.keys())"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )

    assert result.stdout.splitlines()[-1] == "set()"


def test_a_file_that_cannot_be_written_is_an_option_error(tmp_path: Path) -> None:
    """The message names the flag and the path."""
    cases = plan_cases("unread", BootBenchOptions(32))

    with pytest.raises(OptionError, match=r"--csv .* cannot be written"):
        write_csv(str(tmp_path / "none" / "file.csv"), cases)
