"""A new architecture is new files, an import and a line of `ARCHITECTURES`: every program then takes it."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest

import unmask
from support.files import write_rows
from support.toy_architecture import TOY
from unmask.doctor.diagnosis import diagnose
from unmask.errors import SettingsError
from unmask.models.families.table import ARCHITECTURES
from unmask.recipe.loading import load_pretrain_recipe

RECIPE = """
seed: 3
device: cpu
precision: fp32
tokenizer: {vocab_size: 300}
held_out: 0.2
model: {architecture: toy, preset: tiny}
objective: {sentence_objective: none}
packing: {format: full_sentences, max_length: 32}
optimizer: {learning_rate: 1e-2}
train: {steps: 4, batch_size: 8, log_every: 2, eval_every: 2, save_every: 2, eval_sequences: 16}
"""


@pytest.fixture(scope="module", autouse=True)
def registered() -> object:
    """The one line."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(ARCHITECTURES, "toy", TOY)
        yield


@pytest.fixture(scope="module")
def words(registered: object, tmp_path_factory: pytest.TempPathFactory, samples_dir: Path) -> tuple[str, list[str]]:
    """What is given to `pretrain`."""
    directory = tmp_path_factory.mktemp("toy")
    (directory / "toy.yaml").write_text(RECIPE, encoding="utf-8")
    with (samples_dir / "text" / "en-books.jsonl").open(encoding="utf-8") as books:
        text = json.loads(next(books))["text"]
    documents = [text[start : start + 1000] for start in range(0, 12_000, 1000)]
    corpus = write_rows(directory / "text.jsonl", *({"text": document} for document in documents))
    return str(directory / "toy.yaml"), [f"corpus={corpus}"]


@pytest.fixture(scope="module")
def run(words: tuple[str, list[str]], tmp_path_factory: pytest.TempPathFactory) -> Path:
    unmask.pretrain(*words, out=(directory := tmp_path_factory.mktemp("runs") / "toy"))
    return directory


def test_it_is_pretrained(run: Path) -> None:
    config = json.loads((run / "model" / "config.json").read_text("utf-8"))
    assert (config["architectures"], config["model_type"]) == (["ToyWithWords"], "unmask-toy")
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text("utf-8").splitlines()]
    assert all(math.isfinite(row["loss/mlm"]) for row in rows if "loss/mlm" in row)
    assert "MLM loss" in (run / "report.html").read_text("utf-8")


def test_it_is_described(run: Path) -> None:
    described = unmask.describe(run / "model")
    assert described["architectures"] == ["ToyWithWords"]
    assert "fill-mask" in described["commands"]
    assert described["hidden_size"] == 32


def test_it_fills_masks(run: Path) -> None:
    assert len(unmask.fill_mask(run, "the [MASK] of the day", 3)) == 3


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The files that have been read whole."""
    paths: list[Path] = []
    read = Path.read_bytes

    def reading(path: Path) -> bytes:
        paths.append(path)
        return read(path)

    monkeypatch.setattr(Path, "read_bytes", reading)
    return paths


def test_it_goes_on_from_itself_and_is_opened_once(
    run: Path, words: tuple[str, list[str]], tmp_path: Path, opened: list[Path]
) -> None:
    start = [f"init_from={run}", f"tokenizer={run / 'model'}"]
    unmask.pretrain(words[0], [*words[1], *start], out=tmp_path / "run")
    assert (tmp_path / "run" / "model" / "model.safetensors").is_file()
    assert opened.count(run / "model" / "config.json") == 1


def test_it_grows_in_depth(run: Path, words: tuple[str, list[str]], tmp_path: Path) -> None:
    start = [f"init_from={run}", f"tokenizer={run / 'model'}", "model.num_hidden_layers=3"]
    unmask.pretrain(words[0], [*words[1], *start], out=tmp_path / "run")
    assert unmask.describe(tmp_path / "run" / "model")["num_hidden_layers"] == 3


def test_one_that_cannot_grow_is_refused(
    run: Path, words: tuple[str, list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(ARCHITECTURES, "toy", replace(TOY, deepen=None))
    start = [f"init_from={run}", f"tokenizer={run / 'model'}", "model.num_hidden_layers=3"]
    with pytest.raises(SettingsError, match="num_hidden_layers 3 and not 2; the model that is there has its sizes"):
        unmask.pretrain(words[0], [*words[1], *start], out=tmp_path / "run")


def test_it_is_finetuned_and_predicts(run: Path, tmp_path: Path, opened: list[Path]) -> None:
    rows = [{"text": f"{word} day {number}", "label": word} for number in range(8) for word in ("good", "bad")]
    path = write_rows(tmp_path / "rows.jsonl", *rows)
    data = [f"{name}={path}" for name in ("data.train", "data.dev")]
    small = ["device=cpu", "task.max_length=32", "train.epochs=1", "train.batch_size=8"]
    unmask.finetune("finetune/classification", [f"init_from={run}", *data, *small], out=tmp_path / "run")
    assert opened.count(run / "model" / "config.json") == 1
    assert {each["label"] for each in unmask.predict(tmp_path / "run", [{"text": "a good day"}])} <= {"good", "bad"}
    config = json.loads((tmp_path / "run" / "model" / "config.json").read_text("utf-8"))
    assert config["architectures"] == ["ToyWithLabels"]


def test_the_doctor_examines_its_recipe_and_its_run(run: Path, words: tuple[str, list[str]]) -> None:
    for diagnosis in (diagnose(words[0], words[1], probe_s=0), diagnose(str(run))):
        assert not [finding for finding in diagnosis.findings if finding.level == "fault"]


def test_what_it_has_not_is_refused_by_name(words: tuple[str, list[str]]) -> None:
    with pytest.raises(SettingsError, match=r"the toy of model\.architecture, which has no head for it: take .*=bert"):
        load_pretrain_recipe(words[0], [*words[1], "objective.sentence_objective=nsp"])
    with pytest.raises(SettingsError, match="causal_lm does not train the toy"):
        load_pretrain_recipe(words[0], [*words[1], "objective={name: causal_lm}"])
    with pytest.raises(SettingsError, match="preset 'base' is none of toy: expected one of tiny"):
        load_pretrain_recipe(words[0], [*words[1], "model.preset=base"])
    with pytest.raises(SettingsError, match=r"toy of model\.architecture: its tokens would see those that they are"):
        load_pretrain_recipe(words[0], [*words[1], "objective.causal_share=.5"])
