"""Every kind of task through the commands: what is measured, predicted and scored agrees; runs resume bit for bit."""

from __future__ import annotations

import html
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from support.commands import Command
from support.files import write_rows
from support.runs import assert_same_weights, rows_of, stop_at, weights_of
from support.searches import read_json

pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    pytest.mark.filterwarnings("ignore:.*no current event loop.*:DeprecationWarning"),
]


KINDS = ("classification", "regression", "qa", "choice", "tagging")
VARIANTS: dict[str, tuple[str, Callable[[dict[str, Any]], dict[str, Any]]]] = {
    "multi_label": (
        "classification",
        lambda row: row | {"label": ["wrote", row["label"]] if "a" in row["text"] else []},
    ),
    **dict.fromkeys(
        ("squad2", "answerability"), ("qa", lambda row: row | {"answers": []} if int(row["id"]) % 3 == 0 else row)
    ),
}
"""Recipes of a kind, and how its examples become theirs."""
RECIPES = {"answerability": ("squad2", "task.answerability=true")}
"""Of variants that are recipes with a word more."""
LONGER = ("train.steps=14", "train.micro_batch_size=3", "train.eval_every=5", "train.log_every=2", "train.save_every=4")
"""Ragged micro-batches, and no row, evaluation and checkpoint fall together; dropout is on, as the model has it."""
FAST = ("optimizer.learning_rate=1e-2", "schedule.warmup_ratio=0")


@pytest.fixture
def finetune(unmask: Command, place: Path, task_models: Any) -> Callable[..., Path]:
    """Runs `unmask finetune` on the examples of a kind, the last four of them dev, and returns the run's directory."""

    def run(kind: str, out: str, *words: str, options: tuple[str, ...] = (), code: int = 0) -> Path:
        of_kind, change = VARIANTS.get(kind, (kind, dict))
        rows = [json.dumps(change(json.loads(row))) + "\n" for row in task_models.examples[of_kind].splitlines()]
        (place / f"{kind}.jsonl").write_text("".join(rows[:12]), "utf-8")
        (place / f"{kind}-dev.jsonl").write_text("".join(rows[12:]), "utf-8")
        recipe, *more = RECIPES.get(kind, (kind,))
        given = task_models.words(kind, f"{kind}.jsonl", f"data.dev={kind}-dev.jsonl", *more, *words)
        left, output, errors = unmask("finetune", f"finetune/{recipe}", *given, "--out", out, *options)
        assert left == code, errors
        assert output == ("" if code else f"{out}/model\n{out}/report.html\n")
        return place / out

    return run


def of_dev(run: Path) -> dict[str, float]:
    """The figures on dev at the end of a run."""
    return {name: value for name, value in read_json(run / "results.json")["dev"].items() if name != "loss"}


def measured(unmask: Command, *words: object) -> dict[str, Any]:
    code, output, errors = unmask("evaluate", *words, "--json")
    assert code == 0, errors
    result: dict[str, Any] = json.loads(output)
    return result


def predicted(unmask: Command, model: Path, data: Path) -> str:
    code, output, errors = unmask("predict", model, data)
    assert code == 0, errors
    return str(output)


