"""How many processor cores this process may use."""

from __future__ import annotations

import math
import os
from pathlib import Path

QUOTA = Path("/sys/fs/cgroup/cpu.max")
"""Of the processors' time, in a container on Linux: microseconds in each period, or `max`, and the period."""


def count_cores() -> int:
    """The cores that this process may run on, or as many as its quota of their time is worth, if these are fewer."""
    return quota_of_cores() or _allowed()


def quota_of_cores() -> int | None:
    """How many cores a container's quota is worth, rounded up; None: it is worth all that the process may run on, or
    there is none."""
    try:
        most, period = QUOTA.read_text(encoding="ascii").split()
        worth = _allowed() if most == "max" else math.ceil(int(most) / int(period))
    except (OSError, ValueError):
        return None
    return worth if worth < _allowed() else None


def _allowed() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
