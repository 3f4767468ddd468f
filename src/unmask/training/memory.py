"""Keeps freed memory in the process: a training step on the CPU allocates the same large tensors again and again."""

from __future__ import annotations

import ctypes
import platform

_M_TRIM_THRESHOLD, _M_MMAP_MAX = -1, -4
"""Parameters of glibc's `mallopt` (its manual page lists them)."""


def keep_freed_memory() -> bool:
    """Tells glibc not to hand large blocks back to the system when they are freed.

    By default each tensor over 32 MB is mapped afresh and its pages are faulted in one by one: about a tenth of a
    pre-training step. The peak is the same; memory goes back when the process ends.

    Returns:
        True where it was done; False where the C library is another.
    """
    if platform.libc_ver()[0] != "glibc":
        return False
    mallopt = ctypes.CDLL(None).mallopt
    return bool(mallopt(_M_MMAP_MAX, 0)) and bool(mallopt(_M_TRIM_THRESHOLD, 2**31 - 1))
