"""Ensembles: what members say is combined by their task, and only models that belong together are let in."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from support.files import write_rows
from support.model_files import edit_config
from support.questions import qa_task
from support.tasks import new_task
from unmask.errors import ModelError, OutputError, SettingsError
from unmask.finetuning.run import save_finetuned
from unmask.inference.ensemble import check_tokenizers, keep_chosen, read_chosen, read_members, write_ensemble
from unmask.inference.evaluation import evaluate
from unmask.inference.predictor import load_predictor, predict
from unmask.models.hub.directory import load_encoder
from unmask.tokenization.learning.train import learn_tokenizer
from unmask.tokenization.settings import TokenizerSettings
from unmask.tokenization.tokenizer import load_tokenizer

MUST_AGREE = ["truncation", "doc_stride", "max_question_length", "document_context", "unanswerable", "answerability"]
MUST_AGREE += [
    "max_answer_length",
    "max_choice_length",
    "encoder_top",
    "two_orders",
    "long_text",
    "units",
    "negative_label",
]


# Directories


@pytest.fixture
def members(tmp_path: Path, tiny_model: Path) -> list[Path]:
    """Three runs whose models say that they are of one task; their weights are never read."""
    made = []
    for number in range(3):
        model = tmp_path / "runs" / f"run{number}" / "model"
        shutil.copytree(tiny_model, model)
        edit_config(model, architectures=["BertForSequenceClassification"], id2label={"0": "no", "1": "yes"})
        edit_config(model, unmask_task={"name": "mrpc", "max_length": 64})
        made.append(model.parent)
    return made


def test_what_is_written_is_read_again_and_can_be_moved(tmp_path: Path, members: list[Path]) -> None:
    directory = write_ensemble(members, tmp_path / "together" / "all")
    assert read_members(directory) == [member.resolve() / "model" for member in members]
    said = json.loads((directory / "ensemble.json").read_text())
    assert said == {"members": [f"../../runs/run{number}/model" for number in range(3)]}
    moved = tmp_path / "elsewhere"
    moved.mkdir()
    (tmp_path / "runs").rename(moved / "runs")
    (tmp_path / "together").rename(moved / "together")
    found = read_members(moved / "together" / "all") or []
    assert [member.is_dir() for member in found] == [True] * 3


def test_a_directory_without_the_file_is_no_ensemble(tiny_model: Path) -> None:
    assert read_members(tiny_model) is None


def test_a_member_that_is_gone_is_named(tmp_path: Path, members: list[Path]) -> None:
    directory = write_ensemble(members, tmp_path / "all")
    shutil.rmtree(members[1])
    with pytest.raises(ModelError, match=r"ensemble\.json: there is no model at .*run1/model"):
        read_members(directory)


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"members": []}', '{"members": [1]}', '{"members": "a"}'])
def test_a_damaged_file_is_told(tmp_path: Path, content: str) -> None:
    (tmp_path / "ensemble.json").write_text(content)
    with pytest.raises(ModelError, match="cannot be read"):
        read_members(tmp_path)


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"architectures": ["BertForTokenClassification"]}, "head is TokenClassification in the one"),
        ({"id2label": {"0": "yes", "1": "no"}}, "labels is yes, no in the one and no, yes in the other"),
        ({"id2label": {"0": "no\u200b", "1": "yes"}}, r"labels is 'no\\u200b, yes' in the one and 'no, yes' in"),
        ({"unmask_task": {"name": "rte", "max_length": 64}}, r"task\.name is rte in the one and mrpc in the other"),
        ({"unmask_task": {"name": "mrpc", "max_length": 32}}, r"task\.max_length is 32"),
        *(
            ({"unmask_task": {"name": "mrpc", "max_length": 64, name: 8}}, rf"task\.{name} is 8 in the one and None in")
            for name in MUST_AGREE
        ),
        ({"unmask_task": "mrpc"}, r"task\.name is None in the one"),
        ({"problem_type": "regression"}, "problem_type is regression in the one and None"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_models_that_do_not_belong_together_are_refused(
    tmp_path: Path, members: list[Path], changed: dict[str, Any], told: str
) -> None:
    edit_config(members[2] / "model", **changed)
    with pytest.raises(ModelError, match=rf"run2/model and .*run0/model cannot answer together: {told}"):
        write_ensemble(members, tmp_path / "all")
    assert not (tmp_path / "all").exists()


def test_a_member_that_is_not_fine_tuned_is_refused_as_predict_does(tmp_path: Path, tiny_model: Path) -> None:
    members = [tmp_path / name for name in ("one", "other")]
    for member in members:
        shutil.copytree(tiny_model, member)
    with pytest.raises(ModelError, match="expected a fine-tuned model") as by_predict:
        load_predictor(members[0])
    with pytest.raises(ModelError, match=f"^{re.escape(str(by_predict.value))}$"):
        write_ensemble(members, tmp_path / "all")
    assert not (tmp_path / "all").exists()


def test_a_threshold_is_kept_beside_the_members(tmp_path: Path, members: list[Path]) -> None:
    directory = write_ensemble(members, tmp_path / "all")
    found = read_members(directory)
    assert read_chosen(directory) == {}
    keep_chosen(directory, {"null_threshold": -1.25})
    assert read_chosen(directory) == {"null_threshold": -1.25}
    assert read_members(directory) == found


@pytest.mark.parametrize("value", ['"1"', "true", "NaN", "[]"])
@pytest.mark.parametrize(
    ("name", "form", "told"),
    [("null_threshold", "{}", "is not a number"), ("thresholds", '{{"a": {}}}', "are not num")],
)
def test_a_damaged_threshold_is_told(tmp_path: Path, name: str, form: str, told: str, value: str) -> None:
    (tmp_path / "ensemble.json").write_text(f'{{"members": ["a"], "{name}": {form.format(value)}}}')
    with pytest.raises(ModelError, match=rf"cannot be read \(`{name}` {told}"):
        read_chosen(tmp_path)


def test_taggers_of_two_tokenizers_are_refused(tmp_path: Path, members: list[Path]) -> None:
    path = members[1] / "model" / "tokenizer.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"normalizer": None}))
    for member in members:
        edit_config(member / "model", architectures=["BertForTokenClassification"])
    with pytest.raises(ModelError, match="tokenizer is"):
        write_ensemble(members, tmp_path / "all")
    with pytest.raises(ModelError, match=r"run1/model has another tokenizer than .*run0/model"):
        check_tokenizers([member / "model" for member in members])
    check_tokenizers([members[0] / "model", members[2] / "model"])


def test_members_are_two_or_more_and_each_another_one(tmp_path: Path, members: list[Path]) -> None:
    with pytest.raises(SettingsError, match="expected two or more"):
        write_ensemble(members[:1], tmp_path / "all")
    (tmp_path / "link").symlink_to(members[0])
    for again in (members[0] / "model", tmp_path / "link"):
        with pytest.raises(SettingsError, match=r"(run0|link)/model is given twice"):
            write_ensemble([members[0], members[1], again], tmp_path / "all")


def test_nothing_is_overwritten_that_is_no_ensemble(tmp_path: Path, members: list[Path]) -> None:
    directory = write_ensemble(members, tmp_path / "all")
    with pytest.raises(OutputError, match="exists already"):
        write_ensemble(members[:2], directory)
    write_ensemble(members[:2], directory, overwrite=True)
    assert len(read_members(directory) or []) == 2
    (directory / "notes.md").write_text("by hand")
    with pytest.raises(OutputError, match=r"holds notes\.md, which is no part of an ensemble"):
        write_ensemble(members, directory, overwrite=True)
    assert (directory / "notes.md").read_text() == "by hand"
    with pytest.raises(OutputError, match="holds model, which is no part of an ensemble"):
        write_ensemble(members[:2], members[2], overwrite=True)
    assert (members[2] / "model" / "config.json").is_file()


@pytest.mark.parametrize("shares", [True, False], ids=["one tokenizer", "two tokenizers"])
@pytest.mark.parametrize("name", ["classification", "regression", "choice"])
def test_members_answer_together(tmp_path: Path, tiny_model: Path, name: str, shares: bool) -> None:
    """By mean probabilities or mean values, each in its own tokens."""
    texts = ("A dog runs.", "a man", "two women and a child")
    rows = [{"text": text, "context": text, "choices": ["sit", "The men run"], "label": 0} for text in texts]
    data = write_rows(tmp_path / "data.jsonl", *rows)
    other, _ = learn_tokenizer(iter(["A dog and a man run ; two women sit ."] * 3), TokenizerSettings(), seed=0)
    labels = ["0", "1"] if name == "classification" else None
    task = new_task(name, max_length=64, labels=labels)
    members = []
    for seed, tokenizer in enumerate((load_tokenizer(tiny_model), load_tokenizer(tiny_model) if shares else other)):
        torch.manual_seed(seed)
        module: Any = task.module(load_encoder(tiny_model, head=task.head_kind).encoder)
        torch.nn.init.normal_(next(module.head.parameters()), std=0.3)
        members.append(tmp_path / f"member{seed}")
        save_finetuned(module, task, tokenizer, members[-1])
    together = write_ensemble(members, tmp_path / "together")
    first, second, both = ([_figures(answer) for answer in predict(model, rows)] for model in (*members, together))
    assert abs(torch.tensor(first) - torch.tensor(second)).max() > 0.01
    torch.testing.assert_close(torch.tensor(both), (torch.tensor(first) + torch.tensor(second)) / 2, rtol=0, atol=1e-5)
    assert evaluate(together, str(data))["n"] == len(rows)
    (its,) = (predictor := load_predictor(together)).others
    assert (its.tokenizer is predictor.tokenizer) == shares


def test_members_of_two_tokenizers_choose_labels_by_their_mean_thresholds(tmp_path: Path, tiny_model: Path) -> None:
    other, _ = learn_tokenizer(iter(["A dog and a man run ; two women sit ."] * 3), TokenizerSettings(), seed=0)
    members = []
    for tokenizer, threshold in ((load_tokenizer(tiny_model), 0.1), (other, 0.9)):
        task = new_task(multi_label=True, max_length=64, labels=["x", "y"], thresholds={"x": threshold, "y": 0.5})
        module: Any = task.module(load_encoder(tiny_model, head=task.head_kind).encoder)
        members.append(tmp_path / f"member{threshold}")
        save_finetuned(module, task, tokenizer, members[-1])
    together = write_ensemble(members, tmp_path / "together")
    task = load_predictor(together).task
    assert task.settings.thresholds == {"x": pytest.approx(0.5), "y": pytest.approx(0.5)}
    keep_chosen(together, {"thresholds": {"x": 0.2, "y": 0.3}})  # those of all come first
    assert load_predictor(together).task.settings.thresholds == {"x": 0.2, "y": 0.3}


def test_thresholds_of_no_answer_add_up() -> None:
    tasks = [qa_task(unanswerable=True, null_threshold=each) for each in (-0.5, -1.5)]
    assert tasks[0].together(tasks, {}).settings.null_threshold == -2.0


def _figures(answer: dict[str, Any]) -> list[float]:
    if "value" in answer:
        return [answer["value"]]
    return list(answer["probabilities"].values() if "label" in answer else answer["probabilities"])
