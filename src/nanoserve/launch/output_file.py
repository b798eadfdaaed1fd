"""Files that a flag names for a result: refused before the work, or with what went wrong."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from nanoserve.error_reasons import reason_of
from nanoserve.errors import OptionError


def check_writable(flag: str, path: str | None) -> None:
    """Refuse a file that could not be written, before the work is spent on it.

    Args:
        flag: That names it.
        path: Of the file; None where none was asked for.

    Raises:
        OptionError: Names the flag, the file and the reason.
    """
    if path is None:
        return
    with writing(flag, path):
        if Path(path).is_fifo() or Path(path).is_char_device():
            return  # who reads a pipe would see it end with the trial, and /dev/fd has no files
        file = Path(os.path.realpath(path))  # a link to it stays
        is_new = not file.exists()
        file.open("a").close()  # what an earlier run wrote stays
        if is_new:
            file.unlink()


@contextmanager
def writing(flag: str, path: str) -> Iterator[None]:
    """Write the file in the body.

    Raises:
        OptionError: It cannot be written; names the flag, the file and the reason.
    """
    try:
        yield
    except (OSError, ValueError) as error:
        reason = reason_of(error)
        message = f"{flag} {path!r} cannot be written: {reason}. Name a file in a folder of yours."
        raise OptionError(message) from error
