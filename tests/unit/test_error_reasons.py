"""Why a file could not be read or written, in words."""

import os
from pathlib import Path

import pytest

from nanoserve.bench.load_plan import read_lengths
from nanoserve.error_reasons import reason_of
from nanoserve.errors import OptionError
from nanoserve.server.api_keys import read_api_keys


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (FileNotFoundError(2, "No such file or directory", "x"), "No such file or directory"),
        (OSError("unplugged"), "unplugged"),
        (UnicodeDecodeError("utf-8", b"ab\xff", 2, 3, "why"), "it is not UTF-8 text (byte 2)"),
        (ValueError("embedded null byte"), "embedded null byte"),
    ],
)
def test_a_reason_has_neither_number_nor_path(error: Exception, reason: str) -> None:
    """The system's words, the first byte at fault, or what the error says of itself."""
    assert reason_of(error) == reason


def test_files_of_options_are_named_with_the_byte_at_fault(tmp_path: Path) -> None:
    """No codec's own words reach who gave a file in another encoding."""
    path = tmp_path / "latin"
    path.write_bytes("prompt_tokens,r\xe9ponse".encode("latin-1"))

    with pytest.raises(OptionError, match=r"^--length-file .* text \(byte 15\)\. Give CSV"):
        read_lengths(path)
    with pytest.raises(OptionError, match=r"^--api-key-file .* text \(byte 15\)\. Give a file"):
        read_api_keys(os.fspath(path), {})
