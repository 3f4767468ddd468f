"""Six faults, each planted in a real run: the doctor names it and no other. One of fine-tuning beside them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch
from torch import nn

from unmask.batch import IGNORE_INDEX, Batch
from unmask.doctor.findings import Finding
from unmask.doctor.run.checks import check_run
from unmask.finetuning.run import finetune
from unmask.objectives.base import ObjectiveModule
from unmask.objectives.masked_lm import MaskedLM
from unmask.pretraining import inputs as pretraining_inputs
from unmask.pretraining.run import pretrain
from unmask.pretraining.start import build_module
from unmask.store.preparation import prepare
from unmask.tokenization.learning.from_files import train_tokenizer
from unmask.tokenization.settings import TokenizerSettings

pytestmark = pytest.mark.usefixtures("one_thread", "without_report")


@pytest.mark.parametrize("seed", [0, 1])
def test_a_learning_rate_of_a_hundred_times(
    recipe: str, store: Path, tmp_path: Path, seed: int, named_faults: Callable[[Path], set[str]]
) -> None:
    words = [f"store={store}", "optimizer.learning_rate=0.3", f"seed={seed}"]
    pretrain(recipe, words, out=tmp_path / "run")
    assert named_faults(tmp_path / "run") == {"learning-rate-too-high"}
    floor = next(finding for finding in check_run(tmp_path / "run") if finding.name == "mlm-unigram-floor")
    assert floor.level == "warning"
    assert "learning-rate-too-high" in floor.advice


def test_a_run_that_diverged_before_anything_was_saved(sound: Path, recipe: str, store: Path, tmp_path: Path) -> None:
    """What such a run leaves: its recipe, and rows of which the last is not finite."""
    run = tmp_path / "run"
    run.mkdir()
    (run / "recipe.yaml").write_bytes((sound / "recipe.yaml").read_bytes())
    row = {"tokens": 9, "loss/mlm": 6.4, "learning_rate": 0.3, "gradient_norm": 40.0, "tokens_per_s": 1.0}
    rows = [{"step": 10, "loss": 6.4, **row}, {"step": 20, "loss": None, **row, "loss/mlm": None}]
    (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    findings = {finding.name: finding for finding in check_run(run)}
    assert {name for name, finding in findings.items() if finding.level == "fault"} == {"learning-rate-too-high"}
    assert findings["unfinished-run"].level == "warning"
    assert findings["unfinished-run"].advice.startswith("what to do is told under learning-rate-too-high: ")


def shifted(by: int) -> Callable[[MaskedLM, Batch], Batch]:
    """`MaskedLM.prepare` with the label of each target taken `by` places after it."""
    right = MaskedLM.prepare

    def prepare_shifted(self: MaskedLM, batch: Batch) -> Batch:
        prepared = right(self, batch)
        labels = torch.where(prepared.columns["labels"] != IGNORE_INDEX, batch.input_ids.roll(-by), IGNORE_INDEX)
        return prepared.with_columns(labels=labels)

    return prepare_shifted


@pytest.mark.parametrize("by", [1, -1])
def test_labels_shifted_by_one(
    recipe: str,
    store: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    by: int,
    named_faults: Callable[[Path], set[str]],
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(MaskedLM, "prepare", shifted(by))
        pretrain(recipe, [f"store={store}"], out=tmp_path / "run")
    assert named_faults(tmp_path / "run") == {"labels-shifted"}


def test_targets_read_one_place_off(
    recipe: str,
    store: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    write_text: Callable[[Path, Sequence[str]], Path],
    named_faults: Callable[[Path], set[str]],
) -> None:
    """The other way to shift: right labels, and the answer read at the place after the masked one. The text is a chain
    in which each word tells the next, so that context is learnt within seconds."""
    words = [chr(ord("a") + a) + chr(ord("a") + b) for a in range(20) for b in range(5)]
    lines = [" ".join(words[(start + n) % 100] for n in range(60)) + " ." for start in range(100)]
    text = write_text(tmp_path / "text.jsonl", ["\n".join(lines[n::20]) for n in range(20)])
    train_tokenizer([text], tmp_path / "tokenizer", TokenizerSettings(vocab_size=300))
    prepare([text], tmp_path / "tokenizer", tmp_path / "store")
    right = MaskedLM.prepare

    def read_after(self: MaskedLM, batch: Batch) -> Batch:
        prepared = right(self, batch)
        labels, places = prepared.columns["labels"].roll(1), prepared.columns["target_positions"] + 1
        return prepared.with_columns(labels=labels, target_positions=places)

    learns_fast = ["model.hidden_dropout_prob=0", "model.initializer_range=0.1", "objective.sentence_objective=none"]
    for name, function in (("right", right), ("off", read_after)):
        with monkeypatch.context() as patch:
            patch.setattr(MaskedLM, "prepare", function)
            pretrain(recipe, [f"store={tmp_path / 'store'}", *learns_fast], out=tmp_path / name)
    assert named_faults(tmp_path / "right") == set()
    assert named_faults(tmp_path / "off") == {"labels-shifted"}


def test_a_store_replaced_by_one_of_another_vocabulary(
    sound: Path,
    texts: list[str],
    other_tokenizer: Path,
    tmp_path: Path,
    write_text: Callable[[Path, Sequence[str]], Path],
    named_faults: Callable[[Path], set[str]],
    copy_run: Callable[..., None],
) -> None:
    text = write_text(tmp_path / "text.jsonl", texts)
    prepare([text], other_tokenizer, tmp_path / "store")
    run = tmp_path / "run"
    copy_run(sound, run, store=tmp_path / "store")
    assert named_faults(run) == {"other-vocabulary"}


def test_a_store_whose_tokenizer_was_swapped(
    sound: Path,
    store: Path,
    other_tokenizer: Path,
    tmp_path: Path,
    named_faults: Callable[[Path], set[str]],
    copy_run: Callable[..., None],
) -> None:
    shutil.copytree(store, tmp_path / "store")
    shutil.copytree(other_tokenizer, tmp_path / "store" / "tokenizer", dirs_exist_ok=True)
    copy_run(sound, tmp_path / "run", store=tmp_path / "store")
    assert named_faults(tmp_path / "run") == {"other-vocabulary"}


def test_a_store_replaced_between_two_sessions(
    recipe: str,
    texts: list[str],
    store: Path,
    other_tokenizer: Path,
    tmp_path: Path,
    write_text: Callable[[Path, Sequence[str]], Path],
    named_faults: Callable[[Path], set[str]],
) -> None:
    """In a run of an earlier version, which did not write down what its store holds. The vocabularies are of one size,
    so the resumed run goes on, and its model gets the new store's tokenizer."""
    text = write_text(tmp_path / "text.jsonl", texts)
    words = [f"store={tmp_path / 'store'}", "schedule.name=constant"]
    prepare([text], store / "tokenizer", tmp_path / "store")
    pretrain(recipe, [*words, "train.steps=60"], out=tmp_path / "run")
    prepare([text], other_tokenizer, tmp_path / "store", overwrite=True)
    (tmp_path / "run" / "data.json").unlink()
    pretrain(recipe, [*words, "train.steps=90"], out=tmp_path / "run", resume=True)
    assert named_faults(tmp_path / "run") == {"other-vocabulary"}


