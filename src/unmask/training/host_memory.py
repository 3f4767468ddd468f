"""Keeps CPU memory that has been freed for the next allocation.

The C library hands large blocks back to the system as soon as they are freed, and the system clears each page when it
is touched again: a step on the CPU, whose every tensor is such a block, spends a tenth of its time on that.
"""

from __future__ import annotations

import ctypes
import platform

_TRIM_THRESHOLD, _MMAP_MAX = -1, -4
"""Options of `mallopt`: how many bytes may be free at the end of the heap, and how many blocks may lie outside it."""


def keep_freed_memory() -> bool:
    """Makes this process keep the memory that it frees, up to 2 GiB at the end of its heap.

    The process then stays as large as it has ever been.

    Returns:
        Whether the C library can do so: glibc's, on Linux.
    """
    if platform.libc_ver()[0] != "glibc":
        return False
    mallopt = ctypes.CDLL(None).mallopt
    return bool(mallopt(_TRIM_THRESHOLD, 2**31 - 1)) and bool(mallopt(_MMAP_MAX, 0))
