"""A new objective is new files, an import and a line of `OBJECTIVES`: every program then works with it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

import unmask
from support.files import write_rows
from support.toy_objective import PreviousTokenSettings, RepeatedTokenSettings
from unmask.doctor.diagnosis import diagnose
from unmask.errors import SettingsError
from unmask.info import describe
from unmask.objectives.table import OBJECTIVES, Entry
from unmask.pretraining.run import pretrain
from unmask.recipe.loading import load_pretrain_recipe
from unmask.store.preparation import prepare
from unmask.tokenization.learning.from_files import train_tokenizer
from unmask.tokenization.settings import TokenizerSettings

RECIPE = """
objective: {name: previous_token}
model: {preset: tiny, hidden_size: 32, num_attention_heads: 2, max_position_embeddings: 32}
packing: {format: single_segment, max_length: 32}
held_out: 0.3
device: cpu
precision: fp32
train: {steps: 6, batch_size: 4, log_every: 2, eval_every: 3}
"""


@pytest.fixture(scope="module", autouse=True)
def registered() -> Iterator[None]:
    """The one line of each."""
    with pytest.MonkeyPatch.context() as patch:
        entry = Entry(PreviousTokenSettings, "support.toy_objective:PreviousToken")
        patch.setitem(OBJECTIVES, "previous_token", entry)
        entry = Entry(RepeatedTokenSettings, "support.toy_objective:RepeatedToken")
        patch.setitem(OBJECTIVES, "repeated_token", entry)
        yield


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("recipe") / "recipe.yaml"
    path.write_text(RECIPE, encoding="utf-8")
    return str(path)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory, samples_dir: Path) -> Path:
    directory = tmp_path_factory.mktemp("store")
    lines = (samples_dir / "text" / "en-books.jsonl").read_text(encoding="utf-8").splitlines()[:20]
    text = write_rows(directory / "text.jsonl", *({"text": json.loads(line)["text"][:1500]} for line in lines))
    train_tokenizer([text], directory / "tokenizer", TokenizerSettings(vocab_size=300))
    prepare([text], directory / "tokenizer", directory / "store")
    return directory / "store"


@pytest.fixture(scope="module")
def run(recipe: str, store: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("run") / "run"
    pretrain(recipe, [f"store={store}", "objective.distance=2"], out=directory)
    return directory


def test_its_settings_are_read_and_refused_by_name(recipe: str) -> None:
    settings = load_pretrain_recipe(recipe, ["corpus=a.txt", "objective.distance=3"])
    assert settings.objective.model_dump() == {"name": "previous_token", "output_bias": "zero", "distance": 3}
    for word, told in (
        ("objective.distanse=3", "unknown key objective.distanse; did you mean objective.distance"),
        ("objective.distance=far", "objective.distance=far: expected a whole number"),
        ("objective.masking=span", "objective.masking belongs to objective.name=masked_lm"),
        ("objective.name=previous_tokens", "did you mean previous_token"),
        (
            "model.architecture=electra",
            "objective.name=previous_token does not train the electra of model.architecture: it was only",
        ),
    ):
        with pytest.raises(SettingsError) as refused:
            load_pretrain_recipe(recipe, ["corpus=a.txt", word])
        assert told in str(refused.value)


def test_a_run_is_trained_reported_and_described(run: Path) -> None:
    assert load_pretrain_recipe(str(run / "recipe.yaml")).objective.model_dump()["distance"] == 2
    results = json.loads((run / "results.json").read_text(encoding="utf-8"))
    assert results["previous_loss"] > 0
    assert results["floors"]["loss/previous"].keys() == {"unigram entropy"}
    samples = json.loads((run / "samples.json").read_text(encoding="utf-8"))
    assert samples[0]["title"] == "held-out sequence 1: predecessors"
    page = (run / "report.html").read_text(encoding="utf-8")
    assert "previous loss" in page
    assert "unigram entropy" in page
    assert describe(run)["progress"] == 1
    assert describe(run / "model")["model_type"] == "bert"


def test_its_encoder_fills_masks_and_is_finetuned(run: Path, tmp_path: Path) -> None:
    assert len(unmask.fill_mask(run, "the [MASK] of the day", 3)) == 3
    rows = [{"text": f"{word} day {number}", "label": word} for number in range(8) for word in ("good", "bad")]
    path = write_rows(tmp_path / "rows.jsonl", *rows)
    words = [f"init_from={run}", f"data.train={path}", f"data.dev={path}", "device=cpu", "train.epochs=1"]
    unmask.finetune("finetune/classification", [*words, "task.max_length=32"], out=tmp_path / "run")
    assert {each["label"] for each in unmask.predict(tmp_path / "run", [{"text": "a good day"}])} <= {"good", "bad"}


def test_the_doctor_examines_recipe_store_and_run(recipe: str, store: Path, run: Path) -> None:
    of_recipe = diagnose(recipe, [f"store={store}"], probe_s=0.1)
    assert not of_recipe.has_fault
    assert isinstance(of_recipe.figures["flops_per_token"], float)
    tables = {table.title: dict(row[:2] for row in table.rows) for table in of_recipe.tables}
    assert tables["What the first step shows the model"]["tokens looked back"] == "1"
    assert of_recipe.samples[0].sequence_label == "each token's predecessor"
    assert diagnose(store, recipe=recipe).samples
    found = {finding.name: finding.level for finding in diagnose(run).findings}
    assert {"previous-unigram-floor", "previous-uniform-floor", "no-cause"} <= found.keys()
    assert "inputs-unreadable" not in found


def test_one_without_a_loss_over_the_vocabulary_has_no_figures_of_one(recipe: str, store: Path, tmp_path: Path) -> None:
    words, run = [f"store={store}", "objective.name=repeated_token"], tmp_path / "run"
    pretrain(recipe, words, out=run)
    results = json.loads((run / "results.json").read_text(encoding="utf-8"))
    assert [name for name in results if name.startswith("repeated")] == ["repeated_loss", "repeated_accuracy"]
    of_recipe = diagnose(recipe, words, probe_s=0)
    of_store = diagnose(store, words[1:], recipe=recipe)
    for diagnosis in (of_recipe, of_store):
        tables = {table.title: {row[0]: row[1:] for row in table.rows} for table in diagnosis.tables}
        [floor] = [table for table in diagnosis.tables if table.title.startswith("Floors")]
        assert ("loss/repeated", "even", "0.6931", "saying yes half of the time") in floor.rows
        assert tables["What the first step shows the model"]["targets"] == ("100.0% of the tokens",)
        assert "gradient of the logits" not in tables.get("Memory", ())
        assert {token.label for sample in diagnosis.samples for token in sample.tokens} == {None}
    assert "repeated-even-floor" in {finding.name for finding in diagnose(run).findings}
