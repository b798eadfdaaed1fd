"""Lack of memory, by whatever name it is raised: torch's CPU allocator has no error of its own."""

import errno
from collections.abc import Iterator
from contextlib import contextmanager

import torch

OUT_OF_MEMORY = (MemoryError, torch.OutOfMemoryError)
_HOST_REFUSALS = ("can't allocate memory", "not enough memory")  # in a plain RuntimeError


def is_out_of_memory(error: BaseException) -> bool:
    """Whether Python, torch or the system had no memory left."""
    if isinstance(error, OUT_OF_MEMORY):
        return True
    if isinstance(error, OSError):  # of mmap
        return error.errno == errno.ENOMEM
    return any(text in str(error) for text in _HOST_REFUSALS)


@contextmanager
def as_memory_error() -> Iterator[None]:
    """Let what the body's torch operators lack on a CPU be a `MemoryError`.

    Raises:
        MemoryError: The CPU allocator had no memory.
    """
    try:
        yield
    except RuntimeError as error:
        if isinstance(error, torch.OutOfMemoryError) or not is_out_of_memory(error):
            raise
        raise MemoryError(str(error)) from error
