"""Lack of memory is recognised by whatever name it comes."""

import errno

import pytest
import torch

from nanoserve.runner.out_of_memory import as_memory_error, is_out_of_memory

MORE_THAN_ANY = 1 << 60  # bytes


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (MemoryError(), True),
        (torch.OutOfMemoryError("CUDA out of memory"), True),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), True),
        (OSError(errno.ENOSPC, "No space left on device"), False),
        (RuntimeError("device lost"), False),
    ],
)
def test_each_name_of_it_is_known(error: Exception, expected: bool) -> None:
    """And no other error is taken for it."""
    assert is_out_of_memory(error) == expected


def test_what_torch_lacks_on_a_cpu_is_a_memory_error() -> None:
    """Its own error is a plain RuntimeError."""
    with pytest.raises(MemoryError, match="can't allocate memory"), as_memory_error():
        torch.empty(MORE_THAN_ANY, dtype=torch.uint8)


@pytest.mark.parametrize(
    "error", [RuntimeError("device lost"), torch.OutOfMemoryError("CUDA out of memory")]
)
def test_other_errors_stay_what_they_are(error: Exception) -> None:
    """A GPU's is known to who asks; what is no lack of memory is a fault."""
    with pytest.raises(type(error)) as caught, as_memory_error():
        raise error

    assert caught.value is error
