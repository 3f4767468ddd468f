"""Models in ONNX files: they answer as before, their certificate says how nearly, and what is too much worse is not
written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from support.commands import Command
from unmask.inference.predictor import load_predictor
from unmask.io.rows import Row
from unmask.serving.app import build_app
from unmask.serving.models import open_models

pytest.importorskip("onnxruntime", reason="needs the extra onnx")
pytestmark = pytest.mark.usefixtures("one_thread")


def examples(task_models: Any, kind: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in task_models.examples[kind].splitlines()]


@pytest.fixture
def check(place: Path, task_models: Any) -> Any:
    def write(kind: str) -> Path:
        path = place / f"{kind}.jsonl"
        path.write_text(task_models.examples[kind], "utf-8")
        return path

    return write


@pytest.mark.parametrize("kind", ["classification", "regression", "qa", "choice", "tagging"])
def test_an_exported_model_answers_as_before(unmask: Command, task_models: Any, check: Any, kind: str) -> None:
    model, data = task_models.runs / kind, check(kind)
    code, output, errors = unmask("export", model, "--check", data, "--out", "onnx")
    assert code == 0, errors
    assert output.endswith("onnx\n")
    certificate = json.loads(Path("onnx/certificate.json").read_text("utf-8"))
    assert certificate["examples"] == 16
    assert certificate["largest_logit_difference"] < 1e-4
    assert certificate["metrics"]["before"] == pytest.approx(certificate["metrics"]["after"], abs=1e-4)
    assert {each.name for each in Path("onnx").iterdir()} >= {
        "model.onnx",
        "config.json",
        "tokenizer.json",
        "README.md",
    }
    assert not list(Path("onnx").glob("*.safetensors"))
    assert "## Export" in Path("onnx/README.md").read_text("utf-8")
    before, after = (
        unmask("evaluate", model, "--data", data, "--json"),
        unmask("evaluate", "onnx", "--data", data, "--json"),
    )
    figures = [json.loads(each.output)["metrics"] for each in (before, after)]
    assert figures[0] == pytest.approx(figures[1], abs=1e-4)
    rows = [Row(each, "here") for each in examples(task_models, kind)[:3]]
    told = [list(load_predictor(each)(rows)) for each in (model, "onnx")]
    keys = {"classification": "label", "qa": "answer", "choice": "choice", "tagging": "tags"}
    if kind == "regression":
        assert [each["value"] for each in told[0]] == pytest.approx([each["value"] for each in told[1]], abs=1e-4)
    else:
        assert [each[keys[kind]] for each in told[0]] == [each[keys[kind]] for each in told[1]]
    assert "format" in unmask("info", "onnx").output


def test_int8_is_served(unmask: Command, task_models: Any, check: Any) -> None:
    import onnx

    model = task_models.runs / "classification"
    words = ("export", model, "--check", check("classification"), "--out", "small", "--format", "onnx-int8")
    code, output, errors = unmask(*words, "--max-loss", 1, "--json")
    assert code == 0, errors
    told = json.loads(output)
    kinds = {weight.data_type for weight in onnx.load("small/model.onnx").graph.initializer}
    assert onnx.TensorProto.INT8 in kinds, "its weights are in 8 bits; one so small is not the smaller for it"
    assert told["largest_logit_difference"] > 0
    app = build_app(open_models(["small=small"], "fp32"))
    with TestClient(app) as client:
        assert client.get("/v1/models").json()["data"][0]["uses"] == ["classify"]
        asked = client.post("/v1/models/small/classify", json={"inputs": ["Ada wrote a warm paper"]})
        assert asked.status_code == 200, asked.text
        [expected] = load_predictor("small")([Row({"text": "Ada wrote a warm paper"}, "here")])
        assert asked.json()["predictions"] == [expected]
    app.service.batcher.close()  # type: ignore[attr-defined]
    code, _, errors = unmask("predict", "small", "classification.jsonl", "--precision", "bf16")
    assert (code, "leave --precision out" in errors) == (2, True)


def test_what_is_too_much_worse_is_not_written(
    unmask: Command, task_models: Any, check: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("unmask.exporting.export.compare", lambda *_: {
        "metric": "accuracy", "loss": 0.02, "metrics": {"before": {"accuracy": 0.9}, "after": {"accuracy": 0.88}},
    })  # fmt: skip
    model = task_models.runs / "classification"
    code, _, errors = unmask("export", model, "--check", check("classification"), "--out", "bad")
    assert code == 2
    assert "accuracy on classification.jsonl is 0.88 after exporting and 0.9 before: worse by 0.02" in errors.replace(
        str(Path.cwd()) + "/", ""
    )
    assert sorted(each.name for each in Path().iterdir()) == ["classification.jsonl"], "nothing is left behind"


def test_what_cannot_be_exported(unmask: Command, task_models: Any, check: Any) -> None:
    data, model = check("classification"), task_models.runs / "classification"

    def refusal(*words: object) -> str:
        code, _, errors = unmask("export", *words, "--check", data)
        assert code == 2, errors
        return str(errors.splitlines()[-1])

    assert "expected onnx or onnx-int8" in refusal(model, "--out", "a", "--format", "tflite")
    assert "expected a fine-tuned model" in refusal(task_models.base, "--out", "a")
    Path("mine").mkdir()
    Path("mine/thesis.txt").write_text("text")
    assert "mine exists already" in refusal(model, "--out", "mine")
    assert "mine is no exported model" in refusal(model, "--out", "mine", "--overwrite")
    assert Path("mine/thesis.txt").exists()
    assert "expected a number" in refusal(model, "--out", "a", "--max-loss", "nan")
