"""Models in ONNX files: they answer as before, their certificate says how nearly, and what is too much worse is not
written."""

from __future__ import annotations

import json
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from starlette.testclient import TestClient

from support.commands import Command
from support.model_files import edit_config
from support.serving import app_of
from support.untrained import save_bert, save_discriminator, save_language_model, save_masked_lm
from unmask.errors import InputError
from unmask.exporting.export import write_graph
from unmask.exporting.graph import PaddedModel
from unmask.inference.example_sets import encode_sets, run_module
from unmask.inference.predictor import load_predictor
from unmask.io.rows import Row
from unmask.serving.engine.models import open_models
from unmask.tasks.base import ExampleCounts

onnx = pytest.importorskip("onnx", reason="needs the extra onnx")
pytest.importorskip("onnxruntime", reason="needs the extra onnx")
pytestmark = pytest.mark.usefixtures("one_thread", "place")


def examples(task_models: Any, kind: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in task_models.examples[kind].splitlines()]


def slow(case: str) -> Any:
    """A case that runs the same code as the others."""
    return pytest.param(case, marks=pytest.mark.slow)


TEXTS = ["She opened the door and went out .", "The children play in the garden , and the dog sleeps ."] * 20
MASKS = {"roberta": "<mask>"}
TENSORFLOW = Path(__file__).parents[2] / "golden" / "tensorflow_checkpoint"


WRITTEN: dict[Any, bytes] = {}
"""Graphs by the models that they are of."""


@pytest.fixture(autouse=True)
def _a_graph_of_the_same_model_is_written_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """To write one takes seconds, however small the model."""

    def write_once(model: PaddedModel, path: Path) -> None:
        weights = tuple(weight.numpy().tobytes() for weight in model.state_dict().values())
        key = (repr(model), repr(model.encoder.settings), model.kind, weights)
        if key not in WRITTEN:
            write_graph(model, path)
            WRITTEN[key] = path.read_bytes()
        path.write_bytes(WRITTEN[key])

    monkeypatch.setattr("unmask.exporting.export.write_graph", write_once)


@pytest.fixture
def check(place: Path, task_models: Any) -> Any:
    def write(kind: str) -> Path:
        path = place / f"{kind}.jsonl"
        path.write_text(task_models.examples[kind], "utf-8")
        return path

    return write


@pytest.mark.parametrize("kind", ["classification", *map(slow, ("regression", "qa", "choice", "tagging"))])
def test_an_exported_model_answers_as_before(unmask: Command, task_models: Any, check: Any, kind: str) -> None:
    model, data = Path(shutil.copytree(task_models.runs / kind / "model", "tuned")), check(kind)
    (model / "README.md").write_text("---\nlicense: mit\n---\n", "utf-8")
    code, output, errors = unmask("export", model, "--check", data, "--out", "onnx")
    assert code == 0, errors
    assert output.endswith("onnx\n")
    certificate = json.loads(Path("onnx/certificate.json").read_text("utf-8"))
    assert certificate["examples"] == 16
    asked = onnx.load("onnx/model.onnx").opset_import
    assert [certificate["opset"]] == [each.version for each in asked if each.domain == ""]
    assert certificate["largest_difference"]["logits"] < 1e-4
    assert certificate["metrics"]["before"] == pytest.approx(certificate["metrics"]["after"], abs=1e-4)
    assert {each.name for each in Path("onnx").iterdir()} >= {
        "model.onnx",
        "config.json",
        "tokenizer.json",
        "README.md",
    }
    assert not list(Path("onnx").glob("*.safetensors"))
    card = Path("onnx/README.md").read_text("utf-8")
    assert "## Export" in card
    assert card.startswith("---\nlicense: mit\n"), "as the model's own card states"
    assert f"    dataset:\n      name: {kind}.jsonl\n" in card
    assert f"| {kind}.jsonl | {certificate['metric']}" in card
    before, after = (
        unmask("evaluate", model, "--data", data, "--json"),
        unmask("evaluate", "onnx", "--data", data, "--json"),
    )
    figures = [json.loads(each.output)["metrics"] for each in (before, after)]
    assert figures[0] == pytest.approx(figures[1], abs=1e-4)
    rows = [Row(each, "here") for each in examples(task_models, kind)[:3]]
    told = [list(load_predictor(each).predict_rows(rows)) for each in (model, "onnx")]
    keys = {"classification": "label", "qa": "answer", "choice": "choice", "tagging": "tags"}
    if kind == "regression":
        assert [each["value"] for each in told[0]] == pytest.approx([each["value"] for each in told[1]], abs=1e-4)
    else:
        assert [each[keys[kind]] for each in told[0]] == [each[keys[kind]] for each in told[1]]
    assert "format" in unmask("info", "onnx").output


