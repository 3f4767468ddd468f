"""A model that classifies answerability: its figures, endpoint, ONNX file, ensemble, mean, what continues from it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from support.commands import Command
from support.files import write_rows
from support.serving import app_of
from unmask.finetuning.run import finetune
from unmask.inference.predictor import load_predictor
from unmask.io.rows import Row
from unmask.serving.engine.models import open_models

pytestmark = pytest.mark.usefixtures("one_thread", "place", "without_report")

CLASSIFIED = "task.answerability=true"


def numbers(predictions: Any) -> list[float]:
    return [one[key] for one in predictions for key in ("score", "null_score", "no_answer_probability")]


@pytest.fixture(scope="module")
def rows(task_models: Any) -> list[dict[str, Any]]:
    rows = [json.loads(line) for line in task_models.examples["qa"].splitlines()]
    return [row if int(row["id"]) % 3 else row | {"answers": []} for row in rows]


@pytest.fixture(scope="module")
def words(tmp_path_factory: pytest.TempPathFactory, task_models: Any, rows: list[dict[str, Any]]) -> list[str]:
    """Of a run of a few steps on these questions."""
    path = write_rows(tmp_path_factory.mktemp("questions") / "data.jsonl", *rows)
    fast = ("train.steps=6", "task.doc_stride=8", "optimizer.learning_rate=1e-2", "schedule.warmup_ratio=0")
    return list(task_models.words("squad2", path, f"data.dev={path}", *fast))


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory, words: list[str]) -> Path:
    """`one` and `other` with the classifier, `plain` without."""
    place = tmp_path_factory.mktemp("runs")
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("unmask.finetuning.run.write_report", lambda *_, **__: None)
        for name, more in {"one": [CLASSIFIED], "other": [CLASSIFIED, "seed=1"], "plain": []}.items():
            finetune("finetune/squad2", [*words, *more], out=place / name)
    return place


@pytest.fixture
def data(words: list[str]) -> str:
    return words[1].partition("=")[2]


@pytest.fixture
def asked(rows: list[dict[str, Any]]) -> list[Row]:
    return [Row({key: row[key] for key in ("question", "context")}, "here") for row in rows]


def figures(unmask: Command, model: object, data: str) -> dict[str, float]:
    code, output, errors = unmask("evaluate", model, "--data", data, "--json")
    assert code == 0, errors
    return dict(json.loads(output)["metrics"])


def test_figures_and_the_endpoint(unmask: Command, runs: Path, data: str, asked: list[Row]) -> None:
    told = list(load_predictor(runs / "one", device="cpu").predict_rows(asked))
    assert len({one["no_answer_probability"] for one in told}) > 1
    results = json.loads((runs / "one" / "results.json").read_text("utf-8"))
    assert results["thresholds_chosen_on"] == "dev"
    assert figures(unmask, runs / "one", data) == {k: v for k, v in results["dev"].items() if k != "loss"}
    with TestClient(app_of(open_models([f"m={runs / 'one'}"], "fp32"))) as client:
        reply = client.post("/v1/models/m/answer", json={"inputs": [one.fields for one in asked]}).json()["predictions"]
        assert [one["answer"] for one in reply] == [one["answer"] for one in told]
        assert numbers(reply) == pytest.approx(numbers(told), abs=1e-4)  # fp32, other batches
        assert client.post("/v1/models/m/spans", json=asked[0].fields).status_code == 200
    assert unmask("info", runs / "one").code == 0
    assert unmask("card", runs / "one", "--license", "mit").code == 0
    assert "its head, or a part of it, is in" in (runs / "one" / "model" / "README.md").read_text("utf-8")
    code, _, errors = unmask("predict", runs / "one", data, "task.answerability=false")
    assert (code, "task.answerability cannot be set here: it is decided by the model's head" in errors) == (2, True)


def test_onnx(unmask: Command, runs: Path, data: str, asked: list[Row], monkeypatch: pytest.MonkeyPatch) -> None:
    told = list(load_predictor(runs / "one", device="cpu").predict_rows(asked))
    for out, options in {"onnx": (), "int8": ("--format", "onnx-int8", "--max-loss", "1")}.items():
        code, _, errors = unmask("export", runs / "one", "--check", data, "--out", out, *options)
        assert code == 0, errors
        assert not list(Path(out).glob("*.safetensors"))
        again = list(load_predictor(out).predict_rows(asked))
        if out == "onnx":
            assert [one["answer"] for one in again] == [one["answer"] for one in told]
        # fp32 in another order; 8 bits: a few hundredths of scores of a few
        assert numbers(again) == pytest.approx(numbers(told), abs=1e-3 if out == "onnx" else 0.5)
        graph = Path("onnx/model.onnx").read_bytes()  # to write one takes seconds
        monkeypatch.setattr("unmask.exporting.export.write_graph", lambda _, path, graph=graph: path.write_bytes(graph))


def test_ensembles_and_means(unmask: Command, runs: Path, data: str) -> None:
    for command in ("ensemble", "average"):
        code, _, errors = unmask(command, runs / "one", runs / "other", "--out", command)
        assert code == 0, errors
        assert figures(unmask, command, data)["total"] == 16
        code, _, errors = unmask(command, runs / "one", runs / "plain", "--out", "none")
        assert (code, "task.answerability" in errors) == (2, True), errors


def test_one_task_after_another(unmask: Command, runs: Path, words: list[str], asked: list[Row]) -> None:
    def finetuned(source: str, *more: str) -> tuple[int, str, str]:
        given = {word.partition("=")[0]: word for word in (*words, f"init_from={runs / source}", *more)}
        return unmask("finetune", "finetune/squad2", *given.values(), "--out", "run", "--overwrite")

    standing = ("keep_head=true", "optimizer.learning_rate=1e-12", "train.steps=1")
    code, _, errors = finetuned("one", *standing, CLASSIFIED)
    assert code == 0, errors
    told, again = (list(load_predictor(each, device="cpu").predict_rows(asked)) for each in (runs / "one", "run"))
    assert numbers(again) == pytest.approx(numbers(told), abs=1e-3)
    assert finetuned("plain", *standing, CLASSIFIED)[0] == 0
    assert finetuned("one", "train.steps=1", "freeze_layers=all", "optimizer.layer_decay=0.9", CLASSIFIED)[0] == 0
    code, _, errors = finetuned("one", *standing)
    assert code == 2
    assert (
        "one/model was made with task.answerability=true, and the recipe has task.answerability=false: set it" in errors
    )
