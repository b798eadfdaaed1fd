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
    CaptureDevice,
    capture_lines,
    plan_cases,
    price_lines,
    read_spec,
    wanted_lines,
    write_csv,
)
from nanoserve.cli.main import app
from nanoserve.errors import CaptureTooSmall, OptionError
from nanoserve.options import DEFAULT_MODEL, EngineOptions
from nanoserve.plan.boot_choices import choose
from nanoserve.plan.boot_sizing import capture_for
from nanoserve.plan.device_facts import DeviceFacts
from nanoserve.plan.memory_budget import MemoryReading
from nanoserve.plan.native_facts import native_backend_facts
from nanoserve.units import GIB

GOLDEN: dict[str, Any] = json.loads(
    (Path(__file__).parents[2] / "golden" / "capture_plan_llama32_1b.json").read_text()
)
LLAMA_HEADS = ["--device", "cuda", "--num-heads", "32"]
GPU = CaptureDevice("cuda")
CPU = CaptureDevice("cpu", itemsize=2, records_natively=True)


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
        "Shapes wanted and kept on a GPU",
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
    options = BootBenchOptions(
        num_heads=32, max_num_seqs="16", max_model_len="2048", capture_limit=80
    )
    (case,) = plan_cases("unread", options, GPU)

    assert (case.plan.count, case.plan.trimmed, case.cost.lazy_captures) == (80, 0, 0)
    assert "context" in wanted_lines([case], "scores")[1]
    assert "4.00 s" in price_lines([case])[1]


def test_a_limit_under_one_width_is_refused() -> None:
    """Nothing is left out of the table in silence; what is advised is enough for all of it."""

    def plan(limit: int) -> int:
        options = BootBenchOptions(
            num_heads=32, max_num_seqs="8,300", max_model_len="2048", capture_limit=limit
        )
        return len(plan_cases("unread", options, GPU))

    with pytest.raises(CaptureTooSmall) as refusal:
        plan(3)

    assert refusal.value.advice == ("--capture-limit 10",)
    assert plan(10) == 2


def test_a_context_that_no_machine_serves_is_counted_all_the_same() -> None:
    """The widths wanted are counted, not listed."""
    options = BootBenchOptions(num_heads=32, max_num_seqs="8", max_model_len=str(10**12))
    (case,) = plan_cases("unread", options, GPU)

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

    assert read_spec(str(tmp_path)).num_heads == 4
    assert "8 " in run(str(tmp_path), "--max-num-seqs", "8", "--device", "cuda")


def test_the_default_model_s_heads_come_from_its_gguf_header() -> None:
    """SmolLM2 135M has 9 query heads: 8 rows of 2,048 float32 scores each are 576 KiB."""
    assert read_spec(DEFAULT_MODEL).num_heads == 9
    gpu = ("--device", "cuda", "--max-num-seqs", "8", "--max-model-len", "2048")
    assert "64   context  0.6 MiB" in run(*gpu)


def test_a_cpu_s_list_is_the_one_its_boot_records() -> None:
    """One recording serves every context, rows are close, and the bytes are the boot's."""
    spec = read_spec(DEFAULT_MODEL)
    facts = native_backend_facts(spec, EngineOptions().block_size, "none")
    reading = MemoryReading(8 * GIB, 8 * GIB, own_bytes=0)
    device = DeviceFacts("cpu", "a CPU", reading, 2, has_native_bf16=True, has_native_ops=True)
    options = BootBenchOptions(max_num_seqs="8,40", max_model_len="1024,2048")

    cases = plan_cases(DEFAULT_MODEL, options, CPU)

    assert len(cases) == 4
    for case in cases:
        boot = EngineOptions(max_num_seqs=case.max_num_seqs, max_model_len=case.max_model_len)
        choices = choose(spec, boot, device, records_natively=True)
        assert case.plan == capture_for(boot, choices, facts)
        assert case.figures()["width_buckets"] == 1
    assert [case.plan.count for case in cases] == [8, 8, 26, 26]


def test_what_a_cpu_s_tables_say() -> None:
    """A recording has its own price there, and steps with prompts are recorded once."""
    options = BootBenchOptions(max_num_seqs="8", max_model_len="2048")
    lines = tuple(capture_lines(plan_cases(DEFAULT_MODEL, options, CPU), CPU))

    assert lines[0] == "Shapes wanted and kept on a CPU with native operators"
    assert lines[1].endswith("bound by  results")
    assert lines[4] == "Their price at 0.013 s a recording"
    assert lines[6].split()[:3] == ["8", "2,048", "0.10"]
    assert "largest step of up to 512 tokens that reads prompts is recorded too, once" in lines[-1]


def test_a_cpu_that_records_nothing_says_so(tmp_path: Path) -> None:
    """Without native operators steps run as they come: there is no list, and no figure."""
    device = CaptureDevice("cpu", itemsize=4, records_natively=False)
    cases = plan_cases(DEFAULT_MODEL, BootBenchOptions(), device)
    (line,) = capture_lines(cases, device)
    write_csv(str(tmp_path / "file.csv"), cases)

    assert cases == ()
    assert "steps run eagerly" in line
    assert (tmp_path / "file.csv").read_text() == ""


def test_query_heads_alone_are_not_enough_for_a_cpu() -> None:
    """A recorded step's results depend on every size of the model."""
    with pytest.raises(OptionError, match=r"--num-heads 32 .* give --device cuda"):
        plan_cases(DEFAULT_MODEL, BootBenchOptions(num_heads=32), CPU)


@pytest.mark.parametrize("device", ["auto", "cpu", "cuda"])
def test_the_tables_load_no_torch(device: str) -> None:
    """Planning a list costs no heavy import; only --repeat does."""
    code = (
        "import sys; from nanoserve.cli.main import app; "
        f"app(['bench', 'boot', '--device', '{device}'], standalone_mode=False); "
        "print({'torch', 'numpy', 'httpx'} & sys.modules.keys())"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )

    assert result.stdout.splitlines()[-1] == "set()"


def test_a_file_that_cannot_be_written_is_an_option_error(tmp_path: Path) -> None:
    """The message names the flag and the path."""
    cases = plan_cases("unread", BootBenchOptions(num_heads=32), GPU)

    with pytest.raises(OptionError, match=r"--csv .* cannot be written"):
        write_csv(str(tmp_path / "none" / "file.csv"), cases)
