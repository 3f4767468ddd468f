"""A kind of task that is not of the program, with the head of another kind: it is trained, saved, opened, asked
and served."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from starlette.testclient import TestClient
from torch import Tensor

import unmask
from support.files import write_rows
from support.serving import app_of
from support.untrained import save_bert
from unmask.card import card_of
from unmask.finetuning.run import save_finetuned
from unmask.inference.abstaining import Abstaining
from unmask.inference.predictor import predict_file
from unmask.models.hub.directory import load_encoder
from unmask.serving.engine.models import open_models
from unmask.tasks import table
from unmask.tasks.base import ExampleCounts, Prediction
from unmask.tasks.encoded import EncodedExamples
from unmask.tasks.kinds import FACTS
from unmask.tasks.settings import FIELDS_OF_KINDS, ColumnSettings, TaskSettings
from unmask.tasks.table import TASKS, open_task
from unmask.tasks.text.classification import Classification
from unmask.tasks.text.examples import TextFiles
from unmask.tokenization.opening import open_tokenizer

STARS = ["bad", "fair", "good"]
ORDINAL = FACTS["classification"]._replace(
    endpoint="rank", decision=("label", "median"), own_way="`unmask` answers with the median, and a pipeline does not"
)


class OrdinalSettings(TaskSettings):
    name: Any = "ordinal"


@dataclass(frozen=True)
class Ordinal(Classification):
    """Labels with an order: the answer is the median of their probabilities."""

    kind: ClassVar[Any] = "ordinal"

    def decode(self, examples: Sequence[Any], encoded: EncodedExamples, outputs: Tensor) -> list[Prediction]:
        medians = (outputs.softmax(-1).cumsum(-1) < 0.5).sum(-1).tolist()
        predictions = super().decode(examples, encoded, outputs)
        return [{**each, "median": self.labels[place]} for each, place in zip(predictions, medians, strict=True)]


def open_ordinal(settings: TaskSettings, columns: ColumnSettings, lenient: bool = False) -> Ordinal:
    files = TextFiles().with_columns(columns, lenient)
    return Ordinal(settings, files, tuple(settings.labels or ()))


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its lines in the tables; `TaskKind`, which the settings are checked against, cannot be changed while running."""
    monkeypatch.setitem(TASKS, "ordinal", open_ordinal)  # type: ignore[arg-type]
    monkeypatch.setitem(FACTS, "ordinal", ORDINAL)  # type: ignore[arg-type]
    monkeypatch.setitem(FIELDS_OF_KINDS, "labels", (*FIELDS_OF_KINDS["labels"], "ordinal"))
    monkeypatch.setattr(table, "TaskSettings", OrdinalSettings)


def test_a_kind_with_the_head_of_another_is_opened_as_it_was_saved(tmp_path: Path) -> None:
    rows = [{"text": f"a {star} film {number}", "label": star} for number in range(4) for star in STARS]
    path = write_rows(tmp_path / "rows.jsonl", *rows)
    base = save_bert(tmp_path / "base", [row["text"] for row in rows])
    tokenizer = open_tokenizer(base)
    task = open_task(OrdinalSettings(max_length=32, labels=STARS), ColumnSettings()).fit_to(path)
    batch = task.encode(list(task.load(path, ExampleCounts())), tokenizer, ExampleCounts()).batch(range(len(rows)))
    module: Any = task.module(load_encoder(base, head=task.head_kind).encoder)
    optimizer = torch.optim.AdamW(module.parameters(), lr=5e-3)
    for _ in range(20):
        optimizer.zero_grad()
        [term] = module(batch)
        (term.total / module.counts(batch)["task"]).backward()
        optimizer.step()
    save_finetuned(module, task, tokenizer, tmp_path / "model")
    model = tmp_path / "model"
    [prediction] = list(unmask.predict(model, [{"text": "a good film"}]))
    assert prediction.keys() >= {"label", "probabilities", "median"}
    assert list(prediction["probabilities"]) == STARS
    assert unmask.evaluate(model, path)["n"] == len(rows)

    unsure = next(iter(predict_file(model, path, abstaining=Abstaining(abstain_below=1.0))))
    assert (unsure["label"], unsure["median"], unsure["abstained"]) == (None, None, True)
    assert ORDINAL.own_way in (card := card_of(model))
    assert "pipeline(" not in card
    app = app_of(open_models([str(model)], "fp32"))
    with TestClient(app) as client:
        [served] = client.get("/v1/models").json()["data"]
        assert {"rank", "words"} <= set(served["uses"])
        assert [each["label"] for each in client.post("/predict", json={"inputs": "a good film"}).json()] == sorted(
            STARS, key=lambda label: -prediction["probabilities"][label]
        )
