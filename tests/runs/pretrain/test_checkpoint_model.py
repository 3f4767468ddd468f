"""`unmask checkpoint`: the model that a checkpoint of a pre-training run holds."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.torch import load_file

from support.commands import Command
from support.corpora import contents
from support.elmo import write_elmo_recipe
from support.files import write, write_rows
from support.runs import weights_of
from unmask.card import write_card
from unmask.info import describe
from unmask.io.writing import write_json
from unmask.models.hub.directory import load_model
from unmask.pretraining.checkpoint_model import save_checkpoint_model
from unmask.pretraining.run import pretrain
from unmask.training.run.checkpoint import state_digest

pytestmark = pytest.mark.usefixtures("one_thread", "without_report")

SYSTEMS: dict[str, list[str]] = {
    "masked": [],
    "electra": [
        *("objective.name=replaced_token", "model.architecture=electra", "packing.format=single_segment"),
        *("packing.short_sequence_prob=0", "model.embedding_size=16"),
    ],
}
"""What each says beside `tiny_recipe`."""


@pytest.fixture(scope="module", params=[*SYSTEMS, "elmo"])
def run(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    tiny_recipe: Path,
    tiny_store: Path,
    tiny_text: Path,
) -> Path:
    """Twelve steps, with checkpoints after 4, 8 and 12. ELMo's is from text, and has a store of its own."""
    place = tmp_path_factory.mktemp(request.param)
    recipe, words = str(tiny_recipe), [f"store={tiny_store}", *SYSTEMS.get(request.param, [])]
    if request.param == "elmo":
        recipe, words = write_elmo_recipe(place / "elmo.yaml"), [f"corpus={tiny_text}"]
    pretrain(recipe, [*words, "train.keep_last=3"], out=place / "run")
    return place / "run"


def test_the_newest_is_the_model_that_the_run_made(run: Path, tmp_path: Path, unmask: Command) -> None:
    told = unmask("checkpoint", run, "--out", tmp_path / "model")
    assert (told.code, told.output.strip()) == (0, str(tmp_path / "model"))
    for path in (tmp_path / "model").rglob("config.json"):
        config = json.loads(path.read_text())
        assert config.pop("unmask_made_by") == {"command": "checkpoint", "of": [str(run)], "step": 12}
        write_json(path, config)
    assert contents(tmp_path / "model") == contents(run / "model")


