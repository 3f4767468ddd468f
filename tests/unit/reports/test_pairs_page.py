"""The page of minimal pairs says which of them the model cannot tell apart."""

from __future__ import annotations

from pathlib import Path

import pytest

from unmask.reports.pairs_page import write_pairs_page


@pytest.mark.parametrize(
    ("alike", "told"),
    [
        (0, None),
        (1, "Of 1,200 pairs, 1 is two equal sentences to this model, and counts as wrong."),
        (1100, "Of 1,200 pairs, 1,100 are two equal sentences to this model, and count as wrong."),
    ],
)
def test_pairs_that_are_alike_to_the_model_are_told(tmp_path: Path, alike: int, told: str | None) -> None:
    figures = {"accuracy": 50.0, "low": 40.0, "high": 60.0}
    result = {"n": 1200, "alike": alike, "metrics": figures, "terms": {}, "paradigms": {"a": {"term": "", **figures}}}
    write_pairs_page(tmp_path / "pairs.html", "a model", "pairs.jsonl", [result], overwrite=False)
    page = (tmp_path / "pairs.html").read_text(encoding="utf-8")
    assert ("two equal sentences" in page) == (alike > 0)
    assert told is None or f'<p class="note">{told}</p>' in page
