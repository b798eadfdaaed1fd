"""The C library's heap: one for all threads, and what it keeps of freed memory given back.

Does nothing where the C library has no such calls (they are glibc's).
"""

import ctypes

_M_ARENA_MAX = -8  # of mallopt(3)


def use_one_heap() -> None:
    """Let threads that start from now on share one heap.

    Else each has its own, and the free end of such a heap is never given back: of the
    threads that load SmolLM2, up to 11 MiB each.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_ARENA_MAX, 1)


def trim_heap() -> None:
    """Give back what the heap keeps of freed memory."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
