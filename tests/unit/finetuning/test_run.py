"""What a run is warned of: files that ought to be different and are not, and a dev file that decides nothing."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from support.tasks import new_task
from unmask.finetuning.files import shared_files
from unmask.finetuning.run import Measurement
from unmask.models.hub.directory import load_encoder
from unmask.tasks.settings import DataSettings
from unmask.tasks.text.examples import TextExample
from unmask.training.device import choose_compute


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name, text in (("a", "text\n"), ("copy", "text\n"), ("b", "test\n"), ("long", "text and more\n")):
        Path(f"{name}.tsv").write_text(text)
    Path("link.tsv").symlink_to("a.tsv")
    Path("folder").mkdir()
    return tmp_path


@pytest.mark.parametrize(
    ("files", "told"),
    [
        ({"dev": "b.tsv", "test": "long.tsv"}, []),
        ({}, []),
        ({"dev": "a.tsv"},
         ["data.dev=a.tsv is the same file as data.train=a.tsv: its figures are of what was learned"]),
        ({"dev": "link.tsv"}, ["data.dev=link.tsv is the same file as data.train=a.tsv"]),
        ({"dev": "copy.tsv"}, ["data.dev=copy.tsv holds the very bytes of data.train=a.tsv"]),
        ({"dev": "b.tsv", "test": "copy.tsv"}, ["data.test=copy.tsv holds the very bytes of data.train=a.tsv"]),
        ({"dev": "b.tsv", "test": "b.tsv"}, ["data.test=b.tsv is the same file as data.dev=b.tsv: what is chosen"]),
        ({"train": "folder", "dev": "folder"}, ["data.dev=folder is the same file as data.train=folder"]),
        ({"train": "folder", "dev": "a.tsv"}, []),
    ],
)  # fmt: skip
@pytest.mark.usefixtures("place")
def test_files_that_are_one_are_told(files: dict[str, str], told: list[str]) -> None:
    warnings = list(shared_files(DataSettings.model_validate({"train": "a.tsv", **files})))
    assert [warning[: len(start)] for warning, start in zip(warnings, told, strict=True)] == told


def test_a_dev_file_without_a_mistake_leaves_the_logits_as_they_are(
    tiny_model: Path, caplog: pytest.LogCaptureFixture
) -> None:
    task = new_task(labels=["a", "b"], calibration="temperature")
    module = task.module(load_encoder(tiny_model).encoder)
    before = {name: weight.clone() for name, weight in module.state_dict().items()}
    dev = Measurement("dev", task, module, [], choose_compute("cpu", "fp32"), score=task.score())
    right = {"label": "a", "score": 0.7, "probabilities": {"a": 0.7, "b": 0.3}}
    dev.score.add([TextExample("t", None, "a", {}, "dev.tsv:1")] * 200, [right] * 200)
    dev.tune({})
    assert all(torch.equal(weight, before[name]) for name, weight in module.state_dict().items())
    assert dev.calibration == {}
    assert "no decision on dev is wrong" in caplog.text
