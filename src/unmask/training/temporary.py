"""Temporary directories that are removed when their process ends; those of a killed process are removed when the next
one starts."""

from __future__ import annotations

import glob
import os
import platform
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from unmask.errors import AnotherProcess
from unmask.io.writing import alone_in


@contextmanager
def temporary_directory(kind: str, number: int) -> Iterator[Path]:
    """A new directory, removed again; first removes those of its kind that killed processes of this machine have left.

    Args:
        kind, number: begin its name; the machine and the process follow.
    """
    _remove_abandoned(kind)
    place = Path(tempfile.mkdtemp(prefix=f"{kind}-{number}-{platform.node()}-{os.getpid()}-"))
    try:
        yield place
    finally:
        shutil.rmtree(place, ignore_errors=True)


def _remove_abandoned(kind: str) -> None:
    if os.name != "posix":  # elsewhere signal 0 would end a process
        return
    for left in Path(tempfile.gettempdir()).glob(f"{kind}-*-{glob.escape(platform.node())}-*-*"):
        try:
            os.kill(int(left.name.split("-")[-2]), 0)
        except ProcessLookupError:
            with suppress(OSError, AnotherProcess), alone_in(left):  # one of another container may work there
                shutil.rmtree(left)
        except (ValueError, OverflowError, OSError):
            continue