@pytest.mark.parametrize("kind", [*KINDS, *VARIANTS])
def test_figures_are_the_same_everywhere(
    unmask: Command, finetune: Callable[..., Path], kind: str, request: pytest.FixtureRequest
) -> None:
    """At the end of the run, of its model, and of its predictions; `info` and the report say what was learned."""
    has_report = kind in ("classification", "tagging")
    if not has_report:
        request.getfixturevalue("without_report")
    run = finetune(kind, "run", *LONGER, *FAST)
    dev = run.parent / f"{kind}-dev.jsonl"
    figures = measured(unmask, "run", "--data", dev)
    name = {"multi_label": "classification", "answerability": "squad2"}.get(kind, kind)
    assert (figures["task"], figures["n"]) == (name, 4)
    assert figures["metrics"] == of_dev(run)

    said = predicted(unmask, run, dev)
    (run / "said.jsonl").write_text(said, "utf-8")
    rows = [json.loads(line) for line in dev.read_text("utf-8").splitlines()]
    assert [json.loads(line)["input"] for line in said.splitlines()] == rows
    assert measured(unmask, "--predictions", run / "said.jsonl", "--data", dev, "--task", name) == figures

    request.getfixturevalue("without_report")
    repeated = unmask("finetune", run / "recipe.yaml", "--out", "again")
    assert repeated.code == 0, repeated.errors
    assert of_dev(run.parent / "again") == of_dev(run)

    for path in (run, run / "model"):
        described = unmask("info", path)
        assert described.code == 0
        assert name in described.output
    if has_report:
        report = html.unescape((run / "report.html").read_text("utf-8"))
        assert name in report
        assert next(rows[0][name] for name in ("text", "tokens") if name in rows[0])[-1] in report


LABELLED = {"classification": "label", "regression": "label", "qa": "answers", "choice": "label", "tagging": "tags"}
"""Where the label of a kind of task stands."""


def figures_of_predictions(unmask: Command, model: Path, data: Path, kind: str) -> dict[str, Any]:
    said = data.with_name("said.jsonl")
    said.write_text(predicted(unmask, model, data), "utf-8")
    return measured(unmask, "--predictions", said, "--data", data, "--task", kind)


@pytest.mark.parametrize("kind", KINDS)
def test_unlabelled_rows_do_not_change_the_figures(unmask: Command, place: Path, task_models: Any, kind: str) -> None:
    rows = [json.loads(line) for line in task_models.examples[kind].splitlines()]
    whole, labelled = place / "whole.jsonl", place / "labelled.jsonl"
    bare = [{name: value for name, value in row.items() if name != LABELLED[kind]} for row in rows[:3]]
    write_rows(whole, *bare[:1], *rows[3:], *bare[1:])
    write_rows(labelled, *rows[3:])
    model = task_models.runs / kind
    figures = figures_of_predictions(unmask, model, whole, kind)
    # Those of the same predictions: other rows in a batch change the last digits, and so the ranks of near values.
    said = [json.loads(line) for line in (place / "said.jsonl").read_text("utf-8").splitlines()]
    write_rows(place / "fewer.jsonl", *(one for one in said if LABELLED[kind] in one["input"]))
    assert measured(unmask, "--predictions", place / "fewer.jsonl", "--data", labelled, "--task", kind) == figures
    assert figures["n"] == 13
    primary = next(iter(figures["metrics"]))
    measured_alone = measured(unmask, model, "--data", labelled)
    # float32, in other batches; the first figure of each kind has no ranks in it.
    assert figures["metrics"][primary] == pytest.approx(measured_alone["metrics"][primary], abs=1e-4)


@pytest.mark.parametrize("kind", ["classification", "choice", "tagging"])
def test_figures_of_a_file_that_lacks_a_label(unmask: Command, place: Path, task_models: Any, kind: str) -> None:
    """The model says, or could say, what the file does not hold."""
    rows = [json.loads(line) for line in task_models.examples[kind].splitlines()]
    model, data = task_models.runs / kind, place / "data.jsonl"
    for tag in ("B-PER", "O"):
        kept = [
            row | {"tags": [found if found.endswith(tag[-3:]) else "O" for found in row["tags"]]}
            if kind == "tagging"
            else row
            for row in rows
            if kind == "tagging" or row["label"] == rows[0]["label"]
        ]
        write_rows(data, *kept)
        assert figures_of_predictions(unmask, model, data, kind) == measured(unmask, model, "--data", data)


