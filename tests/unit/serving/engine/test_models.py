"""What a model of a kind can be asked."""

from __future__ import annotations

import json
import re
import shutil
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from support.tensorflow_files import write_checkpoint
from support.untrained import save_discriminator, save_masked_lm, save_task_model
from unmask.corpus import segmenters
from unmask.errors import SettingsError
from unmask.finetuning.run import save_finetuned
from unmask.inference.opening import Opened
from unmask.info import describe
from unmask.io.paths import GENERATOR
from unmask.models.google.tensor_bundle import open_bundle
from unmask.models.hub.directory import load_encoder
from unmask.serving.engine import models
from unmask.serving.engine.answerers import MaskAnswerer
from unmask.serving.engine.models import default_models, open_served
from unmask.tasks.settings import ColumnSettings, TaskSettings
from unmask.tasks.table import open_task
from unmask.tokenization.tokenizer import load_tokenizer

GOOGLE = Path(__file__).parents[3] / "golden" / "tensorflow_checkpoint"


def test_a_server_of_no_named_model_takes_the_samples_and_those_of_the_demo(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And not what else is in `runs`."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SettingsError, match="name a model to serve"):
        default_models()
    for place in ("runs/demo/tweets/model", "runs/demo/encoder/model", "runs/mine/model", "samples/models/ko"):
        (tmp_path / place).mkdir(parents=True)
        (tmp_path / place / "config.json").write_text("{}")
    (tmp_path / "runs/demo/store").mkdir()
    assert default_models() == ["samples/models/ko", "runs/demo/encoder", "runs/demo/tweets"]


def test_a_bert_of_google_is_looked_into_as_any_other() -> None:
    endpoints = open_served("google", GOOGLE, "fp32").endpoints
    assert endpoints[0] == "fill-mask"
    assert {"attention", "layers"} <= set(endpoints)


def test_a_class_that_is_found_by_the_weights_is_served_as_one_that_is_named(tiny_model: Path, tmp_path: Path) -> None:
    directory = Path(shutil.copytree(tiny_model, tmp_path / "model"))
    config = json.loads((directory / "config.json").read_text())
    del config["architectures"]
    (directory / "config.json").write_text(json.dumps(config))
    assert open_served("its", directory, "fp32").endpoints == open_served("named", tiny_model, "fp32").endpoints
    assert describe(directory)["commands"] == describe(tiny_model)["commands"]


def test_a_fine_tuned_bert_of_google_is_served_as_one(tmp_path: Path) -> None:
    bundle = open_bundle(GOOGLE / "bert_model.ckpt.index")
    variables = {name: bundle.read(name).numpy() for name in bundle.entries if re.fullmatch(r"bert/((?!adam).)*", name)}
    config = json.loads((GOOGLE / "bert_config.json").read_text())
    variables |= {"output_weights": np.zeros((2, config["hidden_size"])), "output_bias": np.zeros(2)}
    directory = write_checkpoint(tmp_path, variables, config)
    shutil.copy(GOOGLE / "vocab.txt", directory)
    assert open_served("its", directory, "fp32").endpoints[0] == "classify"
    assert describe(directory)["is"] == "a fine-tuned model"


def test_a_model_whose_segmenter_is_missing_is_refused_at_the_start(
    tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else each request would be."""
    directory = Path(shutil.copytree(tiny_model, tmp_path / "model"))
    path = directory / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"unmask_segmenter": "kiwi"}))
    monkeypatch.setitem(sys.modules, "kiwipiepy", None)
    monkeypatch.setitem(segmenters.SEGMENTERS, "kiwi", segmenters._load_kiwi_segmenter.__wrapped__)
    with pytest.raises(SettingsError, match="kiwi needs the library kiwipiepy"):
        open_served("its", directory, "fp32")


def test_a_discriminator_says_how_likely_texts_are_by_its_generator_alone(tmp_path: Path) -> None:
    texts = ["the sky is blue and the sea is green"] * 20
    directory = save_discriminator(tmp_path / "electra", texts)
    alone = set(open_served("alone", directory, "fp32").endpoints)
    assert {"features", "attention"} <= alone
    assert alone.isdisjoint({"fill-mask", "score", "pairs", "token-scores"})
    assert describe(directory)["commands"][0] == "evaluate --pairs --discriminator"
    save_masked_lm(directory / GENERATOR, "electra", texts)
    both = open_served("both", directory, "fp32")
    assert {"score", "pairs", "token-scores"} <= set(both.endpoints)
    assert both.answerer("likelihoods").scorer
    assert describe(directory)["commands"][0] == "evaluate --pairs"


def test_a_model_of_any_number_of_labels_says_so(tiny_model: Path, tmp_path: Path) -> None:
    settings = TaskSettings.model_validate(
        {"name": "classification", "multi_label": True, "labels": ["n", "y"], "thresholds": {"y": 0.3}, "max_length": 9}
    )
    task = open_task(settings, ColumnSettings())
    encoder = load_encoder(tiny_model, head="sequence_classification").encoder
    save_finetuned(task.module(encoder), task, load_tokenizer(tiny_model), tmp_path)
    described = open_served("its", tmp_path, "fp32").facts().description
    assert (described["multi_label"], described["thresholds"]) == (True, {"n": 0.5, "y": 0.3})


@pytest.mark.parametrize("units", ["words", "characters"])
def test_a_model_of_tags_says_of_what(tiny_model: Path, tmp_path: Path, units: str) -> None:
    model = save_task_model(
        tmp_path / "model", tiny_model, name="tagging", labels=["O", "B-X", "I-X"], max_length=24, units=units
    )
    assert open_served("its", model, "fp32").facts().description["units"] == units


def test_all_uses_of_a_model_have_one_set_of_weights(tiny_model: Path) -> None:
    model = open_served("its", tiny_model, "fp32")
    encoder = model.answerer("masks").filler.encoder
    assert model.answerer("vectors").model.encoder is encoder
    assert model.answerer("likelihoods").scorer.encoder is encoder


def test_no_thread_stays_that_has_loaded_a_model(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch's helpers end with the thread that used them; with too many, each answer took twice as long."""
    threads = []

    class Use(MaskAnswerer):
        def __init__(self, opened: Opened) -> None:
            threads.append(threading.current_thread())
            super().__init__(opened)

    monkeypatch.setitem(models._OF_COMMANDS, "fill-mask", ("masks", Use, ("fill-mask",)))
    open_served("its", tiny_model, "fp32")
    [loaded_by] = threads
    assert not loaded_by.is_alive()
