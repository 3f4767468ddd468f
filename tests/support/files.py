"""Files for tests to read: any content, and rows as JSON lines."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any


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