@pytest.mark.usefixtures("without_report")
def test_figures_with_the_context_of_documents(unmask: Command, place: Path, task_models: Any) -> None:
    """Predicted with the sentences around, as trained and measured with them; without them other tags are said."""
    rows = [json.loads(line) for line in task_models.examples["tagging"].splitlines()]
    told = [row | {"document": number // 5} for number, row in enumerate(rows)]
    data = write_rows(place / "tagging.jsonl", *told)
    words = task_models.words("tagging", data, "task.document_context=true", "train.steps=6", *FAST)
    code, _, errors = unmask("finetune", "finetune/tagging", *words, "--out", "run")
    assert code == 0, errors
    assert figures_of_predictions(unmask, place / "run", data, "tagging") == measured(unmask, "run", "--data", data)
    alone = write_rows(place / "alone.jsonl", *rows)
    entities = [
        [json.loads(line)["entities"] for line in predicted(unmask, place / "run", path).splitlines()]
        for path in (data, alone)
    ]
    assert entities[0] != entities[1]


@pytest.mark.usefixtures("without_report")
@pytest.mark.parametrize("kind", ["qa", "answerability", "choice", "tagging"])
def test_an_interrupted_run_ends_as_one_that_never_stopped(
    finetune: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    whole = finetune(kind, "whole", *LONGER, *FAST)
    with monkeypatch.context() as patched:
        stop_at(patched, 7)
        halves = finetune(kind, "halves", *LONGER, *FAST, code=143)
    assert not (halves / "model").exists()
    finetune(kind, "halves", *LONGER, *FAST, options=("--resume",))
    assert_same_weights(whole / "model", halves / "model")
    if kind == "answerability":
        assert len({(run / "model" / "head.safetensors").read_bytes() for run in (whole, halves)}) == 1
    assert rows_of(whole) == rows_of(halves)
    assert read_json(whole / "results.json") == read_json(halves / "results.json")


@pytest.mark.usefixtures("without_report")
@pytest.mark.parametrize("kind", ["qa", "regression"])
def test_a_search_with_restarts_and_an_ensemble(unmask: Command, finetune: Callable[..., Path], kind: str) -> None:
    run = finetune(kind, "run", "train.steps=4", *FAST[1:], "search.learning_rates=[1e-2, 1e-5]",
                   "search.restarts=2", "search.ensemble=true")  # fmt: skip
    dev = run.parent / f"{kind}-dev.jsonl"
    summary = read_json(run / "summary.json")
    assert len(summary["trials"]) == 4
    best = summary["best_on_dev"]["trial"]
    assert predicted(unmask, run, dev) == predicted(unmask, run / "trials" / best, dev)
    assert len(summary["ensemble"]["members"]) == 2
    assert measured(unmask, run / "ensemble", "--data", dev)["metrics"] == summary["ensemble"]["dev"]
    members = [run / "trials" / name for name in summary["ensemble"]["members"]]
    score = "value" if kind == "regression" else "score"
    told = [[json.loads(line)[score] for line in predicted(unmask, model, dev).splitlines()] for model in members]
    together = [json.loads(line)[score] for line in predicted(unmask, run / "ensemble", dev).splitlines()]
    if kind == "regression":
        # The mean of two float32 numbers of order 1.
        assert together == pytest.approx([sum(each) / 2 for each in zip(*told, strict=True)], abs=1e-6)
    else:
        # The best span's sum of two is at most the sum of the best of each.
        assert all(both <= sum(each) + 1e-5 for both, each in zip(together, zip(*told, strict=True), strict=True))
    assert kind in html.unescape((run / "report.html").read_text("utf-8"))


@pytest.mark.usefixtures("without_report")
@pytest.mark.parametrize("kind", ["qa", "classification", "choice", "tagging"])
def test_one_task_after_another_keeps_the_head(finetune: Callable[..., Path], kind: str) -> None:
    """At a rate next to nothing the second run ends with the head, and the encoder, of the first."""
    first = finetune(kind, "first", "train.steps=3", *FAST)
    standing = ("optimizer.learning_rate=1e-12", f"init_from={first}")
    second = finetune(kind, "second", *standing, "keep_head=true")
    before, after = weights_of(first / "model"), weights_of(second / "model")
    assert before.keys() == after.keys()
    assert all(torch.allclose(before[name], after[name], atol=1e-9) for name in before)
    other = weights_of(finetune(kind, "other", *standing) / "model")
    head = {name for name in before if name.startswith(("classifier.", "qa_outputs."))}
    changed = {name for name in before if not torch.allclose(before[name], other[name], atol=1e-9)}
    assert {name for name in head if name.endswith(".weight")} <= changed <= head


LAYERS: dict[str, tuple[tuple[str, ...], set[str]]] = {
    # settings, and what of the base stays or moves as one would have it: see the test
    "all frozen": (("freeze_layers=all",), {"embeddings.", "encoder.layer.", "pooler."}),
    "one frozen": (("freeze_layers=1",), {"embeddings.", "encoder.layer.0."}),
    "embeddings frozen": (("freeze_layers=0",), {"embeddings."}),
    "one taken and frozen": (("transfer_layers=1", "freeze_layers=1"), {"embeddings.", "encoder.layer.0."}),
}


@pytest.mark.usefixtures("without_report")
@pytest.mark.parametrize(("words", "kept"), LAYERS.values(), ids=LAYERS)
def test_layers_that_are_frozen_stay(
    finetune: Callable[..., Path], task_models: Any, words: tuple[str, ...], kept: set[str]
) -> None:
    found, before = weights_of(finetune("classification", "run", *words, *FAST) / "model"), weights_of(task_models.base)
    same = {name for name, value in before.items() if torch.equal(found[f"bert.{name}"], value)}
    assert same == {name for name in before if name.startswith(tuple(kept))}


@pytest.mark.usefixtures("without_report")
def test_lower_layers_learn_more_slowly(finetune: Callable[..., Path], task_models: Any) -> None:
    """Adam's first step is the rate for every weight whose gradient is far over epsilon."""
    words = ("optimizer.layer_decay=0.5", "optimizer.weight_decay=0", "train.max_grad_norm=null", *FAST)
    found, before = weights_of(finetune("tagging", "run", *words) / "model"), weights_of(task_models.base)
    parts = ("embeddings.word_embeddings.weight", *(f"encoder.layer.{n}.intermediate.dense.weight" for n in (0, 1)))
    moved = [float((found[f"bert.{name}"] - before[name]).abs().max()) for name in parts]
    # 1 %: the step of a weight of gradient g is the rate times g / (g + epsilon), and the largest g are over 1e-4.
    assert moved == pytest.approx([moved[2] / 4, moved[2] / 2, moved[2]], rel=0.01)


@pytest.mark.usefixtures("without_report")
@pytest.mark.parametrize(
    ("head", "layers"), [("bilstm", "last"), ("bilstm", "weighted-all"), ("linear", "second-to-last")]
)
def test_a_head_on_frozen_features(
    unmask: Command, finetune: Callable[..., Path], task_models: Any, head: str, layers: str
) -> None:
    words = (f"task.tagging_head={head}", f"task.feature_layers={layers}", "freeze_layers=all")
    words += ("task.bilstm_size=8",) if head == "bilstm" else ()
    run = finetune("tagging", "run", *words, "train.steps=3", *FAST)
    assert not (run / "features").exists()  # as large as the data times the width: kept for the run only
    weights, results = load_file(run / "model" / "head.safetensors"), read_json(run / "results.json")
    mixture = (
        {"weights": torch.softmax(weights["mixture.scores"], 0).tolist(), "gamma": float(weights["mixture.gamma"])}
        if layers == "weighted-all"
        else None
    )
    assert results.get("mixture") == mixture
    found, before = weights_of(run / "model"), weights_of(task_models.base)
    assert all(torch.equal(value, before[name]) for name, value in found.items())
    figures = measured(unmask, run, "--data", "tagging-dev.jsonl")
    assert figures["metrics"] == of_dev(run)
    (run / "said.jsonl").write_text(predicted(unmask, run, Path("tagging-dev.jsonl")), "utf-8")
    scored = measured(unmask, "--predictions", run / "said.jsonl", "--data", "tagging-dev.jsonl", "--task", "tagging")
    assert scored == figures
    assert "tagging" in unmask("info", run).output


@pytest.mark.usefixtures("without_report")
@pytest.mark.parametrize(
    "head", [("task.tagging_head=bilstm", "task.bilstm_size=8"), ("task.feature_layers=embeddings",)]
)
def test_a_head_on_features_goes_on_with_the_encoder_that_it_began_with(
    unmask: Command, place: Path, task_models: Any, monkeypatch: pytest.MonkeyPatch, head: tuple[str, ...]
) -> None:
    """Its features are computed anew at a resume."""
    begun = place / "begun"
    shutil.copytree(task_models.base, begun)
    (place / "tagging.jsonl").write_text(task_models.examples["tagging"], "utf-8")
    words = task_models.words("tagging", "tagging.jsonl", "data.dev=tagging.jsonl", *LONGER, *FAST)
    words = [f"init_from={begun}" if word.startswith("init_from=") else word for word in words]
    words += [*head, "freeze_layers=all"]
    assert unmask("finetune", "finetune/tagging", *words, "--out", "whole").code == 0
    with monkeypatch.context() as patched:
        stop_at(patched, 7)
        assert unmask("finetune", "finetune/tagging", *words, "--out", "halves").code == 143
    weights = load_file(begun / "model.safetensors")
    save_file({name: 2 * weight for name, weight in weights.items()}, begun / "model.safetensors")
    assert unmask("finetune", "finetune/tagging", *words, "--out", "halves", "--resume").code == 0
    assert_same_weights(place / "whole" / "model", place / "halves" / "model")
    assert rows_of(place / "whole") == rows_of(place / "halves")
    config = read_json(begun / "config.json")
    (begun / "config.json").write_text(json.dumps(config | {"num_hidden_layers": config["num_hidden_layers"] - 1}))
    fewer = {name: weight for name, weight in weights.items() if ".layer.1." not in name}
    save_file(fewer, begun / "model.safetensors")
    code, _, errors = unmask("finetune", "finetune/tagging", *words, "--out", "halves", "--resume")
    assert (code, "does not fit this run's model" in errors) == (2, True)


@pytest.mark.usefixtures("without_report")
def test_numbers_of_any_scale_are_learned(unmask: Command, place: Path, task_models: Any) -> None:
    """Prices: as they are, a head would need thousands of steps to reach their mean. Evaluations on the way, and the
    best weights among them, answer on that scale too."""
    rows = [json.loads(row) for row in task_models.examples["regression"].splitlines()]
    priced = [json.dumps(row | {"label": 300_000 + 50_000 * row["label"]}) + "\n" for row in rows]
    (place / "prices.jsonl").write_text("".join(priced), "utf-8")
    words = task_models.words("regression", "prices.jsonl", "data.dev=prices.jsonl", "train.steps=60", *FAST)
    found = {}
    for out, more in (("whole", []), ("best", ["train.eval_every=20", "train.patience=5", "train.metric=mse"])):
        assert unmask("finetune", "finetune/regression", *words, *more, "--out", out).code == 0
        found[out] = read_json(place / out / "results.json")
    assert found["whole"]["dev"]["mse"] < 0.7 * found["whole"]["floors"]["dev.mse"]["mean of train"]
    errors = [row["eval/mse"] for row in rows_of(place / "best") if "eval/mse" in row]
    assert found["best"]["dev"]["mse"] == min(errors) < max(errors)
    for out, results in found.items():
        measured = json.loads(unmask("evaluate", out, "--data", "prices.jsonl", "--json").output)["metrics"]
        assert measured == {name: results["dev"][name] for name in measured}


CALIBRATED = ("task.calibration=temperature",)


@pytest.mark.parametrize(("kind", "words"), [("classification", ()), ("multi_label", ("task.thresholds=dev",))])
def test_what_is_chosen_on_dev_is_in_the_model(
    unmask: Command, finetune: Callable[..., Path], kind: str, words: tuple[str, ...]
) -> None:
    """A temperature changes how sure a model is, not what it says; thresholds raise F1; the report shows both."""
    plain = finetune(kind, "plain", *LONGER, *FAST)
    run = finetune(kind, "chosen", *LONGER, *FAST, *CALIBRATED, *words)
    dev = run.parent / f"{kind}-dev.jsonl"
    before, after = (read_json(each / "results.json") for each in (plain, run))
    assert after["dev"]["loss"] < before["dev"]["loss"]
    calibration = after["calibration"]
    assert calibration["error_before"] == before["calibration"]["expected_calibration_error"]
    assert "temperature" not in before["calibration"]
    assert "thresholds_chosen_on" not in before
    assert after.get("thresholds_chosen_on") == ("dev" if words else None)
    losses = "for the lowest loss: {:.4g} before, {:.4g} now; ".format(
        *(each["dev"]["loss"] for each in (before, after))
    )
    assert losses in (run / "log.txt").read_text("utf-8")
    figures = measured(unmask, "chosen", "--data", dev)
    assert figures["metrics"] == of_dev(run)
    assert figures["expected_calibration_error"] == calibration["expected_calibration_error"]
    said, calibrated = (
        [json.loads(line)["probabilities"] for line in predicted(unmask, each, dev).splitlines()]
        for each in (plain, run)
    )
    order = [[sorted(each, key=each.get) for each in some] for some in (said, calibrated)]
    assert order[0] == order[1]
    assert said != calibrated
    if kind == "multi_label":
        thresholds = read_json(run / "model" / "config.json")["unmask_task"]["thresholds"]
        assert set(thresholds) == set(read_json(run / "model" / "config.json")["label2id"])
        assert after["dev"]["f1_macro"] >= before["dev"]["f1_macro"]
        chosen = " · ".join(f"{label} {threshold:.4g}" for label, threshold in thresholds.items())
        log = (run / "log.txt").read_text("utf-8")
        assert f"chosen on dev: thresholds {chosen}; with that " in log
        assert "(flattered, since chosen on these examples)" in log
        said = "Thresholds were chosen on dev: its figures are flattered by that"
        assert said in (run / "report.html").read_text("utf-8")
        assert unmask("card", "chosen").code == 0
        assert said in (run / "model" / "README.md").read_text("utf-8")
        assert f" · f1_macro {after['dev']['f1_macro']:.4g} · " in log.partition("; with that ")[2]
    title = (
        "How often a label is there on dev" if kind == "multi_label" else "Accuracy on dev, by how sure the model is"
    )
    assert title in (run / "report.html").read_text("utf-8")


@pytest.mark.usefixtures("without_report")
@pytest.mark.parametrize("pooling", ["max", "learnt"])
@pytest.mark.parametrize("kind", ["classification", "regression"])
def test_long_texts_are_read_in_windows(
    unmask: Command, finetune: Callable[..., Path], kind: str, pooling: str
) -> None:
    """Trained, measured and predicted alike; regression reads the one text that it has."""
    columns = () if kind == "classification" else ("data.columns.text=text_a",)
    words = ("task.long_text=windows", "task.max_length=6", "task.doc_stride=2", *columns)
    words += (f"task.window_pooling={pooling}",)
    run = finetune(kind, "run", *LONGER, *FAST, *words)
    dev = run.parent / f"{kind}-dev.jsonl"
    assert measured(unmask, "run", "--data", dev)["metrics"] == of_dev(run)
    assert "cut" not in (run / "log.txt").read_text("utf-8")
    weights = run / "model" / "head.safetensors"
    assert weights.is_file() == (pooling == "learnt")
    if pooling == "learnt":
        assert load_file(weights)["query"].abs().max() > 0, "it has learned how to weigh"