@pytest.mark.parametrize("kind", ["classification", slow("choice"), slow("tagging")])
def test_a_unit_of_many_rows_is_computed_in_parts(
    unmask: Command, task_models: Any, check: Any, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    model = Path(shutil.copytree(task_models.runs / kind / "model", "tuned"))
    given = examples(task_models, kind)[:3]
    if kind == "classification":
        config = json.loads((model / "config.json").read_text("utf-8"))
        config["unmask_task"] |= {"long_text": "windows", "max_length": 8, "doc_stride": 4}
        (model / "config.json").write_text(json.dumps(config), "utf-8")
        given[0]["text"] = " ".join([given[0]["text"]] * 20)
    assert unmask("export", model, "--check", check(kind), "--out", "onnx").code == 0
    before, after = load_predictor(model, device="cpu"), load_predictor("onnx")
    [part] = encode_sets(
        before.task, before.task.read_all([Row(each, "here") for each in given]), before.tokenizer, ExampleCounts(), 2
    )
    with torch.inference_mode():
        expected = run_module(before.task, before.module, part.encoded, before.compute)
    monkeypatch.setattr("unmask.batch._PART_TOKENS", 20)
    sizes: list[int] = []
    after.module._graph.register_forward_pre_hook(lambda _, its: sizes.append(its[0].num_tokens))  # type: ignore[union-attr]
    found = run_module(after.task, after.module, part.encoded, after.compute)
    np.testing.assert_allclose(found, expected, atol=1e-5)
    assert len(sizes) > 1
    assert max(sizes) <= max(20, part.encoded.row_lengths.max())


@pytest.mark.parametrize("family", [slow("bert"), slow("roberta"), slow("electra"), "modernbert"])
def test_an_exported_masked_model_answers_as_before(unmask: Command, family: str) -> None:
    model = save_masked_lm(Path("model"), family, TEXTS)
    Path("texts.txt").write_text("\n".join(TEXTS[:6]), "utf-8")
    told = exported(unmask, model, "texts.txt")
    assert told["examples"] == 6
    assert told["largest_difference"].keys() == {"logits", "last_hidden_state"}
    assert 0 < max(told["largest_difference"].values()) < 1e-5
    assert told["metric"] == "masked_accuracy"
    assert told["metrics"]["before"] == told["metrics"]["after"]
    text = f"She opened the {MASKS.get(family, '[MASK]')} and went out ."
    before, after = (lines(unmask("fill-mask", each, text, "--top-k", 3)) for each in (model, "onnx"))
    assert len(before) == 3
    for one, other in zip(before, after, strict=True):
        assert one.pop("score") == pytest.approx(other.pop("score"), abs=1e-5)
        assert one == other
    same_features(unmask, model, "texts.txt")
    commands = json.loads(unmask("info", "onnx", "--json").output)["commands"]
    assert commands == ["fill-mask", "features", "similarity", "serve"]
    served = open_models(["onnx=onnx", "model=model"], "fp32")
    app = app_of(served)
    with TestClient(app) as client:
        uses = client.get("/v1/models").json()["data"][0]["uses"]
        assert {"fill-mask", "features", "similarity", "tokenize"} <= set(uses)
        assert set(uses).isdisjoint({"score", "pairs", "attention", "layers"}), "what looks inside"
        for use, inputs in (("fill-mask", [text]), ("features", TEXTS[:2])):
            asked = [client.post(f"/v1/models/{name}/{use}", json={"inputs": inputs}).json() for name in served]
            found = [flat(each["predictions"]) for each in asked]
            assert found[0] == pytest.approx(found[1], abs=1e-5)
        refused = client.post("/v1/models/onnx/features", json={"inputs": TEXTS[:1], "layers": "embeddings"})
        assert (refused.status_code, "the last layer alone" in refused.text) == (422, True)


@pytest.mark.parametrize("layout", ["google", slow("no class named")])
def test_a_model_without_the_usual_configuration_is_exported(unmask: Command, layout: str) -> None:
    if layout == "google":
        shutil.copytree(
            TENSORFLOW, "model", ignore=lambda place, _: [e.name for e in Path(place).iterdir() if e.is_dir()]
        )
        weights, text = Path("model/bert_model.ckpt.data-00000-of-00001"), "mirba [MASK] sanu"
    else:
        save_masked_lm(Path("model"), "bert", TEXTS)
        weights, text = Path("model/model.safetensors"), "She opened the [MASK]"
        config = json.loads(Path("model/config.json").read_text("utf-8"))
        del config["architectures"]
        Path("model/config.json").write_text(json.dumps(config), "utf-8")
    Path("texts.txt").write_text(f"{text.replace('[MASK]', 'the')}\n" * 3, "utf-8")
    told = exported(unmask, Path("model"), "texts.txt")
    assert max(told["largest_difference"].values()) < 1e-5
    assert told["size_bytes"]["before"] == weights.stat().st_size
    before, after = (lines(unmask("fill-mask", each, text, "--top-k", 2)) for each in ("model", "onnx"))
    assert [each["token"] for each in before] == [each["token"] for each in after]
    if layout == "google":
        assert "Google's TensorFlow" in Path("onnx/README.md").read_text("utf-8")


@pytest.mark.parametrize("kind", ["encoder", slow("discriminator")])
def test_an_encoder_gives_the_same_features(unmask: Command, kind: str) -> None:
    of_one_layer = partial(save_bert, num_hidden_layers=1)  # each takes a second or two to be exported
    model = (of_one_layer if kind == "encoder" else save_discriminator)(Path("model"), TEXTS)
    Path("texts.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS[:5]), "utf-8")
    told = exported(unmask, model, "texts.jsonl")
    outputs = {"last_hidden_state"} if kind == "encoder" else {"logits", "last_hidden_state"}
    assert told["largest_difference"].keys() == outputs
    assert max(told["largest_difference"].values()) < 1e-5
    assert told["metrics"]["after"]["cosine"] == pytest.approx(1)
    same_features(unmask, model, "texts.jsonl")
    code, _, errors = unmask("fill-mask", "onnx", "the [MASK]")
    assert (code, "expected a masked language model" in errors) == (2, True)
    code, _, errors = unmask("features", "onnx", "texts.jsonl", "--out", "more", "--layers", "concat-last-4")
    assert code == 2
    assert not Path("more").exists()


def exported(unmask: Command, model: Path, texts: str, *words: object) -> Any:
    code, output, errors = unmask("export", model, "--check", texts, "--out", "onnx", "--json", *words)
    assert code == 0, errors
    assert "## Export" in Path("onnx/README.md").read_text("utf-8")
    return json.loads(output)


def lines(done: Any) -> list[dict[str, Any]]:
    assert done.code == 0, done.errors
    return [json.loads(line) for line in done.output.splitlines()]


def flat(predictions: Any) -> list[float]:
    """The numbers of answers, in order."""
    found = []
    for row in predictions:
        found += [each["score"] if isinstance(each, dict) else each for each in row]
    return found


def same_features(unmask: Command, model: Path, texts: str) -> None:
    for name in (model, "onnx"):
        done = unmask("features", name, texts, "--out", f"features-{name}", "--pool", "mean")
        assert done.code == 0, done.errors
    found = [np.load(f"features-{name}/features.npy") for name in (model, "onnx")]
    np.testing.assert_allclose(found[1], found[0], atol=1e-5)


def test_int8_is_served(unmask: Command, task_models: Any, check: Any) -> None:
    import onnx

    model = task_models.runs / "classification"
    words = ("export", model, "--check", check("classification"), "--out", "small", "--format", "onnx-int8")
    code, output, errors = unmask(*words, "--max-loss", 1, "--json")
    assert code == 0, errors
    told = json.loads(output)
    kinds = {weight.data_type for weight in onnx.load("small/model.onnx").graph.initializer}
    assert onnx.TensorProto.INT8 in kinds, "its weights are in 8 bits; one so small is not the smaller for it"
    assert told["largest_difference"]["logits"] > 0
    edit_config(Path("small"), unmask_trained_length=4)
    assert load_predictor("small").trained_length == 4, "with which longer texts are warned of"
    app = app_of(open_models(["small=small"], "fp32"))
    with TestClient(app) as client:
        uses = set(client.get("/v1/models").json()["data"][0]["uses"])
        assert "classify" in uses
        assert uses.isdisjoint({"features", "similarity", "words", "attention"})
        asked = client.post("/v1/models/small/classify", json={"inputs": ["Ada wrote a warm paper"]})
        assert asked.status_code == 200, asked.text
        texts = ["Ada wrote a warm paper", "a dull paper", "Ada wrote it and nobody read it but the warm sun of Berlin"]
        together = client.post("/v1/models/small/classify", json={"inputs": texts}).json()["predictions"]
        assert together[0] == asked.json()["predictions"][0], "whatever is beside it"
        predictor = load_predictor("small")
        assert together == [next(iter(predictor.predict_rows([Row({"text": text}, "here")]))) for text in texts]
    code, _, errors = unmask("predict", "small", "classification.jsonl", "--precision", "bf16")
    assert (code, "leave --precision out" in errors) == (2, True)


@pytest.mark.parametrize("name", [*map(slow, ("tagging", "qa", "choice"))])
def test_int8_answers_each_row_by_itself(unmask: Command, task_models: Any, check: Any, name: str) -> None:
    words = ("export", task_models.runs / name, "--check", check(name), "--out", "small", "--format", "onnx-int8")
    assert unmask(*words, "--max-loss", 100).code == 0
    predictor = load_predictor("small")
    rows = [Row(fields, "here") for fields in map(json.loads, Path(check(name)).read_text().splitlines()[:4])]
    assert list(predictor.predict_rows(rows)) == [next(iter(predictor.predict_rows([row]))) for row in rows]


def test_what_is_too_much_worse_is_not_written(
    unmask: Command, task_models: Any, check: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("unmask.exporting.export.certify_task", lambda *_: {
        "metric": "accuracy", "loss": 0.02, "root_mean_square": {},
        "metrics": {"before": {"accuracy": 0.9}, "after": {"accuracy": 0.88}},
    })  # fmt: skip
    model = task_models.runs / "classification"
    code, _, errors = unmask("export", model, "--check", check("classification"), "--out", "bad")
    assert code == 2
    assert "accuracy on classification.jsonl is 0.88 after exporting and 0.9 before: worse by 0.02" in errors.replace(
        str(Path.cwd()) + "/", ""
    )
    assert sorted(each.name for each in Path().iterdir()) == ["classification.jsonl"], "nothing is left behind"


def test_a_graph_that_computes_something_else_is_not_written(unmask: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """As that of an encoder with a setting that the graph does not have; by its answers alone it would pass."""
    hidden_of = PaddedModel._hidden
    monkeypatch.setattr(PaddedModel, "_hidden", lambda *given: hidden_of(*given) + 0.02)
    monkeypatch.setattr("unmask.exporting.export.write_graph", write_graph)  # no other test may find it
    model = save_bert(Path("model"), TEXTS, num_hidden_layers=1)
    Path("texts.txt").write_text("\n".join(TEXTS[:6]), "utf-8")
    code, _, errors = unmask("export", model, "--check", "texts.txt", "--out", "onnx", "--max-loss", 100)
    assert code == 2
    assert "model cannot be exported: last_hidden_state of its graph differ by up to 0.02 from the model's" in errors
    assert not Path("onnx").exists()


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (
            '{"text": "a", "stars": 1}',
            "check.jsonl:1: no column 'label' for the label: there is text, stars. Name it with --column label=",
        ),
        (
            '{"review": "a", "label": 1}',
            "check.jsonl:1: no column 'text': there is review, label. Name yours with --column text=",
        ),
        (
            '{"review": "a", "label": 1}\n{"review": "b", "label": 1}',
            "check.jsonl:1: no column 'text': there is review, label. Name yours with --column text=",
        ),
        ('{"text": "a", "label": "?"}', "check.jsonl:1: the label '?'"),
        ("", "check.jsonl"),
        (None, "check.jsonl"),
    ],
)
def test_a_check_that_is_of_no_use_is_told_before_anything_is_exported(
    rows: str | None, message: str, unmask: Command, task_models: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[Path] = []
    monkeypatch.setattr("unmask.exporting.export.write_graph", lambda model, path: begun.append(path))
    if rows is not None:
        Path("check.jsonl").write_text(rows, "utf-8")
    code, _, errors = unmask("export", task_models.runs / "classification", "--check", "check.jsonl", "--out", "onnx")
    assert code == 2
    assert message in errors
    assert not begun
    assert not Path("onnx").exists()


def test_a_check_may_be_written_in_another_way(
    unmask: Command, task_models: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def begin(model: object, path: Path) -> None:
        raise InputError("the check is read")

    monkeypatch.setattr("unmask.exporting.export.write_graph", begin)
    texts = "".join(
        f"한국어 문장;{label}\n" for label in load_predictor(task_models.runs / "classification").task.labels
    )
    Path("check.csv").write_bytes(f"text;label\n{texts}".encode("cp949"))
    words = ("export", task_models.runs / "classification", "--check", "check.csv", "--out", "onnx")
    code, _, errors = unmask(*words)
    assert code == 2
    assert "give its encoding, --encoding NAME" in errors
    code, _, errors = unmask(*words, "--encoding", "cp949", "--separator", ";")
    assert errors.endswith("the check is read\n")


@pytest.mark.parametrize("kind", ["classification", "encoder"])
def test_a_check_may_have_columns_of_other_names(
    kind: str, unmask: Command, task_models: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def begin(model: object, path: Path) -> None:
        raise InputError("the check is read")

    monkeypatch.setattr("unmask.exporting.export.write_graph", begin)
    model = task_models.base if kind == "encoder" else task_models.runs / kind
    rows = [{"review": each["text"], "stars": each["label"]} for each in examples(task_models, "classification")]
    Path("check.jsonl").write_text("\n".join(map(json.dumps, rows)), "utf-8")
    named = ["--column", "text=review", *(["--column", "label=stars"] if kind != "encoder" else [])]
    words = ("export", model, "--check", "check.jsonl", "--out", "onnx")
    code, _, errors = unmask(*words)
    assert code == 2
    assert "--column text=" in errors
    code, _, errors = unmask(*words, *named)
    assert errors.endswith("the check is read\n")


def test_what_cannot_be_exported(unmask: Command, task_models: Any, check: Any) -> None:
    data, model = check("classification"), task_models.runs / "classification"

    def refusal(*words: object) -> str:
        code, _, errors = unmask("export", *words, "--check", data)
        assert code == 2, errors
        return str(errors.splitlines()[-1])

    assert "expected onnx or onnx-int8" in refusal(model, "--out", "a", "--format", "tflite")
    causal = save_language_model(Path("causal"), "gpt1", "bpe", TEXTS, 120, positions=32)
    assert "a left-to-right language model cannot be exported: fine-tune it" in refusal(causal, "--out", "a")
    Path("mine").mkdir()
    Path("mine/thesis.txt").write_text("text")
    Path("mine/certificate.json").write_text("{}")
    assert "mine holds thesis.txt" in refusal(model, "--out", "mine")
    assert "is no part of an exported model" in refusal(model, "--out", "mine", "--overwrite")
    assert Path("mine/thesis.txt").exists()
    assert "expected a number" in refusal(model, "--out", "a", "--max-loss", "nan")
    shutil.copytree(model / "model", "foreign")
    Path("foreign/notes.txt").symlink_to("../mine/thesis.txt")
    assert "foreign/notes.txt: its link leads out of the directory" in refusal("foreign", "--out", "a")
