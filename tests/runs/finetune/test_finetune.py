"""Fine-tuning from end to end: interrupted is uninterrupted, and `transformers` opens what comes out."""

from __future__ import annotations

import html
import json
import re
import shutil
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from support.corpora import contents
from support.files import write_rows
from support.model_files import edit_config
from support.runs import assert_same_weights, rows_of, weights_of
from support.tasks import new_task
from support.untrained import save_bert, save_task_model
from unmask.card import write_card
from unmask.doctor.diagnosis import diagnose
from unmask.errors import Interrupted, ModelError
from unmask.finetuning import measuring, run
from unmask.finetuning.inputs import build_module
from unmask.finetuning.run import finetune
from unmask.inference.evaluation import evaluate
from unmask.inference.example_sets import ExampleSet
from unmask.inference.predictor import predict_file
from unmask.info import describe
from unmask.io.paths import SAMPLES
from unmask.models.hub.directory import load_encoder
from unmask.models.hub.source import open_source
from unmask.recipe.tree import FinetuneRecipe
from unmask.tasks.encoded import EncodedExamples
from unmask.tokenization.tokenizer import load_tokenizer

LABELS = ["bad", "good"]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A pre-trained model's directory: random weights, and a head for masked words."""
    texts, model = [line["review"] for line in rows(60)] * 3, tmp_path_factory.mktemp("base") / "model"
    return save_bert(model, texts, masked_lm=True, max_position_embeddings=32, initializer_range=0.1)


def rows(count: int) -> list[dict[str, Any]]:
    """Examples whose label one word decides."""
    things = ["film", "story", "cast", "music", "plot"]
    words = [("dull", "clumsy", "empty"), ("lovely", "clever", "warm")]
    reviews = [f"a {words[n % 2][n % 3]} {things[n % 5]} " + "indeed " * (n % 7) for n in range(count)]
    return [{"id": n, "review": review, "label": LABELS[n % 2]} for n, review in enumerate(reviews)]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("data")
    for name, part in (("train", rows(60)[:48]), ("dev", rows(60)[48:])):
        write_rows(directory / f"{name}.jsonl", *part)
    return directory


@pytest.fixture
def words(base: Path, data: Path) -> list[str]:
    """The overrides that every run here has."""
    return [
        *(f"init_from={base}", f"data.train={data / 'train.jsonl'}", f"data.dev={data / 'dev.jsonl'}"),
        *("data.columns.text=review", "task.max_length=16", "optimizer.learning_rate=1e-2", "train.epochs=4"),
        *("train.batch_size=8", "train.micro_batch_size=3", "train.eval_every=5", "train.log_every=2"),
    ]


