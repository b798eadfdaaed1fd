"""The output of a batch: one answer per line, appended and never rewritten.

Owns what a killed run leaves behind: every answer that was complete is kept, and a torn
last line is cut when the file is opened again. Knows nothing of how answers are made.
"""

import contextlib
import fcntl
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from nanoserve.error_reasons import reason_of
from nanoserve.errors import NanoserveError, OptionError

SYNC_EVERY_S = 1.0  # most seconds of answers that a power cut may cost
_START = b'{"id": "batch_req_'  # of every line; what begins otherwise is somebody else's file


class BatchWriteError(NanoserveError):
    """The answers cannot be written any more."""


class AnswerFile:
    """The answers of a batch on disk, open for more. One process at a time.

    Attributes:
        answered: The custom_id of every answer.
    """

    def __init__(self, path: Path, clock: Callable[[], float] = time.monotonic) -> None:
        """Open the file, made if there is none, and cut a torn last line.

        Args:
            path: Where the answers are.
            clock: Monotonic seconds.

        Raises:
            OptionError: It cannot be written, is no file of answers, or is being written.
        """
        self.answered: set[str] = set()
        self._path = path
        self._clock = clock
        self._synced_s = clock()
        try:
            self._file = path.open("a+b", buffering=0)
            with contextlib.ExitStack() as unless_usable:
                unless_usable.callback(self._file.close)
                self._lock()
                self._read()
                unless_usable.pop_all()
        except OSError as error:
            message = f"Cannot write {path}: {reason_of(error)}."
            raise OptionError(message) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            self._sync()
        except OSError as failure:
            raise self._cannot_go_on(failure) from failure
        finally:
            self._file.close()

    def append(self, custom_id: str, request_id: str, status_code: int, body: Any) -> None:
        """Add the answer to a line.

        It is in the file, whatever happens to this process, when the call returns, and on
        the disk within `SYNC_EVERY_S`.

        Args:
            custom_id: The line's.
            request_id: A fresh unique name.
            status_code: As over HTTP.
            body: As over HTTP: an answer, or an error envelope.

        Raises:
            BatchWriteError: The disk is full or gone.
        """
        answer = {
            "id": f"batch_req_{request_id}",
            "custom_id": custom_id,
            "response": {"status_code": status_code, "request_id": request_id, "body": body},
            "error": None,
        }
        line = json.dumps(answer, allow_nan=False).encode() + b"\n"
        try:
            while line:
                line = line[self._file.write(line) :]
            if self._clock() - self._synced_s >= SYNC_EVERY_S:
                self._sync()
        except OSError as error:
            raise self._cannot_go_on(error) from error
        self.answered.add(custom_id)

    def _sync(self) -> None:
        os.fsync(self._file.fileno())
        self._synced_s = self._clock()

    def _cannot_go_on(self, error: OSError) -> BatchWriteError:
        return BatchWriteError(
            f"Cannot write {self._path}: {reason_of(error)}. "
            "Run the same command again to go on: the answers in it are kept."
        )

    def _lock(self) -> None:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            message = f"{self._path} is being written by another process."
            raise OptionError(message) from error

    def _read(self) -> None:
        num_bytes = 0
        with self._path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                custom_id = _custom_id_of(line)
                if custom_id is None:
                    is_torn = _START.startswith(line[: len(_START)]) and not file.read(1)
                    if not is_torn:
                        raise OptionError(self._not_ours(number))
                    break
                self.answered.add(custom_id)
                num_bytes += len(line)
        self._file.truncate(num_bytes)

    def _not_ours(self, number: int) -> str:
        return (
            f"Line {number:,} of {self._path} is no answer of a batch. "
            "Name a new file for the answers, or the one that they were in."
        )


def _custom_id_of(line: bytes) -> str | None:
    """Return whose answer a line is; None if it is not a whole answer."""
    if not line.startswith(_START) or not line.endswith(b"\n"):
        return None
    try:
        custom_id = json.loads(line)["custom_id"]
    except (ValueError, KeyError, RecursionError):
        return None
    return custom_id if isinstance(custom_id, str) else None
