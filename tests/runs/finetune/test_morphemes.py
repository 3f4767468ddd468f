"""Tasks over an encoder that reads morphemes: answers and entities have the characters of the text as it was given,
and end before the particle that is written with them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import unmask
from support.files import write_rows
from support.untrained import save_bert

pytest.importorskip("kiwipiepy", reason="needs the extra ko")
pytestmark = pytest.mark.usefixtures("one_thread", "without_report", "place")

PEOPLE, PLACES = ("김철수", "이영희", "박민수", "최지우"), ("서울", "부산", "대구", "광주")
TEXTS = [
    f"{person}는  {place}에서 {other}를 만났다."
    for person in PEOPLE
    for place, other in zip(PLACES, PEOPLE[::-1], strict=True)
]
FAST = ("device=cpu", "precision=fp32", "task.max_length=32", "optimizer.learning_rate=1e-2", "train.batch_size=8")


def learned(task: str, rows: list[dict[str, Any]], epochs: int) -> list[dict[str, Any]]:
    """The predictions for rows that have been learnt by heart."""
    model = save_bert(Path("model"), TEXTS * 4, segmenter="kiwi", max_position_embeddings=32, initializer_range=0.1)
    path = write_rows(Path("rows.jsonl"), *rows)
    words = [f"init_from={model}", f"data.train={path}", f"data.dev={path}", f"train.epochs={epochs}", *FAST]
    unmask.finetune(f"finetune/{task}", words, out="run")
    assert json.loads(Path("model/tokenizer_config.json").read_text("utf-8"))["unmask_segmenter"] == "kiwi"
    return list(unmask.predict("run", rows))


def test_entities_end_before_their_particles() -> None:
    rows = []
    for text in TEXTS:
        words = [(text[:3], "PS"), (text[6:8], "LC"), (text[11:14], "PS")]
        rows.append({"text": text, "entities": [[text.rindex(w), text.rindex(w) + len(w), kind] for w, kind in words]})
    rows = [row for row in rows if len({begin for begin, *_ in row["entities"]}) == 3]
    found = learned("tagging", rows, 20)
    for row, prediction in zip(rows, found, strict=True):
        entities = [[each["start"], each["end"], each["label"]] for each in prediction["entities"]]
        assert sorted(entities) == sorted(row["entities"])
        for each in prediction["entities"]:
            assert row["text"][each["start"] : each["end"]] == each["text"]


def test_answers_end_before_their_particles() -> None:
    rows = [
        {
            "id": str(number),
            "question": f"{text[:3]}는 어디에서 만났나?",
            "context": text,
            "answers": [{"text": text[6:8], "answer_start": 6}],
        }
        for number, text in enumerate(TEXTS)
    ]
    for row, prediction in zip(rows, learned("qa", rows, 30), strict=True):
        answer = row["answers"][0]["text"]
        assert (prediction["answer"], prediction["start"], prediction["end"]) == (answer, 6, 8)
