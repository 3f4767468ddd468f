"""The reading path: what `docs/reading.md` names exists and is short, and its worked examples hold."""

from __future__ import annotations

import ast
import doctest
import importlib
import re
from pathlib import Path

import pytest
import torch

MOST_LINES, MOST_FILES = 1750, 15
SOURCE = Path(__file__).parents[2] / "src" / "unmask"
PAGE = Path(__file__).parents[2] / "docs" / "reading.md"
ENTRY = re.compile(r"^(\d+)\. \[`([\w/.]+)`\]\(\.\./src/unmask/\2\), begin with `([\w.]+)`\. \S", re.M)
WITH_EXAMPLES = sorted(
    ".".join(path.relative_to(SOURCE.parent).with_suffix("").parts)
    for path in SOURCE.rglob("*.py")
    if ">>> " in path.read_text("utf-8")
)


def problems(page: str) -> list[str]:
    """What is wrong with the page."""
    page = re.sub(r"\n +", " ", page)  # an entry may run over several lines
    entries = ENTRY.findall(page)
    found, total = [], 0
    if [int(number) for number, *_ in entries] != list(range(1, len(re.findall(r"^\d+\. ", page, re.M)) + 1)):
        found.append("an entry is not `N. [`FILE`](../src/unmask/FILE), begin with `NAME`. What to see`")
    for _, name, begin in entries:
        path = SOURCE / name
        if not path.is_file():
            found.append(f"{name}: there is no such file")
            continue
        text = path.read_text("utf-8")
        total += len(text.splitlines())
        if begin not in _names(ast.parse(text)):
            found.append(f"{name}: there is no {begin} to begin with")
    if total > MOST_LINES or len(entries) > MOST_FILES:
        told = f"{len(entries)} files and {total:,} lines, over {MOST_FILES} or {MOST_LINES:,}"
        found.append(f"{told}: move aside, behind a name, what is in the way")
    return found


def _names(module: ast.Module) -> set[str]:
    names: set[str] = set()
    for node in module.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        if isinstance(node, ast.ClassDef):
            names |= {f"{node.name}.{part.name}" for part in node.body if isinstance(part, ast.FunctionDef)}
    return names


def test_the_reading_path_is_short_and_names_what_there_is() -> None:
    assert problems(PAGE.read_text("utf-8")) == []


@pytest.mark.parametrize(
    ("there", "instead"),
    [
        ("training/loop.py", "training/gone.py"),
        ("begin with `train`", "begin with `training`"),
        ("begin with `train`", "begin by `train`"),
    ],
)
def test_a_wrong_page_is_noticed(there: str, instead: str) -> None:
    page = PAGE.read_text("utf-8")
    assert there in page
    assert problems(page.replace(there, instead))


def test_a_long_path_is_noticed() -> None:
    page = PAGE.read_text("utf-8")
    number = len(re.findall(r"^\d+\. ", page, re.M)) + 1
    file = "[`models/settings.py`](../src/unmask/models/settings.py)"
    more = f"\n{number}. {file}, begin with `EncoderSettings`. All sizes.\n"
    assert any("move aside" in each for each in problems(page + more))


@pytest.mark.parametrize("name", WITH_EXAMPLES)
def test_worked_examples_hold(name: str) -> None:
    results = doctest.testmod(importlib.import_module(name))
    assert results.attempted > 0
    assert results.failed == 0


def test_the_worked_example_of_span_masking_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Token 4 is drawn first, with a length of 1, then token 9, with 4."""
    from unmask.batch import pack
    from unmask.objectives.masks import drawing, span_masking

    batch = pack([[2, *range(5, 15), 3]], keys=[1])
    special = torch.zeros(12, dtype=torch.bool).index_fill_(0, torch.tensor([0, 11]), True)
    draws = torch.linspace(0.5, 0.9, 12, dtype=torch.float64).index_fill_(0, torch.tensor([9]), 0.2)
    draws[4] = 0.1
    monkeypatch.setattr(
        drawing.TokenTable, "draw", lambda table, stream, tokens=None: draws if tokens is None else draws[tokens]
    )
    monkeypatch.setattr(span_masking, "span_lengths", lambda *_: torch.tensor([1, 4]))
    continuation = torch.zeros(20, dtype=torch.bool)
    chosen = span_masking.choose_spans(batch.with_columns(special_tokens_mask=special), 0.2, continuation, 0.2, 10)
    assert torch.nonzero(chosen).squeeze(1).tolist() == [4, 9]
