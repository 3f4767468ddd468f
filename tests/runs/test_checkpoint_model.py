"""`unmask checkpoint`: the model that a checkpoint of a pre-training run holds."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from unmask.pretraining import pretrain

pytestmark = pytest.mark.usefixtures("one_thread", "without_report")

SYSTEMS: dict[str, list[str]] = {
    "masked": [],
    "electra": [
        *("objective.name=replaced_token", "model.architecture=electra", "packing.format=single_segment"),
        *("packing.short_sequence_prob=0", "model.embedding_size=16"),
    ],
}


@pytest.fixture(scope="module", params=SYSTEMS)
def run(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, tiny_recipe: Path, tiny_store: Path
) -> Path:
    directory = tmp_path_factory.mktemp(request.param) / "run"
    pretrain(str(tiny_recipe), [f"store={tiny_store}", "train.keep_last=3", *SYSTEMS[request.param]], out=directory)
    return directory


def files(directory: Path) -> dict[str, bytes]:
    found = (path for path in directory.rglob("*") if path.is_file())
    return {str(path.relative_to(directory)): path.read_bytes() for path in found}


def test_the_newest_is_the_model_that_the_run_made(run: Path, tmp_path: Path, unmask: Callable[..., Any]) -> None:
    told = unmask("checkpoint", run, "--out", tmp_path / "model")
    assert (told.code, told.output.strip()) == (0, str(tmp_path / "model"))
    assert files(tmp_path / "model") == files(run / "model")


def test_an_earlier_one_is_what_its_checkpoint_holds(run: Path, tmp_path: Path, unmask: Callable[..., Any]) -> None:
    assert unmask("checkpoint", run, "--step", 8, "--out", tmp_path / "model").code == 0
    ours = load_file(tmp_path / "model" / "model.safetensors")
    last = load_file(run / "model" / "model.safetensors")
    held = load_file(run / "checkpoints" / "step-00000008" / "weights.safetensors")
    [name] = [name for name in ours if name.endswith("word_embeddings.weight")]
    assert any((weight == ours[name]).all() for weight in held.values() if weight.shape == ours[name].shape)
    assert not (ours[name] == last[name]).all()


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
