"""This process's own memory."""

from __future__ import annotations

import ctypes
from contextlib import suppress

_ARENA_MAX, _MMAP_THRESHOLD, _TRIM_THRESHOLD = -8, -3, -1
"""As glibc's malloc.h numbers them."""
_LARGE = 256 * 1024
"""Bytes from which memory is the kernel's again as soon as it is free."""


def return_memory() -> None:
    """Have the C library give large buffers back, and what is free now, and keep one heap for all threads.

    Left to itself it gives each of a dozen threads a heap, and once it has seen a large buffer come and go (a block of
    the record, its compressor) it keeps room for the next one in each: 5 to 10 MB unused, and 40 to 60 MB in a proxy
    that was sent bodies of 30 MB. No Python object lies there, so there is no nearer place to mend it. Other C
    libraries have no such call.
    """
    with suppress(OSError, AttributeError):
        library = ctypes.CDLL(None)
        for option, value in ((_ARENA_MAX, 1), (_MMAP_THRESHOLD, _LARGE), (_TRIM_THRESHOLD, _LARGE)):
            library.mallopt(option, value)
        library.malloc_trim(0)
