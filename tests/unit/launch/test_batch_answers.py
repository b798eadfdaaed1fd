"""`batch_answers`: what is in the file stays, what is torn is cut, what is foreign is left."""

import json
import os
from pathlib import Path

import pytest

from nanoserve.errors import OptionError
from nanoserve.launch.batch_answers import AnswerFile, BatchWriteError


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "out.jsonl"


def append(answers: AnswerFile, *custom_ids: str) -> None:
    for custom_id in custom_ids:
        answers.append(custom_id, f"id-{custom_id}", 200, {"text": "č\n\u2028"})


def test_an_answer_is_one_line_in_openais_format(path: Path) -> None:
    """Whatever text is in it, the line has no break."""
    with AnswerFile(path) as answers:
        append(answers, "a")

    (line,) = path.read_text().splitlines()
    assert json.loads(line) == {
        "id": "batch_req_id-a",
        "custom_id": "a",
        "response": {"status_code": 200, "request_id": "id-a", "body": {"text": "č\n\u2028"}},
        "error": None,
    }


def test_answers_are_in_the_file_at_once(path: Path) -> None:
    """No buffer of this process holds an answer back."""
    with AnswerFile(path) as answers:
        append(answers, "a")

        assert path.read_bytes().endswith(b"\n")
        assert answers.answered == {"a"}


def test_every_cut_of_the_last_line_is_repaired(path: Path) -> None:
    """A run that died in the middle of a line costs that line alone."""
    with AnswerFile(path) as answers:
        append(answers, "a", "b")
    whole = path.read_bytes()
    first = whole.index(b"\n") + 1

    for end in range(first, len(whole)):
        path.write_bytes(whole[:end])
        with AnswerFile(path) as answers:
            assert answers.answered == {"a"}
            append(answers, "b")
        assert path.read_bytes() == whole


@pytest.mark.parametrize(
    "text",
    [
        b"my notes",
        b'{"custom_id": "a", "method": "POST"}\n',
        b'{"id": "batch_req_1", "custom_id": 5}\n{"id": "batch_req_2", "custom_id": "b"}\n',
    ],
)
def test_a_file_of_something_else_is_left_alone(path: Path, text: bytes) -> None:
    """Nothing is cut from a file that no batch wrote."""
    path.write_bytes(text)

    with pytest.raises(OptionError, match=r"Line 1 of .* is no answer of a batch"):
        AnswerFile(path)

    assert path.read_bytes() == text


def test_a_file_is_written_by_one_process(path: Path) -> None:
    """A second run on the same answers would give some lines two."""
    with AnswerFile(path), pytest.raises(OptionError, match="being written by another"):
        AnswerFile(path)

    with AnswerFile(path) as answers:
        assert answers.answered == set()


@pytest.mark.parametrize("name", ["none/out.jsonl", ".", "/dev/null"])
def test_a_file_that_cannot_be_used_is_an_option_error(tmp_path: Path, name: str) -> None:
    """A missing folder, a folder, a device: the message says so before a model is loaded."""
    with pytest.raises(OptionError, match="Cannot write"):
        AnswerFile(tmp_path / name)


def test_the_disk_is_synced_at_intervals(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not for each answer, and at the end in any case."""
    synced: list[int] = []
    monkeypatch.setattr("os.fsync", synced.append)
    now_s = 0.0
    with AnswerFile(path, clock=lambda: now_s) as answers:
        append(answers, "a", "b")
        assert len(synced) == 0
        now_s = 1.5
        append(answers, "c", "d")
        assert len(synced) == 1

    assert len(synced) == 2


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs a device that is full")
def test_a_full_disk_ends_the_run_and_says_how_to_go_on(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer that did not fit is not counted as one."""
    with AnswerFile(path) as answers, open("/dev/full", "ab", buffering=0) as full:
        monkeypatch.setattr(answers, "_file", full)

        with pytest.raises(BatchWriteError, match=r"No space left.*Run the same command again"):
            append(answers, "a")

        assert answers.answered == set()
        monkeypatch.undo()
