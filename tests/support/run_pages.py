"""Run directories to draw the page of, and pages read strictly."""

from __future__ import annotations

import json
from html.parser import HTMLParser
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


VOID = {"meta", "br", "use", "path", "rect"}


class Page(HTMLParser):
    """Reads a page strictly: every element closed in order, and what it refers to outside itself kept."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.ids: list[str] = []
        self.titles: list[str] = []
        self.outside: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        for name, value in attributes:
            if name == "id":
                self.ids.append(value or "")
            if name == "title":
                self.titles.append(value or "")
            if name in ("src", "href", "xlink:href", "data", "action") and not (value or "").startswith("#"):
                self.outside.append(value or "")
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attributes)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self.open.pop() == tag
