"""Korean text whose pieces hold a name and its particle: entities and answers that end between them are found."""

from __future__ import annotations

from pathlib import Path

import pytest

import unmask
from support.files import write_rows
from support.untrained import save_bert

pytestmark = pytest.mark.usefixtures("one_thread", "without_report", "place")

PLACES = ("서울", "부산", "대구", "광주")
ROWS = [
    {"text": f"{place}은 {other}보다 크다", "entities": [[0, 2, "LC"], [4, 6, "LC"]]}
    for place in PLACES
    for other in PLACES
]
FAST = ("device=cpu", "precision=fp32", "task.max_length=32", "optimizer.learning_rate=1e-2", "train.batch_size=8")


@pytest.mark.parametrize("is_cut", [True, False])
def test_names_inside_pieces_are_found_where_they_are_cut(is_cut: bool) -> None:
    texts = [row["text"] for row in ROWS] * 4
    model = save_bert(Path("model"), texts, max_position_embeddings=32, initializer_range=0.1)
    path = write_rows(Path("rows.jsonl"), *ROWS)
    words = [f"init_from={model}", f"data.train={path}", f"task.cut_pieces={is_cut}", "train.epochs=15", *FAST]
    unmask.finetune("finetune/tagging", words, out="run")
    assert (" entities begin or end inside a piece" in Path("run/log.txt").read_text("utf-8")) != is_cut
    assert ("[cut 서울은]" in Path("run/model/vocab.txt").read_text("utf-8")) == is_cut
    found = list(unmask.predict("run", ROWS))
    spans = [[[one["start"], one["end"], one["label"]] for one in each["entities"]] for each in found]
    right = [each == row["entities"] for each, row in zip(spans, ROWS, strict=True)]
    assert all(right) if is_cut else not any(right)


def test_answers_inside_pieces_are_found_exactly() -> None:
    rows = [
        {
            "id": str(n),
            "question": "무엇?",
            "context": row["text"],
            "answers": {"text": [row["text"][:2]], "answer_start": [0]},
        }
        for n, row in enumerate(ROWS)
    ]
    texts = [row["text"] + " 무엇?" for row in ROWS] * 4
    model = save_bert(Path("model"), texts, max_position_embeddings=32, initializer_range=0.1)
    path = write_rows(Path("rows.jsonl"), *rows)
    unmask.finetune("finetune/qa", [f"init_from={model}", f"data.train={path}", "train.epochs=15", *FAST], out="run")
    assert "begin or end inside a piece" not in Path("run/log.txt").read_text("utf-8")
    for row, found in zip(rows, unmask.predict("run", rows), strict=True):
        assert (found["answer"], found["start"], found["end"]) == (row["context"][:2], 0, 2)
