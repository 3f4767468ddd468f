"""`unmask checkpoint`: the model that a checkpoint of a pre-training run holds."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.torch import load_file

from unmask.models.hub.directory import load_model
from unmask.pretraining.run import pretrain

pytestmark = pytest.mark.usefixtures("one_thread", "without_report")

SYSTEMS: dict[str, list[str]] = {
    "masked": [],
    "electra": [
        *("objective.name=replaced_token", "model.architecture=electra", "packing.format=single_segment"),
        *("packing.short_sequence_prob=0", "model.embedding_size=16"),
    ],
}
"""What each says beside `tiny_recipe`."""

ELMO = """
seed: 3
device: cpu
precision: fp32
tokenizer: {kind: word, vocab_size: 200}
held_out: 0
model: {architecture: elmo, preset: tiny, filters: [[1, 4], [2, 8]], projection_size: 8, cell_size: 16}
objective: {name: bilm, num_negatives: 50}
packing: {format: stream, max_length: 10}
optimizer: {name: adagrad, learning_rate: 0.2, initial_accumulator: 0.0025, weight_decay: 0}
schedule: {name: constant}
train: {steps: 12, batch_size: 8, micro_batch_size: 3, save_every: 4, keep_last: 3}
"""
"""Most of what the other recipe says means nothing to ELMo. Its run is from text, and has a store of its own."""


@pytest.fixture(scope="module", params=[*SYSTEMS, "elmo"])
def run(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    tiny_recipe: Path,
    tiny_store: Path,
    tiny_text: Path,
) -> Path:
    """Twelve steps, with checkpoints after 4, 8 and 12."""
    place = tmp_path_factory.mktemp(request.param)
    recipe, words = tiny_recipe, [f"store={tiny_store}", "train.keep_last=3", *SYSTEMS.get(request.param, [])]
    if request.param == "elmo":
        recipe, words = place / "elmo.yaml", [f"corpus={tiny_text}"]
        recipe.write_text(ELMO, encoding="utf-8")
    pretrain(str(recipe), words, out=place / "run")
    return place / "run"


def files(directory: Path) -> dict[str, bytes]:
    found = (path for path in directory.rglob("*") if path.is_file())
    return {str(path.relative_to(directory)): path.read_bytes() for path in found}


def test_the_newest_is_the_model_that_the_run_made(run: Path, tmp_path: Path, unmask: Callable[..., Any]) -> None:
    told = unmask("checkpoint", run, "--out", tmp_path / "model")
    assert (told.code, told.output.strip()) == (0, str(tmp_path / "model"))
    assert files(tmp_path / "model") == files(run / "model")


def test_averaged_weights_are_those_of_the_run(
    tmp_path: Path, tiny_recipe: Path, tiny_store: Path, unmask: Callable[..., Any]
) -> None:
    words = [f"store={tiny_store}", "train.steps=4", "train.weight_averaging=.8"]
    pretrain(str(tiny_recipe), words, out=tmp_path / "run")
    assert unmask("checkpoint", tmp_path / "run", "--out", tmp_path / "model").code == 0
    assert files(tmp_path / "model") == files(tmp_path / "run" / "model")


def test_an_earlier_one_is_what_its_checkpoint_holds(run: Path, tmp_path: Path, unmask: Callable[..., Any]) -> None:
    assert unmask("checkpoint", run, "--step", 8, "--out", tmp_path / "model").code == 0
    ours = load_file(tmp_path / "model" / "model.safetensors")
    last = load_file(run / "model" / "model.safetensors")
    held = load_file(run / "checkpoints" / "step-00000008" / "weights.safetensors")
    [name] = [name for name in ours if name.endswith(("word_embeddings.weight", "softmax.weight"))]
    assert any((weight == ours[name]).all() for weight in held.values() if weight.shape == ours[name].shape)
    assert not (ours[name] == last[name]).all()


def test_it_gives_features_and_is_fine_tuned(run: Path, tmp_path: Path, unmask: Callable[..., Any]) -> None:
    """What the run's own model would not have given, of a later step."""
    model = tmp_path / "model"
    assert unmask("checkpoint", run, "--step", 4, "--out", model).code == 0
    (tmp_path / "texts.txt").write_text("The mill stood still.\nNobody came.\n", encoding="utf-8")
    vectors = {}
    for name, source in (("ours", model), ("last", run)):
        told = unmask("features", source, tmp_path / "texts.txt", "--out", tmp_path / name)
        assert told.code == 0, told.errors
        vectors[name] = np.load(tmp_path / name / "features.npy", allow_pickle=False)
    assert vectors["ours"].shape == vectors["last"].shape
    assert np.isfinite(vectors["ours"]).all()
    assert (vectors["ours"] != vectors["last"]).any(-1).all()
    examples = tmp_path / "train.jsonl"
    rows = [{"text": "The mill stood still.", "label": "yes"}, {"text": "Nobody came.", "label": "no"}]
    examples.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    words = ("task.max_length=32", "train.epochs=null", "train.steps=2", "train.batch_size=2", "device=cpu")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("unmask.finetuning.run.write_report", lambda directory: None)
        told = unmask(
            *("finetune", "finetune/classification", f"init_from={model}", f"data.train={examples}", *words),
            *("--out", tmp_path / "tuned"),
        )
    assert told.code == 0, told.errors
    assert load_model(tmp_path / "tuned" / "model").encoder.settings == load_model(model).encoder.settings


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--step", 5], "no checkpoint of step 5; there are 4, 8, 12: train.save_every and train.keep_last say which"),
        (["--out", "."], "overwrite"),
    ],
)
def test_what_is_not_there_is_told(
    run: Path, tmp_path: Path, unmask: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, words: list[Any], told: str
) -> None:
    (tmp_path / "kept.txt").write_text("kept")
    monkeypatch.chdir(tmp_path)
    out = [] if "--out" in words else ["--out", "model"]
    finished = unmask("checkpoint", run.resolve(), *words, *out)
    assert finished.code == 2
    assert told in finished.errors
    assert [path.name for path in tmp_path.iterdir()] == ["kept.txt"]


def test_what_is_no_run_is_refused(samples_dir: Path, tmp_path: Path, unmask: Callable[..., Any]) -> None:
    finished = unmask("checkpoint", samples_dir, "--out", tmp_path / "model")
    assert finished.code == 2
    assert "no recipe.yaml: expected the directory of a pre-training run" in finished.errors
