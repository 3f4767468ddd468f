"""The mean of models' weights, and what has none."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from support.model_files import edit_config, edit_weights, with_one, without
from support.untrained import save_bert, save_task_model
from unmask.card import write_card
from unmask.errors import ModelError, OutputError, SettingsError
from unmask.inference.averaging import average_models
from unmask.inference.mask_filling import fill_mask
from unmask.info import describe
from unmask.tokenization.tokenizer import load_tokenizer

TEXTS = ["the man went to the store", "a dog ran away"] * 4
BIAS = "cls.predictions.bias"


@pytest.fixture
def models(tmp_path: Path) -> list[Path]:
    """An encoder, and what it might have become."""
    first = save_bert(tmp_path / "first", TEXTS, masked_lm=True)
    second = tmp_path / "second"
    shutil.copytree(first, second)
    edit_weights(second, lambda weights: {name: tensor + torch.randn_like(tensor) for name, tensor in weights.items()})
    return [first, second]


def weights(directory: Path, name: str = "model.safetensors") -> dict[str, Tensor]:
    return load_file(directory / name)


def test_the_mean_is_a_model_like_the_first(tmp_path: Path, models: list[Path]) -> None:
    from transformers import AutoTokenizer, BertForMaskedLM

    mean = average_models(models, tmp_path / "mean")
    first, second = map(weights, models)
    for name, tensor in weights(mean).items():
        assert torch.allclose(tensor, (first[name] + second[name]) / 2, atol=1e-7)
    assert load_tokenizer(mean).fingerprint() == load_tokenizer(models[0]).fingerprint()
    theirs, tokens = BertForMaskedLM.from_pretrained(mean).eval(), AutoTokenizer.from_pretrained(mean)
    inputs = tokens("the [MASK] went", return_tensors="pt")
    with torch.no_grad():
        expected = theirs(**inputs).logits[0, 2].softmax(-1).max()
    [found] = fill_mask(mean, "the [MASK] went", 1)
    assert found["score"] == pytest.approx(float(expected), abs=1e-6)


def test_the_mean_says_of_what(tmp_path: Path, models: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """With the places that were given; a mean of means names those."""
    monkeypatch.chdir(tmp_path)
    mean = average_models(["first", models[1]], "mean")
    assert describe(mean)["made_by"] == {"command": "average", "of": ["first", str(models[1])]}
    assert "```\nunmask average first second\n```" in write_card(mean).read_text()  # no places of this machine
    assert describe(average_models(["mean", "first"], "other"))["made_by"]["of"] == ["mean", "first"]


def test_weights_in_bf16_are_added_in_float32(tmp_path: Path, models: list[Path]) -> None:
    edit_weights(models[1], lambda weights: {name: tensor.bfloat16() for name, tensor in weights.items()})
    edit_config(models[0], dtype="bfloat16")
    mean = average_models(models, tmp_path / "mean")
    first, second = map(weights, models)
    assert torch.equal(weights(mean)[BIAS], (first[BIAS] + second[BIAS].float()) / 2)
    assert json.loads((mean / "config.json").read_text())["dtype"] == "float32"


def test_one_that_is_named_twice_counts_twice(tmp_path: Path, models: list[Path]) -> None:
    mean = average_models([*models, models[0]], tmp_path / "mean")
    first, second = map(weights, models)
    assert torch.allclose(weights(mean)[BIAS], (2 * first[BIAS] + second[BIAS]) / 3)


def test_heads_apart_have_their_mean(tmp_path: Path, models: list[Path]) -> None:
    settings: dict[str, Any] = {
        "name": "tagging",
        "labels": ["O", "B-X", "I-X"],
        "encoder_top": "bilstm",
        "bilstm_size": 4,
    }
    members = [save_task_model(tmp_path / f"tagger{seed}", models[0], seed=seed, **settings) for seed in (0, 1)]
    mean = average_models(members, tmp_path / "mean")
    first, second = (weights(member, "head.safetensors") for member in members)
    for name, tensor in weights(mean, "head.safetensors").items():
        assert torch.allclose(tensor, (first[name] + second[name]) / 2)


def test_a_generator_beside_each_has_its_mean_too(tmp_path: Path, models: list[Path]) -> None:
    """As pre-training leaves an ELECTRA; one without its generator makes a mean without one."""
    for model in models:
        shutil.copytree(model, tmp_path / "copy")
        (tmp_path / "copy").rename(model / "generator")
    mean = average_models(models, tmp_path / "mean")
    first, second = (weights(model / "generator") for model in models)
    for name, tensor in weights(mean / "generator").items():
        assert torch.allclose(tensor, (first[name] + second[name]) / 2, atol=1e-7)
    assert load_tokenizer(mean / "generator").fingerprint() == load_tokenizer(models[0]).fingerprint()
    shutil.rmtree(models[1] / "generator")
    assert not (average_models(models, tmp_path / "other") / "generator").exists()


def test_models_that_differ_in_more_than_weights_have_no_mean(tmp_path: Path, models: list[Path]) -> None:
    first, second = models

    def refused(told: str) -> None:
        with pytest.raises(ModelError, match=told):
            average_models(models, tmp_path / "mean")
        assert not (tmp_path / "mean").exists()

    vector = weights(second)[BIAS]
    edit_weights(second, without(BIAS))
    refused(rf"second and .*first differ in {BIAS}: expected models that differ in weights alone")
    edit_weights(second, with_one(BIAS, vector[1:]))
    refused(f"differ in {BIAS}:")
    edit_config(second, intermediate_size=7)
    refused(r"differ in size \(intermediate_size\)")
    shutil.copy(first / "config.json", second)
    path = second / "tokenizer.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"normalizer": None}))
    refused("differ in tokenizer")
    edit_config(second, architectures=["BertModel"])
    refused(r"differ in class \(\w+ and \w+\): .* as runs of one recipe give")
    (second / "config.json").unlink()
    refused(r"config\.json")


def test_classifiers_of_other_labels_have_none(tmp_path: Path, models: list[Path]) -> None:
    members = [
        save_task_model(tmp_path / name, models[0], name="classification", labels=[name, "other"])
        for name in ("a", "b")
    ]
    with pytest.raises(ModelError, match=r"b and .*a differ in labels: expected"):
        average_models(members, tmp_path / "mean")


def test_classifiers_that_pool_windows_otherwise_have_none(tmp_path: Path, models: list[Path]) -> None:
    members = [
        save_task_model(tmp_path / name, models[0], name="classification", labels=["a", "b"]) for name in ("one", "two")
    ]
    for member, pooling in zip(members, ("mean", "max"), strict=True):
        task = json.loads((member / "config.json").read_text())["unmask_task"]
        edit_config(member, unmask_task=task | {"long_text": "windows", "window_pooling": pooling})
    with pytest.raises(ModelError, match=r"two and .*one differ in task\.window_pooling: expected"):
        average_models(members, tmp_path / "mean")


def test_layouts_and_what_is_of_training_alone_may_differ(tmp_path: Path, models: list[Path]) -> None:
    """As in a released model and its continuation here: dropout, old names, second copies of tied weights, buffers."""
    from transformers import BertForMaskedLM

    first, second = map(weights, models)
    old = {name: name.replace("LayerNorm.weight", "LayerNorm.gamma") for name in second}
    copies = {"cls.predictions.decoder.weight": second["bert.embeddings.word_embeddings.weight"].clone()}
    numbers = {"bert.embeddings.position_ids": torch.arange(16)[None]}
    edit_weights(models[1], lambda its: {old[name]: tensor for name, tensor in its.items()} | copies | numbers)
    edit_config(models[1], hidden_dropout_prob=0.3, attention_probs_dropout_prob=0.0, initializer_range=0.5)
    mean = average_models(models, tmp_path / "mean")
    theirs = dict(BertForMaskedLM.from_pretrained(mean).named_parameters())
    assert theirs.keys() <= first.keys()
    for name, parameter in theirs.items():
        assert torch.allclose(parameter.detach(), (first[name] + second[name]) / 2, atol=1e-7)


@pytest.mark.parametrize(
    ("settings", "name", "chosen"),
    [
        ({"name": "classification", "multi_label": True, "labels": ["a", "b"]}, "thresholds", [0.1, 0.2]),
        ({"name": "qa", "unanswerable": True}, "null_threshold", -1.5),
    ],
)
def test_what_was_chosen_for_one_model_is_left_out(
    settings: dict[str, Any],
    name: str,
    chosen: Any,
    tmp_path: Path,
    models: list[Path],
    caplog: pytest.LogCaptureFixture,
) -> None:
    members = [save_task_model(tmp_path / member, models[0], **settings) for member in ("one", "two")]
    task = json.loads((members[0] / "config.json").read_text())["unmask_task"]
    edit_config(members[0], unmask_task=task | {name: chosen}, unmask_trained_length=16, torch_dtype="bfloat16")
    edit_config(members[1], unmask_trained_length=8)
    config = json.loads((average_models(members, tmp_path / "mean") / "config.json").read_text())
    task.pop(name, None)
    assert (config["unmask_task"], config["unmask_trained_length"], config.get("torch_dtype")) == (task, 8, None)
    assert f"{name}: left out, for it was chosen on dev" in caplog.text


def test_models_of_other_tasks_have_none(tmp_path: Path, models: list[Path]) -> None:
    single = save_task_model(tmp_path / "single", models[0], name="classification", labels=["a", "b"])
    several = save_task_model(
        tmp_path / "several", models[0], name="classification", labels=["a", "b"], multi_label=True
    )
    with pytest.raises(ModelError, match="differ in problem_type"):
        average_models([single, several], tmp_path / "mean")


def test_what_is_written_over(tmp_path: Path, models: list[Path]) -> None:
    with pytest.raises(SettingsError, match=r"the mean of 1 model\(s\): expected two or more"):
        average_models(str(models[0]), tmp_path / "mean")
    with pytest.raises(SettingsError, match=r"the mean of 1 model\(s\): expected two or more"):
        average_models(iter(models[:1]), tmp_path / "mean")
    place = tmp_path / "mean"
    place.mkdir()
    (place / "letters.txt").write_text("mine")
    for overwrite in (False, True):
        with pytest.raises(OutputError, match=r"holds letters\.txt, which is no part of a model"):
            average_models(models, place, overwrite=overwrite)
    assert (place / "letters.txt").read_text() == "mine"
    with pytest.raises(OutputError, match="first is needed and would be overwritten"):
        average_models(models, models[0], overwrite=True)
    second = average_models(models[:1] * 2, tmp_path / "again")
    first = weights(models[0])[BIAS]
    average_models(models, second, overwrite=True)
    assert torch.allclose(weights(second)[BIAS], (first + weights(models[1])[BIAS]) / 2)
