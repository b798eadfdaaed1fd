"""`batch`: every line answered once, whatever becomes of the process."""

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from nanoserve.cli import batch
from nanoserve.cli import main as command_line
from nanoserve.cli.batch import run_batch, summary
from nanoserve.errors import EngineStoppedError
from nanoserve.launch.batch_file import Survey
from nanoserve.options import EngineOptions
from tests.batch_process import fake_booted
from tests.builders import AsciiRunner, FailingRunner, expected_text
from tests.fakes import FakeRunner

ROOT = Path(__file__).parents[3]


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    return tmp_path / "in.jsonl", tmp_path / "out.jsonl"


def boot_with(runner: FakeRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    booted = fake_booted(runner)
    monkeypatch.setattr(batch, "import_boot", lambda listener: lambda options, listener: booted)


def run(files: tuple[Path, Path]) -> int:
    return run_batch(*files, EngineOptions(), None)


def completion(number: int, **fields: Any) -> dict[str, Any]:
    body = {"prompt": f"prompt {number}", "max_tokens": 3} | fields
    return {"custom_id": f"c{number}", "method": "POST", "url": "/v1/completions", "body": body}


def write_lines(path: Path, lines: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def read_answers(path: Path) -> dict[str, dict[str, Any]]:
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    answers = {line["custom_id"]: line["response"] for line in lines}
    assert len(answers) == len(lines), "a custom_id has two answers"
    return answers


def test_lines_are_answered_as_over_http(
    files: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Both endpoints, n and usage; a refused line has the status and envelope of a request."""
    boot_with(AsciiRunner(), monkeypatch)
    messages = [{"role": "user", "content": "hi"}]
    chat = {"url": "/v1/chat/completions", "body": {"messages": messages, "max_tokens": 4}}
    lines = [
        completion(0, n=2),
        completion(1) | chat,
        completion(2, temperature=-1),
        completion(3, model="other"),
        completion(4, stream=True),
        completion(5) | {"url": "/v1/embeddings"},
    ]
    write_lines(files[0], lines)

    assert run(files) == 0

    answers = read_answers(files[1])
    body = answers["c0"]["body"]
    assert [choice["text"] for choice in body["choices"]] == [expected_text("prompt 0", 3)] * 2
    assert body["usage"]["completion_tokens"] == 6
    content = answers["c1"]["body"]["choices"][0]["message"]["content"]
    assert content == expected_text("<user>hi\n<assistant>", 4)
    statuses = [answers[f"c{number}"]["status_code"] for number in range(6)]
    assert statuses == [200, 200, 400, 404, 400, 400]
    params = [answers[f"c{number}"]["body"]["error"]["param"] for number in range(2, 6)]
    assert params == ["temperature", "model", "stream", "url"]
    assert "2 answered; 4 answered with an error (3 x 400, 1 x 404)" in capsys.readouterr().out


def test_killed_run_is_resumed_without_loss(
    files: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """After SIGKILL in the middle, and a torn line, every custom_id has one right answer."""
    write_lines(files[0], [completion(number) for number in range(200)])
    command = [sys.executable, "-m", "tests.batch_process", *map(str, files), "40"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert "stalled\n" in iter(process.stdout.readline, "")
        process.kill()
    kept = files[1].read_bytes()
    whole_lines = kept[: kept.rindex(b"\n") + 1]  # it may have been writing one more
    num_before = whole_lines.count(b"\n")
    assert 0 < num_before < 200
    files[1].write_bytes(whole_lines[:-10])
    boot_with(AsciiRunner(), monkeypatch)

    assert run(files) == 0

    answers = read_answers(files[1])
    assert sorted(answers) == sorted(f"c{number}" for number in range(200))
    for number in range(200):
        body = answers[f"c{number}"]["body"]
        assert body["choices"][0]["text"] == expected_text(f"prompt {number}", 3)
    assert f"{num_before - 1} had their answer before" in capsys.readouterr().out


def test_finished_batch_boots_nothing(
    files: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second run finds nothing to do and changes nothing."""
    boot_with(AsciiRunner(), monkeypatch)
    write_lines(files[0], [completion(0)])
    run(files)
    answers = files[1].read_bytes()
    monkeypatch.setattr(batch, "import_boot", None)

    assert run(files) == 0
    assert files[1].read_bytes() == answers


def test_lines_that_nothing_names_are_told_by_number(
    files: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The others are answered; the exit code says that some were not."""
    boot_with(AsciiRunner(), monkeypatch)
    write_lines(files[0], [completion(0), {}, completion(1), completion(1)])

    assert run(files) == 1

    captured = capsys.readouterr()
    assert "line 2 has no custom_id" in captured.err
    assert "line 4 has the custom_id 'c1' of line 3" in captured.err
    assert "2 answered; 2 not readable" in captured.out
    assert sorted(read_answers(files[1])) == ["c0", "c1"]


def test_engine_that_dies_leaves_lines_open(
    files: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """No answer says "the engine died"; the next run answers those lines."""
    write_lines(files[0], [completion(number) for number in range(100)])
    boot_with(FailingRunner({20: RuntimeError("device lost")}), monkeypatch)
    with pytest.raises(EngineStoppedError, match=r"device lost.*Run the same command again"):
        run(files)
    assert all(answer["status_code"] == 200 for answer in read_answers(files[1]).values())
    boot_with(AsciiRunner(), monkeypatch)

    assert run(files) == 0
    assert len(read_answers(files[1])) == 100


def test_request_that_fails_alone_is_answered_so(
    files: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An engine that goes on answers the line with its error."""
    write_lines(files[0], [completion(0)])
    boot_with(FailingRunner({0: MemoryError("no")}), monkeypatch)

    run(files)

    assert read_answers(files[1])["c0"]["status_code"] == 500


def test_interrupt_says_how_to_go_on(
    files: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Ctrl-C ends with a shell's code and keeps what is there."""
    write_lines(files[0], [completion(0)])

    def interrupt(listener: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(batch, "import_boot", interrupt)

    assert run(files) == 130
    assert "Run the same command again" in capsys.readouterr().err


def test_summary_counts_every_line() -> None:
    """What did not happen is left out."""
    survey = Survey(num_open=1500, num_answered=2, num_problems=3)

    text = summary(survey, Counter({200: 1490, 400: 9, 500: 1}))

    assert text == (
        "batch: 1,490 answered; 10 answered with an error (9 x 400, 1 x 500); "
        "2 had their answer before; 3 not readable"
    )
    assert summary(Survey(), Counter()) == "batch: 0 answered"


def test_command_line_reaches_the_batch(
    files: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Paths, the served name and engine flags arrive."""
    seen: list[tuple[object, ...]] = []

    def record(*args: object) -> int:
        seen.append(args)
        return 1

    monkeypatch.setattr("nanoserve.cli.batch.run_batch", record)
    flags = ["--model", "dir", "--served-model-name", "gpt", "--max-num-seqs", "3"]
    result = CliRunner().invoke(command_line.app, ["batch", *map(str, files), *flags])

    assert result.exit_code == 1, result.output
    assert seen == [(*files, EngineOptions(model="dir", max_num_seqs=3), "gpt")]