def test_a_model_of_a_checkpoint_says_of_which(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the places that were given, and no others."""
    monkeypatch.chdir(run.parent)
    model = save_checkpoint_model("run", tmp_path / "model", 4)
    assert describe(model)["made_by"] == {"command": "checkpoint", "of": ["run"], "step": 4}
    assert "```\nunmask checkpoint run --step 4\n```" in write_card(model).read_text()


def test_averaged_weights_are_those_of_the_run(
    tmp_path: Path, tiny_recipe: Path, tiny_store: Path, unmask: Command
) -> None:
    words = [f"store={tiny_store}", "train.steps=4", "train.weight_averaging=.8"]
    pretrain(str(tiny_recipe), words, out=tmp_path / "run")
    assert unmask("checkpoint", tmp_path / "run", "--out", tmp_path / "model").code == 0
    weights = [(place / "model" / "model.safetensors").read_bytes() for place in (tmp_path, tmp_path / "run")]
    assert weights[0] == weights[1]
    words = [f"store={tiny_store}", "train.steps=1", f"init_from={tmp_path / 'model'}"]
    pretrain(str(tiny_recipe), words, out=tmp_path / "next")
    refused = unmask("checkpoint", tmp_path / "next", "--out", tmp_path / "model", "--overwrite")
    assert (refused.code, "model is needed and would be overwritten" in refused.errors) == (2, True)


def test_an_earlier_one_is_what_its_checkpoint_holds(run: Path, tmp_path: Path, unmask: Command) -> None:
    assert unmask("checkpoint", run, "--step", 8, "--out", tmp_path / "model").code == 0
    ours, last = weights_of(tmp_path / "model"), weights_of(run / "model")
    held = load_file(run / "checkpoints" / "step-00000008" / "weights.safetensors")
    [name] = [name for name in ours if name.endswith(("word_embeddings.weight", "softmax.weight"))]
    assert any((weight == ours[name]).all() for weight in held.values() if weight.shape == ours[name].shape)
    assert not (ours[name] == last[name]).all()


def test_a_damaged_newest_one_is_passed_over(
    run: Path, tmp_path: Path, unmask: Command, caplog: pytest.LogCaptureFixture
) -> None:
    copy = shutil.copytree(run, tmp_path / "copy")
    damaged = copy / "checkpoints" / "step-00000012" / "weights.safetensors"
    damaged.write_bytes(damaged.read_bytes()[:-1] + b"\xff")
    told = unmask("checkpoint", copy, "--out", tmp_path / "model")
    assert told.code == 0, told.errors
    assert f"a checkpoint is passed over: {damaged}: its checksum is not" in caplog.text
    assert unmask("checkpoint", copy, "--step", 8, "--out", tmp_path / "earlier").code == 0
    assert contents(tmp_path / "model") == contents(tmp_path / "earlier")
    told = unmask("checkpoint", copy, "--step", 12, "--out", tmp_path / "newest")
    assert (told.code, "its checksum is not" in told.errors) == (2, True)


def test_one_without_weights_is_refused(run: Path, tmp_path: Path, unmask: Command) -> None:
    copy = shutil.copytree(run, tmp_path / "copy")
    (weights := copy / "checkpoints" / "step-00000012" / "weights.safetensors").unlink()
    state = json.loads(weights.with_name("state.json").read_text())
    del state["sha256"], state["files"][weights.name]
    write_json(weights.with_name("state.json"), state | {"sha256": state_digest(state)})
    told = unmask("checkpoint", copy, "--out", tmp_path / "model")
    assert (told.code, "step-00000012: does not fit this run's model: No such file" in told.errors) == (2, True)


def test_it_gives_features_and_is_fine_tuned(run: Path, tmp_path: Path, unmask: Command) -> None:
    """What the run's own model would not have given, of a later step."""
    model = tmp_path / "model"
    assert unmask("checkpoint", run, "--step", 4, "--out", model).code == 0
    texts = write(tmp_path / "texts.txt", "The mill stood still.\nNobody came.\n")
    vectors = {}
    for name, source in (("ours", model), ("last", run)):
        told = unmask("features", source, texts, "--out", tmp_path / name)
        assert told.code == 0, told.errors
        vectors[name] = np.load(tmp_path / name / "features.npy", allow_pickle=False)
    assert vectors["ours"].shape == vectors["last"].shape
    assert np.isfinite(vectors["ours"]).all()
    assert (vectors["ours"] != vectors["last"]).any(-1).all()
    rows = {"text": "The mill stood still.", "label": "yes"}, {"text": "Nobody came.", "label": "no"}
    words = [f"init_from={model}", f"data.train={write_rows(tmp_path / 'train.jsonl', *rows)}", "task.max_length=32"]
    words += ["train.epochs=null", "train.steps=2", "train.batch_size=2", "device=cpu"]
    told = unmask("finetune", "finetune/classification", *words, "--out", tmp_path / "tuned")
    assert told.code == 0, told.errors
    assert load_model(tmp_path / "tuned" / "model").encoder.settings == load_model(model).encoder.settings


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--step", 5], "no checkpoint of step 5; there are 4, 8, 12: train.keep_last and train.keep_every say which"),
        (["--out", "."], "holds kept.txt, which is no part of a model, so nothing in it is touched"),
        (["--out", ".", "--overwrite"], "holds kept.txt, which is no part of a model, so nothing in it is touched"),
    ],
)
def test_what_is_not_there_is_told(
    run: Path, tmp_path: Path, unmask: Command, monkeypatch: pytest.MonkeyPatch, words: list[Any], told: str
) -> None:
    (tmp_path / "kept.txt").write_text("kept")
    monkeypatch.chdir(tmp_path)
    out = [] if "--out" in words else ["--out", "model"]
    finished = unmask("checkpoint", run.resolve(), *words, *out)
    assert (finished.code, told in finished.errors) == (2, True)
    assert [path.name for path in tmp_path.iterdir()] == ["kept.txt"]


def test_what_is_no_run_is_refused(samples_dir: Path, tmp_path: Path, unmask: Command) -> None:
    finished = unmask("checkpoint", samples_dir, "--out", tmp_path / "model")
    assert finished.code == 2
    assert "no recipe.yaml: expected the directory of a pre-training run" in finished.errors