def test_a_run_begun_from_a_model_of_another_vocabulary(
    sound: Path,
    texts: list[str],
    other_tokenizer: Path,
    tmp_path: Path,
    write_text: Callable[[Path, Sequence[str]], Path],
    named_faults: Callable[[Path], set[str]],
    recipe_text: str,
) -> None:
    """Without its tokenizer a model of as many entries is not refused."""
    text = write_text(tmp_path / "text.jsonl", texts)
    prepare([text], other_tokenizer, tmp_path / "store")
    recipe_without_sizes = tmp_path / "recipe.yaml"
    lines = recipe_text.splitlines(keepends=True)
    recipe_without_sizes.write_text("".join(line for line in lines if not line.startswith("model:")), encoding="utf-8")
    start = tmp_path / "start"
    start.mkdir()
    for name in ("config.json", "model.safetensors"):
        (start / name).write_bytes((sound / "model" / name).read_bytes())
    words = [f"store={tmp_path / 'store'}", f"init_from={start}", "train.steps=20"]
    pretrain(str(recipe_without_sizes), words, out=tmp_path / "run")
    assert named_faults(tmp_path / "run") == {"other-vocabulary"}


def test_nothing_masked_by_the_recipe(
    recipe: str, store: Path, tmp_path: Path, named_faults: Callable[[Path], set[str]]
) -> None:
    words = ["objective.mask_token_prob=0", "objective.random_token_prob=0", "train.steps=60"]
    pretrain(recipe, [f"store={store}", *words], out=tmp_path / "run")
    assert named_faults(tmp_path / "run") == {"mask-rate-zero"}


