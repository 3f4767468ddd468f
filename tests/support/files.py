"""Files for tests to read: any content, rows as JSON lines, a bit flipped; a disk of their own, and a terminal."""

from __future__ import annotations

import io
import json
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def write(path: Path, content: str | bytes = b"") -> Path:
    """Writes a file, and makes the folders that it lies in."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def json_lines(*rows: Mapping[str, Any]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def write_rows(path: Path, *rows: Mapping[str, Any]) -> Path:
    """Writes rows as JSON lines."""
    return write(path, json_lines(*rows))


def flip(path: Path, place: int = 0, bit: int = 0) -> None:
    """A bit of a byte."""
    content = bytearray(path.read_bytes())
    content[place] ^= 1 << bit
    path.write_bytes(content)


@contextmanager
def disk_of(tmp_path: Path, kilobytes: int) -> Iterator[Path]:
    """A disk of its own; where none can be mounted, the test is skipped."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={kilobytes}k", "tmpfs", str(disk)]
    if shutil.which("mount") is None or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("a disk of its own can be mounted by root only")
    try:
        yield disk
    finally:
        subprocess.run(["umount", str(disk)], check=True)
