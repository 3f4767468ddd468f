"""A dev file that decides nothing."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from support.tasks import new_task
from unmask.finetuning.measuring import Measurement, _chosen
from unmask.models.hub.directory import load_encoder
from unmask.tasks.text.examples import TextExample
from unmask.training.device import choose_compute
from unmask.training.run.log import RunLog


def test_a_dev_file_without_a_mistake_leaves_the_logits_as_they_are(
    tiny_model: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    task = new_task(labels=["a", "b"], calibration="temperature")
    module = task.module(load_encoder(tiny_model).encoder)
    before = {name: weight.clone() for name, weight in module.state_dict().items()}
    score, right = task.score(), {"label": "a", "score": 0.7, "probabilities": {"a": 0.7, "b": 0.3}}
    score.add([TextExample("t", None, "a", {}, "dev.tsv:1")] * 200, [right] * 200)
    with RunLog(tmp_path) as log:
        dev = Measurement("dev", task, module, [], choose_compute("cpu", "fp32"), log, score=score)
        dev.tune({})
    assert all(torch.equal(weight, before[name]) for name, weight in module.state_dict().items())
    assert dev.calibration == {}
    assert "no decision on dev is wrong" in caplog.text


def test_of_many_thresholds_the_first_are_shown() -> None:
    new = {"thresholds": {f"L{number}": 0.5 for number in range(500)}}
    assert _chosen({}, new).endswith(" · L19 0.5 and 480 more")