@pytest.mark.parametrize("sentence_objective", ["nsp", "none"])
def test_no_position_chosen(
    recipe: str,
    store: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    sentence_objective: str,
    levels: Callable[[Sequence[Finding]], dict[str, str]],
    named_faults: Callable[[Path], set[str]],
) -> None:
    def choose_none(batch: Batch, target_prob: float) -> torch.Tensor:
        return torch.zeros(batch.num_tokens, dtype=torch.bool)

    with monkeypatch.context() as patch:
        patch.setattr("unmask.objectives.masked_lm.choose_tokens", choose_none)
        patch.setattr("unmask.pretraining.run.check_targets", lambda settings, run: None)  # which would refuse the run
        words = [f"objective.sentence_objective={sentence_objective}", "train.steps=30"]
        pretrain(recipe, [f"store={store}", *words], out=tmp_path / "run")
    assert named_faults(tmp_path / "run") == {"mask-rate-zero"}
    path = tmp_path / "run" / "metrics.jsonl"
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    assert not any("mlm" in name for row in rows for name in row)
    zero = {"loss": 0.0, "loss/mlm": 0.0}  # as earlier versions wrote it
    told = [row | zero if "tokens" in row else row | {"eval/mlm_loss": 0.0} for row in rows]
    path.write_text("".join(json.dumps(row) + "\n" for row in told), encoding="utf-8")
    assert named_faults(tmp_path / "run") == {"mask-rate-zero"}
    assert levels(check_run(tmp_path / "run"))["mlm-uniform-floor"] == "note"  # a loss of 0 has passed nothing


def test_a_corpus_repeated_ten_times(
    recipe: str,
    texts: list[str],
    store: Path,
    tmp_path: Path,
    write_text: Callable[[Path, Sequence[str]], Path],
    named_faults: Callable[[Path], set[str]],
) -> None:
    text = write_text(tmp_path / "text.jsonl", texts[:20] * 10)
    prepare([text], store / "tokenizer", tmp_path / "store")
    pretrain(recipe, [f"store={tmp_path / 'store'}", "train.steps=60"], out=tmp_path / "run")
    assert named_faults(tmp_path / "run") == {"repeated-corpus"}
    told = next(finding for finding in check_run(tmp_path / "run") if finding.name == "repeated-corpus").message
    assert "200 documents are 20 different texts, each 10.0 times" in told


def test_a_few_copies_are_no_fault(
    recipe: str,
    texts: list[str],
    store: Path,
    tmp_path: Path,
    write_text: Callable[[Path, Sequence[str]], Path],
    levels: Callable[[Sequence[Finding]], dict[str, str]],
    named_faults: Callable[[Path], set[str]],
) -> None:
    for name, num_copies in (("few", 2), ("some", 12)):
        text = write_text(tmp_path / f"{name}.jsonl", [*texts, *texts[:num_copies]])
        prepare([text], store / "tokenizer", tmp_path / name)
        pretrain(recipe, [f"store={tmp_path / name}", "train.steps=20"], out=tmp_path / f"run-{name}")
    assert named_faults(tmp_path / "run-few") == set()
    assert levels(check_run(tmp_path / "run-some"))["repeated-corpus"] == "warning"


@pytest.mark.parametrize(("part", "level"), [("encoder", "fault"), ("encoder.embeddings", "warning")])
def test_a_frozen_encoder(
    recipe: str,
    store: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    part: str,
    level: str,
    levels: Callable[[Sequence[Finding]], dict[str, str]],
    named_faults: Callable[[Path], set[str]],
) -> None:
    def build_frozen(*words: object) -> ObjectiveModule:
        module = build_module(*words)  # type: ignore[arg-type]
        assert isinstance(module, nn.Module)
        module.get_submodule(part).requires_grad_(False)
        return module

    with monkeypatch.context() as patch:
        patch.setattr(pretraining_inputs, "build_module", build_frozen)
        pretrain(recipe, [f"store={store}", "train.steps=60"], out=tmp_path / "run")
    assert named_faults(tmp_path / "run") == {"frozen-encoder"}
    assert levels(check_run(tmp_path / "run"))["frozen-encoder"] == level


# Fine-tuning


@pytest.fixture
def task_words(sound: Path, samples_dir: Path) -> list[str]:
    data = samples_dir / "tasks" / "snli"
    return [
        f"init_from={sound}",
        f"data.train={data / 'train.jsonl'}",
        f"data.dev={data / 'dev.jsonl'}",
        *("device=cpu", "precision=fp32", "task.max_length=64", "train.log_every=5", "train.epochs=1"),
    ]


def test_a_fine_tuning_run_that_tells_nothing_apart(
    task_words: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    levels: Callable[[Sequence[Finding]], dict[str, str]],
) -> None:
    monkeypatch.setattr("unmask.finetuning.run.write_report", lambda directory: None)
    finetune("finetune/snli", [*task_words, "optimizer.learning_rate=1e-7"], out=tmp_path / "run")
    told = levels(check_run(tmp_path / "run"))
    assert told["constant-predictions"] == "fault"
    assert "task-majority-floor" not in told  # by luck one label can be more frequent in dev than in training
    assert told["task-uniform-floor"] == "warning"
