"""Where a fitted estimator may be saved: no run, no other model and no foreign file is lost."""

from __future__ import annotations

import json
import pickle
import shutil
from pathlib import Path

import pytest

from support.corpora import contents
from support.files import write
from support.model_files import edit_config
from unmask.errors import OutputError
from unmask.finetuning.estimators.estimators import TextClassifier
from unmask.inference.predictor import predict


@pytest.fixture(scope="module")
def fitted(tiny_model: Path) -> TextClassifier:
    return TextClassifier(tiny_model, epochs=1, max_length=16, precision="fp32").fit(["a dog", "a man"], ["dog", "man"])


def answers(directory: Path) -> bool:
    return [answer["label"] in ("dog", "man") for answer in predict(directory, [{"text": "a dog"}])] == [True]


def new_run(directory: Path) -> Path:
    """The files of a run, which are not read."""
    for name in ("recipe.yaml", "log.txt", "checkpoints/step-10/state.json", "model/config.json", "model/vocab.txt"):
        write(directory / name, name)
    (directory / "model" / "model.safetensors").write_bytes(b"weights")
    return directory


@pytest.mark.parametrize("name", [".", "model", "recipe.yaml"])
def test_what_is_there_already_stays(fitted: TextClassifier, tmp_path: Path, name: str) -> None:
    run = new_run(tmp_path / "run")
    before = contents(run)
    message = r"exists already .*: choose another name, or pass overwrite=True|no part of a model|Not a directory"
    with pytest.raises(OutputError, match=message):
        fitted.save(run / name)
    assert contents(run) == before


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (".", r"run holds checkpoints, which is no part of a model, so nothing in it is touched: choose another name"),
        ("recipe.yaml", r"cannot write .*recipe\.yaml: Not a directory"),
        ("notes", r"notes holds mine\.txt, which is no part of a model"),
        ("tokenizer", r"tokenizer is not a model \(config\.json is missing\), so nothing in it is touched"),
    ],
)
def test_overwriting_replaces_nothing_but_a_model(
    fitted: TextClassifier, tmp_path: Path, name: str, message: str
) -> None:
    run = new_run(tmp_path / "run")
    for path in (run / "notes" / "config.json", run / "notes" / "mine.txt", run / "tokenizer" / "vocab.txt"):
        write(path, "mine")
    before = contents(run)
    with pytest.raises(OutputError, match=message):
        fitted.save(run / name, overwrite=True)
    assert contents(run) == before


def test_overwriting_replaces_a_model_as_a_whole(fitted: TextClassifier, tmp_path: Path) -> None:
    run = new_run(tmp_path / "run")
    (run / "model" / "head.safetensors").write_bytes(b"of another task")
    link = tmp_path / "link"
    link.symlink_to(run / "model", target_is_directory=True)
    before = contents(run)
    fitted.save(link, overwrite=True)
    assert link.is_symlink()
    assert answers(run / "model")
    assert not (run / "model" / "head.safetensors").exists()
    after = contents(run)
    assert {name: content for name, content in after.items() if not name.startswith("model/")} == {
        name: content for name, content in before.items() if not name.startswith("model/")
    }
    fitted.save(link, overwrite=True)
    assert contents(run) == after


@pytest.mark.parametrize("overwrite", [False, True])
def test_new_and_empty_directories_are_filled(fitted: TextClassifier, tmp_path: Path, overwrite: bool) -> None:
    (tmp_path / "empty").mkdir()
    for place in (tmp_path / "empty", tmp_path / "new" / "model"):
        fitted.save(place, overwrite=overwrite)
        assert answers(place)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["empty", "new"]


@pytest.mark.parametrize("place", ["/proc/x/y", "/dev/null/model", "/dev/null"])
def test_places_that_cannot_be_written_are_told(fitted: TextClassifier, place: str) -> None:
    with pytest.raises(OutputError, match=f"^(cannot write )?{place}"):
        fitted.save(place)


def test_a_saved_model_claims_no_longer_sequences_than_it_was_pretrained_on(tiny_model: Path, tmp_path: Path) -> None:
    source = tmp_path / "source"
    shutil.copytree(tiny_model, source)
    edit_config(source, unmask_trained_length=8)
    fitted = TextClassifier(source, epochs=1, max_length=16).fit(["a dog", "a man"], ["dog", "man"])
    pickle.loads(pickle.dumps(fitted)).save(tmp_path / "saved")
    assert json.loads((tmp_path / "saved" / "config.json").read_text())["unmask_trained_length"] == 8
