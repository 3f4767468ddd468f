"""Run directories to draw the page of."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from support.files import write, write_rows


def training_row(step: int, **changed: Any) -> dict[str, Any]:
    row = {"step": step, "tokens": step * 1000, "loss": 9.0 / step, "loss/mlm": 8.5 / step, "loss/nsp": 0.5 / step}
    return row | {"learning_rate": 1e-4, "gradient_norm": 1.0, "tokens_per_s": 500.0} | changed


def run_directory(path: Path, rows: list[dict[str, Any]], **files: Any) -> Path:
    write_rows(path / "metrics.jsonl", *rows)
    for name, value in files.items():
        write(path / f"{name}.json", json.dumps(value))
    return path