def interrupt_at_evaluation(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sends this process SIGTERM as the dev examples are measured for the `number`-th time."""
    measure, seen = measuring.Measurement.__call__, 0

    def interrupting(self: measuring.Measurement) -> dict[str, float]:
        nonlocal seen
        seen += 1
        if seen == number:
            signal.raise_signal(signal.SIGTERM)
        return measure(self)

    monkeypatch.setattr(measuring.Measurement, "__call__", interrupting)


@pytest.mark.usefixtures("without_report")
def test_an_interrupted_run_ends_as_one_that_never_stopped(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = finetune("finetune/classification", words, out=tmp_path / "whole")
    with monkeypatch.context() as patched:
        interrupt_at_evaluation(2, patched)
        with pytest.raises(Interrupted, match=r"stopped at step 10, 42% of the run; .* --resume continues") as stopped:
            finetune("finetune/classification", words, out=tmp_path / "halves")
    assert stopped.value.exit_code == 143
    assert not (tmp_path / "halves" / "model").exists()
    assert describe(tmp_path / "halves")["progress"] == pytest.approx(10 / 24)
    halves = finetune("finetune/classification", words, out=tmp_path / "halves", resume=True)
    assert_same_weights(whole, halves)
    assert rows_of(tmp_path / "whole") == rows_of(tmp_path / "halves")
    written = write_card(halves).read_text("utf-8")
    finetune("finetune/classification", words, out=tmp_path / "halves", resume=True)
    assert (halves / "README.md").read_text("utf-8") == written, "the model is the same"


@pytest.mark.usefixtures("without_report")
def test_a_run_is_evaluated_after_each_epoch_whatever_its_steps(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """48 examples are five steps of ten, the last of which has eight; stopped in the second epoch or at its end."""
    kept = [word for word in words if not word.startswith(("train.epochs", "train.batch_size", "train.eval_every"))]
    each_epoch = [*kept, "train.epochs=2.5", "train.batch_size=10", "train.eval_every=epoch", "train.patience=9"]
    whole = finetune("finetune/classification", each_epoch, out=tmp_path / "whole")
    assert "evaluated after each epoch: every 5 steps" in caplog.messages
    assert [row["step"] for row in rows_of(tmp_path / "whole") if "eval/loss" in row] == [5, 10, 13]
    with monkeypatch.context() as patched:
        interrupt_at_evaluation(2, patched)
        with pytest.raises(Interrupted, match="stopped at step 10"):
            finetune("finetune/classification", each_epoch, out=tmp_path / "halves")
    caplog.clear()
    halves = finetune("finetune/classification", each_epoch, out=tmp_path / "halves", resume=True)
    assert not [message for message in caplog.messages if "resumed with" in message]
    assert_same_weights(whole, halves)
    assert rows_of(tmp_path / "whole") == rows_of(tmp_path / "halves")


@pytest.mark.usefixtures("without_report")
def test_a_resumed_run_has_a_whole_model_whenever_it_is_killed(
    words: list[str], data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before its new model is complete, or before the figures of that are written."""
    out = tmp_path / "run"
    model = finetune("finetune/classification", words, out=out)
    (model / "README.md").write_text("by hand")
    before = contents(model)

    def fail(path: Path, *_: Any) -> None:
        if path.name != SAMPLES:
            raise ValueError("killed")

    def go_on() -> None:
        longer = [word.replace("epochs=4", "epochs=5") for word in words]
        finetune("finetune/classification", longer, out=out, resume=True)

    for place, is_old in (
        ("unmask.models.hub.directory.write_weights", True),
        ("unmask.finetuning.run.write_json", False),
    ):
        with monkeypatch.context() as patched, pytest.raises(ValueError, match="killed"):  # noqa: PT012
            patched.setattr(place, fail)
            go_on()
        assert (contents(model) == before) == is_old
        assert (out / "results.json").exists() == is_old
    assert len(list(predict_file(out, data / "dev.jsonl"))) == 12
    assert "results" not in describe(out)
    assert not diagnose(str(out)).has_fault
    assert (model / "README.md").read_text() == "by hand"
    assert write_card(out, overwrite=True).is_file()
    go_on()
    assert (out / "results.json").exists()


def test_transformers_opens_the_model_and_agrees(
    words: list[str], data: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    run = tmp_path / "run"
    caplog.set_level("INFO", "unmask")
    model = finetune("finetune/classification", [*words, f"data.test={data / 'dev.jsonl'}"], out=run)
    assert model == run / "model"
    assert "train.epochs=4 gives 24 steps, in which little is learnt: train.epochs=34 gives 204" in caplog.messages
    opened, info = AutoModelForSequenceClassification.from_pretrained(model, output_loading_info=True)
    assert not any(info[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    assert opened.config.id2label == {0: "bad", 1: "good"}
    tokenizer = AutoTokenizer.from_pretrained(model)
    predictions = list(predict_file(run, data / "dev.jsonl"))
    assert [one["id"] for one in predictions] == [row["id"] for row in rows(60)[48:]]
    for one in predictions:
        with torch.no_grad():
            logits = opened.eval()(**tokenizer(one["input"]["review"], return_tensors="pt")).logits
        # float32 on both sides; in batches of other shapes the last digits differ.
        assert list(one["probabilities"].values()) == pytest.approx(torch.softmax(logits[0], -1).tolist(), abs=1e-5)
    results = json.loads((run / "results.json").read_text())
    error = results["calibration"]["expected_calibration_error"]
    assert results["test"] == results["dev"] | {"expected_calibration_error": error}
    assert results["floors"]["dev.accuracy"] == {"most frequent label of train": 0.5}
    measured = evaluate(run, data / "dev.jsonl")
    assert measured["metrics"] == {name: value for name, value in results["dev"].items() if name != "loss"}
    its = {"n": 12, "truncated": 0, "unlabelled": 0, "accuracy_interval": measured["accuracy_interval"]}
    assert results["dev_examples"] == results["test_examples"] == its
    samples = json.loads((run / "samples.json").read_text())
    assert samples[0]["input"] == {"review": rows(60)[48]["review"]}
    assert "review" in (run / "report.html").read_text()


def test_from_scratch_takes_no_weights(words: list[str], base: Path, tmp_path: Path) -> None:
    given = replaced(words, *ONE_STEP)
    tuned = weights_of(finetune("finetune/classification", given, out=tmp_path / "a"))
    fresh = weights_of(finetune("finetune/classification", [*given, "from_scratch=true"], out=tmp_path / "b"))
    name = "bert.encoder.layer.0.intermediate.dense.weight"
    before = weights_of(base)[name]
    assert torch.allclose(tuned[name], before, atol=1e-6)  # one step of a rate next to nothing
    assert not torch.allclose(fresh[name], before, atol=1e-3)


ONE_STEP = ["train.steps=1", "optimizer.learning_rate=1e-12", "schedule.warmup_steps=0"]
"""At a rate at which nothing moves."""


def replaced(words: list[str], *others: str) -> list[str]:
    """Other words in the place of those with their keys, and of the number of epochs."""
    keys = {word.partition("=")[0] for word in others}
    return [*(word for word in words if word.partition("=")[0] not in keys | {"train.epochs"}), *others]


@pytest.mark.usefixtures("without_report")
@pytest.mark.parametrize("search", [[], ["search.restarts=2"]], ids=["one run", "a search"])
def test_the_state_of_torch_is_not_that_of_the_caller_and_stays(
    words: list[str], tmp_path: Path, search: list[str]
) -> None:
    before = torch.get_rng_state()
    with torch.inference_mode():
        finetune("finetune/classification", replaced(words, *ONE_STEP, *search), out=tmp_path / "run")
    assert torch.equal(torch.get_rng_state(), before)


def test_settings_may_come_one_by_one(words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "finetune_settings", lambda settings, *_, **__: settings)
    settings: Any = finetune("finetune/classification", iter(replaced(words, *ONE_STEP)), out=tmp_path / "run")
    assert settings.optimizer.learning_rate == 1e-12


def test_constant_predictions_are_named(words: list[str], tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    finetune("finetune/classification", replaced(words, *ONE_STEP), out=tmp_path / "run")
    results = json.loads((tmp_path / "run" / "results.json").read_text())
    assert re.fullmatch(r"all 12 predictions are '(bad|good)', and not all labels are", results["degenerate"])
    assert f"dev: {results['degenerate']}: the model gives every example the same answer" in caplog.text
    assert results["degenerate"] in html.unescape((tmp_path / "run" / "report.html").read_text())


def test_figures_on_test_have_what_to_compare_them_with(words: list[str], tmp_path: Path) -> None:
    """Of three good ones and a bad one, where train has as many of either, and the first label wins."""
    test = write_rows(tmp_path / "test.jsonl", *rows(8)[1::2][:3], rows(8)[0])
    run = tmp_path / "run"
    finetune("finetune/classification", replaced(words, *ONE_STEP, f"data.test={test}"), out=run)
    floors = json.loads((run / "results.json").read_text())["floors"]
    always_good = 2 * 3 / (3 + 4)
    assert floors["test.f1"]["always good"] == pytest.approx(always_good)
    assert floors["test.accuracy"] == {"most frequent label of train": 0.25}
    assert floors["dev.accuracy"] == floors["eval/accuracy"] == {"most frequent label of train": 0.5}
    assert "<bdi>most frequent label of train</bdi>: 0.25" in (run / "report.html").read_text()
    assert re.search(r"\| test \| accuracy \| \S+ \| most frequent label of train 0.25 \|", write_card(run).read_text())


def trained_on(base: Path, length: int, place: Path) -> Path:
    """A copy of a model that says how long the longest sequence was that it has seen."""
    shutil.copytree(base, place)
    edit_config(place, unmask_trained_length=length)
    return place


def test_untrained_positions_are_told_and_never_claimed(
    words: list[str], base: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    source = trained_on(base, 5, tmp_path / "model")
    given = replaced(words, f"init_from={source}", "train.steps=1")
    saved = finetune("finetune/classification", given, out=tmp_path / "run")
    assert json.loads((saved / "config.json").read_text())["unmask_trained_length"] == 5
    assert "sequences have up to" in caplog.text
    assert f"{source} has seen none over 5: its positions beyond are untrained; set task.max_length=5" in caplog.text


def test_a_recipes_length_is_at_most_the_trained_one(
    words: list[str], base: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    source = trained_on(base, 18, tmp_path / "model")
    given = replaced([word for word in words if "max_length" not in word], f"init_from={source}", "train.steps=1")
    saved = finetune("finetune/classification", given, out=tmp_path / "run")
    assert "task.max_length is 18 in place of the recipe's 128" in caplog.text
    config = json.loads((saved / "config.json").read_text())
    assert config["unmask_task"]["max_length"] == 18
    assert config["unmask_trained_length"] == 18


# ---- A head that is kept

CLASSIFIER: dict[str, Any] = {"name": "classification", "labels": LABELS, "max_length": 16}
MULTI_LABEL: dict[str, Any] = {**CLASSIFIER, "multi_label": True}
REGRESSION: dict[str, Any] = {"name": "regression", "max_length": 16}
TAGGER: dict[str, Any] = {"name": "tagging", "labels": ["O", "B-x", "I-x"], "max_length": 16}
BILSTM: dict[str, Any] = {**TAGGER, "tagging_head": "bilstm"}
PROBE: dict[str, Any] = {**TAGGER, "feature_layers": "weighted-all"}


def module_on_kept_head(source: Path, settings: dict[str, Any]) -> Any:
    frozen = {"freeze_layers": "all"} if {"tagging_head", "feature_layers"} & settings.keys() else {}
    given = {"init_from": str(source), "keep_head": True, "task": settings, "data": {"train": "t.tsv"}, **frozen}
    recipe = FinetuneRecipe.model_validate(given)
    return build_module(recipe, new_task(**settings), open_source(source), load_tokenizer(source))


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        (CLASSIFIER, REGRESSION, "single_label_classification with 2 outputs, .* regression with 1"),
        (REGRESSION, CLASSIFIER, "regression with 1 output, .* single_label_classification with 2"),
        (CLASSIFIER, MULTI_LABEL, "single_label_classification with 2 outputs, .* multi_label_classification with 2"),
        (MULTI_LABEL, CLASSIFIER, "multi_label_classification with 2 outputs, .* single_label_classification with 2"),
        (CLASSIFIER, {**CLASSIFIER, "labels": ["bad", "good", "odd"]}, "has the labels bad, good, and"),
        (CLASSIFIER, TAGGER, "has a head for sequence_classification, and tagging needs one for token_classification"),
        (TAGGER, BILSTM, r"made with task\.tagging_head=linear, and the recipe has task\.tagging_head=bilstm: set it"),
        (BILSTM, TAGGER, r"made with task\.tagging_head=bilstm, and the recipe has task\.tagging_head=linear: set it"),
        (BILSTM, {**BILSTM, "feature_layers": "embeddings"},
         r"made with task\.feature_layers=last, .* has task\.feature_layers=embeddings:"),
        (TAGGER, PROBE, r"made with task\.feature_layers=last, .* has task\.feature_layers=weighted-all:"),
        (PROBE, TAGGER, r"made with task\.feature_layers=weighted-all, .* has task\.feature_layers=last:"),
        (PROBE, BILSTM, r"task\.tagging_head=linear task\.feature_layers=weighted-all, .* task\.feature_layers=last:"),
        (BILSTM, {**BILSTM, "bilstm_size": 24}, r"with task\.bilstm_size=768, .* has task\.bilstm_size=24:"),
    ],
)  # fmt: skip
def test_a_head_is_kept_for_what_it_was_made_for_alone(
    base: Path, tmp_path: Path, before: dict[str, Any], after: dict[str, Any], told: str
) -> None:
    source = save_task_model(tmp_path / "before", base, seed=3, **before)
    with pytest.raises(ModelError, match=told):
        module_on_kept_head(source, after)


@pytest.mark.parametrize("settings", [CLASSIFIER, MULTI_LABEL, REGRESSION, TAGGER, BILSTM, PROBE])
def test_a_kept_head_has_its_weights(base: Path, tmp_path: Path, settings: dict[str, Any]) -> None:
    source = save_task_model(tmp_path / "before", base, seed=3, **settings)
    kept = module_on_kept_head(source, settings).head.state_dict()
    task = new_task(**settings)
    torch.manual_seed(3)
    made: Any = task.module(load_encoder(base, task.head_kind).encoder)
    expected = made.head.state_dict()
    assert kept.keys() == expected.keys()
    assert all(torch.equal(kept[name], expected[name]) for name in kept)


@pytest.mark.parametrize("settings", [CLASSIFIER, TAGGER, BILSTM])
def test_a_kept_head_drops_out_what_the_recipe_says(base: Path, tmp_path: Path, settings: dict[str, Any]) -> None:
    source = save_task_model(tmp_path / "before", base, seed=3, **settings, classifier_dropout=0.25)
    changed = module_on_kept_head(source, {**settings, "classifier_dropout": 0.5})
    assert changed.head.dropout_prob == 0.5
    unchanged = module_on_kept_head(source, settings)
    before, after = unchanged.head.state_dict(), changed.head.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)
    if settings is not BILSTM:  # whose dropout no file keeps
        assert unchanged.head.dropout_prob == 0.25


def test_floors_leave_the_features_on_the_disk() -> None:
    class OnDisk(np.ndarray):  # type: ignore[type-arg]
        """Fails where it is read whole."""

        def __array_function__(self, *given: Any, **named: Any) -> Any:
            raise AssertionError("the features were read")

    def part() -> Any:
        columns = {"labels": np.array([0, 1, -100]), "features": np.zeros((3, 8), dtype=np.float32).view(OnDisk)}
        places = {"num_units": np.array([1, 1, 0]), "num_outside": np.array([1, 0, 0])}
        return EncodedExamples.from_lists([[5, 6, 7]], [3], token_columns=columns, alignment=places)

    measured = [ExampleSet((), part()), ExampleSet((), part())]
    floors = run._floors(new_task(**TAGGER), part(), measured, ("dev.",))
    assert floors["dev.overall_accuracy"] == {"all O": 0.5}
