"""lm-eval's `local-completions` against its own `hf` model on the very same weights.

The task is made here, of text that ships with Python: which of four passages goes on with
the docstring of a module. Every log-likelihood must agree, in float32 on both sides.
"""

import inspect
import json
import subprocess
import sys
import unittest
from importlib import import_module
from pathlib import Path
from typing import Any

NUM_ROWS = 50
NUM_CHOICES = 4
TOLERANCE = 1e-3  # of a log-likelihood, in nats
NUM_HEAD_WORDS = 24
NUM_TAIL_WORDS = 12
CLASSES = (unittest.TestCase, Path, int, str, bytes, list, dict, set, float, inspect.Signature)
MODULES = ("json", "os.path", "string", "random", "shutil", "textwrap", "threading", "heapq")
TASK = {
    "task": "docstrings",
    "dataset_path": "json",
    "test_split": "test",
    "output_type": "multiple_choice",
    "doc_to_text": "{{head}}",
    "doc_to_choice": "{{tails}}",
    "doc_to_target": "{{answer}}",
    "target_delimiter": " ",
    "metric_list": [{"metric": "acc"}],
}


def passages() -> list[tuple[str, str]]:
    """Return beginnings of docstrings, each with what follows."""
    owners = [*CLASSES, *map(import_module, MODULES)]
    found = {}
    for owner in owners:
        for name in sorted(vars(owner)):
            words = (inspect.getdoc(getattr(owner, name, None)) or "").split()
            tail = words[NUM_HEAD_WORDS : NUM_HEAD_WORDS + NUM_TAIL_WORDS]
            if len(tail) == NUM_TAIL_WORDS:
                found[" ".join(words[:NUM_HEAD_WORDS])] = " ".join(tail)
    return list(found.items())[:NUM_ROWS]


def write_task(folder: Path) -> None:
    """Write the task's rows and its description."""
    pairs = passages()
    assert len(pairs) == NUM_ROWS
    rows = []
    for index, (head, _) in enumerate(pairs):
        tails = [pairs[(index + 7 * step) % NUM_ROWS][1] for step in range(NUM_CHOICES)]
        answer = index % NUM_CHOICES
        rows.append({"head": head, "tails": tails[-answer:] + tails[:-answer], "answer": answer})
    path = folder / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    task = TASK | {"dataset_kwargs": {"data_files": {"test": str(path)}}}
    (folder / "docstrings.yaml").write_text(json.dumps(task))  # JSON is YAML


def evaluate(folder: Path, model: str, arguments: dict[str, Any]) -> list[list[tuple[float, bool]]]:
    """Return (log-likelihood, is greedy) of every choice of every row."""
    output = folder / model
    command: list[str | Path] = [Path(sys.executable).with_name("lm_eval"), "run", "--model", model]
    command += ["--model_args", ",".join(f"{name}={value}" for name, value in arguments.items())]
    command += ["--tasks", "docstrings", "--include_path", str(folder), "--batch_size", "4"]
    command += ["--device", "cpu", "--log_samples", "--output_path", str(output)]
    finished = subprocess.run(command, capture_output=True, text=True, cwd=folder)
    assert finished.returncode == 0, finished.stderr[-4000:]
    (samples,) = output.rglob("samples_*.jsonl")
    rows = sorted(map(json.loads, samples.read_text().splitlines()), key=lambda row: row["doc_id"])
    return [[parsed(*choice) for choice in row["filtered_resps"]] for row in rows]


def parsed(logprob: Any, is_greedy: Any) -> tuple[float, bool]:
    return float(logprob), str(is_greedy) == "True"


def test_loglikelihoods_are_transformers(
    url: str, model_name: str, model_folder: Path, tmp_path: Path, record_property: Any
) -> None:
    """Each of 200 log-likelihoods is transformers' within 1e-3, and as greedy as there."""
    write_task(tmp_path)
    served = {
        "model": model_name,
        "base_url": f"{url}/v1/completions",
        "tokenizer": model_folder,
        "tokenizer_backend": "huggingface",
        "num_concurrent": 2,
        "max_retries": 1,
    }
    local = {"pretrained": model_folder, "dtype": "float32"}

    ours = evaluate(tmp_path, "local-completions", served)
    theirs = evaluate(tmp_path, "hf", local)

    assert len(ours) == len(theirs) == NUM_ROWS
    pairs = [pair for row in zip(ours, theirs, strict=True) for pair in zip(*row, strict=True)]
    assert len(pairs) == NUM_ROWS * NUM_CHOICES
    worst = max(abs(own[0] - other[0]) for own, other in pairs)
    record_property("note", f"{len(pairs)} log-likelihoods, largest difference {worst:.1e} nats")
    assert worst < TOLERANCE
    assert [own[1] for own, _ in pairs] == [other[1] for _, other in pairs]
