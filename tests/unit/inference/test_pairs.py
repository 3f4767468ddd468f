"""Minimal pairs are read, encoded and scored, each with its own progress."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support.files import write_rows
from unmask.inference.pairs import score_paradigms
from unmask.io.progress import Advance
from unmask.tasks.minimal_pairs.reading import read_paradigms
from unmask.tasks.minimal_pairs.scorers import Sentence, TokenScores


class LongerIsLikelier:
    tokenizer: Any = None

    def encode(self, texts: Sequence[str]) -> list[Sentence]:
        return [Sentence(text, np.arange(len(text))) for text in texts]

    def token_scores(self, sentences: Sequence[Sentence], advance: Advance) -> list[TokenScores]:
        advance(len(sentences))
        return [TokenScores(each.ids, np.ones(len(each.ids))) for each in sentences]


def test_what_is_done_before_pairs_are_scored_is_shown_by_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("unmask.io.progress.FIRST_SHOWN_S", 0.0)
    pairs = [{"sentence_good": f"good {number}", "sentence_bad": "bad"} for number in range(700)]
    paradigms = read_paradigms(write_rows(tmp_path / "a.jsonl", *pairs))
    assert score_paradigms(LongerIsLikelier(), paradigms).right.all()
    shown = [" · ".join(line.split(" · ")[:2]) for line in capsys.readouterr().err.splitlines()]
    assert shown[1:] == [
        "reading pairs: done · 700 pairs",
        "encoding pairs: 71 % · 500 of 700 pairs",
        "encoding pairs: done · 700 pairs",
        "pairs: 71 % · 500 of 700 pairs",
        "pairs: done · 700 pairs",
    ]
