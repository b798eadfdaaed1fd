"""Where keys come from."""

from pathlib import Path

import pytest

from nanoserve.errors import OptionError
from nanoserve.server.api_keys import KEYS_VARIABLE, read_api_keys


def test_file_and_environment_add_up(tmp_path: Path) -> None:
    """Comments, blanks and doubles are left out."""
    path = tmp_path / "keys"
    path.write_text("# ours\nfirst-key\n\n  second-key \n")

    keys = read_api_keys(str(path), {KEYS_VARIABLE: "third-key, first-key,"})

    assert keys == ("third-key", "first-key", "second-key")


def test_no_source_is_no_key() -> None:
    """The server is then open."""
    assert read_api_keys(None, {}) == ()
    assert read_api_keys(None, {KEYS_VARIABLE: ""}) == ()


@pytest.mark.parametrize("content", ["", "# only a comment\n", "short\n", "with blank inside\n"])
def test_file_without_usable_keys_is_refused(tmp_path: Path, content: str) -> None:
    """A server that was to be guarded never starts open, and no key is shown."""
    path = tmp_path / "keys"
    path.write_text(content)

    with pytest.raises(OptionError) as caught:
        read_api_keys(str(path), {})

    assert content.strip("# \n") not in str(caught.value) or not content.strip("# \n")


def test_missing_file_is_refused(tmp_path: Path) -> None:
    """The message names it."""
    with pytest.raises(OptionError, match=r"--api-key-file .*absent.*: No such.*\. Give a file"):
        read_api_keys(str(tmp_path / "absent"), {})
