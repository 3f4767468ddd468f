"""What the doctor says of runs: six faults, each planted in a real run and named, and none of them in sound ones."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch
from torch import nn

from unmask import pretraining_inputs
from unmask.batch import IGNORE_INDEX, Batch
from unmask.doctor.findings import Finding
from unmask.doctor.run_checks import check_run
from unmask.errors import InputError
from unmask.finetuning import finetune
from unmask.objectives.base import ObjectiveModule
from unmask.objectives.masked_lm import MaskedLM
from unmask.preparation import prepare
from unmask.pretraining import pretrain
from unmask.pretraining_start import build_module
from unmask.tokenization.settings import TokenizerSettings
from unmask.tokenizer_training import train_tokenizer

pytestmark = pytest.mark.usefixtures("one_thread", "without_report")

SIX = {
    *("learning-rate-too-high", "labels-shifted", "other-vocabulary"),
    *("mask-rate-zero", "repeated-corpus", "frozen-encoder"),
}

RECIPE = """
seed: 0
device: cpu
precision: fp32
held_out: 0.2
model: {preset: tiny, hidden_size: 64, num_attention_heads: 2, max_position_embeddings: 64}
packing: {max_length: 64}
optimizer: {learning_rate: 3e-3}
schedule: {warmup_steps: 10}
train: {steps: 120, batch_size: 16, log_every: 10, eval_every: 60, eval_sequences: 200, save_every: 60}
"""


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("recipe") / "recipe.yaml"
    path.write_text(RECIPE, encoding="utf-8")
    return str(path)


@pytest.fixture(scope="module")
def texts(samples_dir: Path) -> list[str]:
    """Pieces of the sample books, as documents."""
    lines = (samples_dir / "text" / "en-books.jsonl").read_text(encoding="utf-8").splitlines()
    chapters = [json.loads(line)["text"] for line in lines[:40]]
    return [chapter[start : start + 3000] for chapter in chapters for start in (0, 3000)]


def write_text(path: Path, documents: Sequence[str]) -> Path:
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in documents), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory, texts: list[str]) -> Path:
    directory = tmp_path_factory.mktemp("store")
    text = write_text(directory / "text.jsonl", texts)
    train_tokenizer([text], directory / "tokenizer", TokenizerSettings(vocab_size=600))
    prepare([text], directory / "tokenizer", directory / "store")
    return directory / "store"


@pytest.fixture(scope="module")
def other_tokenizer(tmp_path_factory: pytest.TempPathFactory, samples_dir: Path) -> Path:
    """One of as many entries, learnt from other text."""
    directory = tmp_path_factory.mktemp("other")
    lines = (samples_dir / "tasks" / "snli" / "train.jsonl").read_text(encoding="utf-8").splitlines()
    text = write_text(directory / "text.jsonl", [json.loads(line)["premise"] for line in lines])
    train_tokenizer([text], directory / "tokenizer", TokenizerSettings(vocab_size=600))
    return directory / "tokenizer"


def levels(findings: Sequence[Finding]) -> dict[str, str]:
    return {finding.name: finding.level for finding in findings}


def named_faults(run: Path) -> set[str]:
    """The findings at the level of a fault, and whichever of the six stands at another level."""
    findings = check_run(run)
    assert all(finding.message and (finding.advice or finding.level in ("good", "note")) for finding in findings)
    return {finding.name for finding in findings if finding.level == "fault" or finding.name in SIX}


@pytest.fixture(scope="module")
def sound(recipe: str, store: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("sound") / "run"
    pretrain(recipe, [f"store={store}"], out=run)
    return run


# Sound runs

MLM_FLOORS = {"mlm-uniform-floor", "mlm-unigram-floor", "mlm-no-context-floor", "mlm-no-context-accuracy-floor"}


def test_a_sound_run_has_none_of_the_six(sound: Path) -> None:
    assert named_faults(sound) == set()
    told = levels(check_run(sound))
    assert told["no-cause"] == "good"
    assert told["mlm-uniform-floor"] == "good"
    assert told["more-tokens"] == "note"  # 120 steps end on the plateau of what is had without context
    assert told["mlm-no-context-floor"] == "warning"
    assert {*MLM_FLOORS, "nsp-chance-floor", "nsp-majority-floor"} <= set(told)
    assert "held-out-loss-differs" not in told
    assert "unfinished-run" not in told


@pytest.mark.parametrize(
    "words",
    [
        ["seed=5", "objective.sentence_objective=none", "train.steps=60", "model.hidden_dropout_prob=0"],
        ["seed=6", "held_out=0", "objective.masking=whole_word", "optimizer.learning_rate=1e-3", "train.steps=30"],
        # A fresh model whose weights are large is worse than guessing evenly at first.
        ["seed=7", "model.initializer_range=0.2", "train.steps=60", "schedule.warmup_steps=0"],
        ["seed=8", "train.steps=3", "train.log_every=1"],
        # Rows of two sequences jump by more than a nat.
        ["seed=1", "train.batch_size=2", "train.log_every=1"],
    ],
)
def test_other_sound_runs_have_none_either(recipe: str, store: Path, tmp_path: Path, words: list[str]) -> None:
    pretrain(recipe, [f"store={store}", *words], out=tmp_path / "run")
    assert named_faults(tmp_path / "run") == set()


def test_a_run_made_from_a_corpus_finds_its_own_store(recipe: str, texts: list[str], tmp_path: Path) -> None:
    corpus = write_text(tmp_path / "text.jsonl", texts[:12])
    words = [f"corpus={corpus}", "tokenizer.vocab_size=300", "train.steps=20", "train.eval_every=null"]
    pretrain(recipe, words, out=tmp_path / "run")
    told = levels(check_run(tmp_path / "run"))
    assert "inputs-unreadable" not in told
    assert not SIX & set(told)


def test_checking_leaves_the_generator_and_the_run_as_they_were(sound: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in sound.rglob("*")}
    torch.manual_seed(1)
    check_run(sound)
    drawn = torch.rand(3)
    torch.manual_seed(1)
    assert torch.equal(drawn, torch.rand(3))
    assert {path: path.stat().st_mtime_ns for path in sound.rglob("*")} == before


# The six


@pytest.mark.parametrize("seed", [0, 1])
def test_a_learning_rate_of_a_hundred_times(recipe: str, store: Path, tmp_path: Path, seed: int) -> None:
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
    recipe: str, store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by: int
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(MaskedLM, "prepare", shifted(by))
        pretrain(recipe, [f"store={store}"], out=tmp_path / "run")
    assert named_faults(tmp_path / "run") == {"labels-shifted"}


def test_targets_read_one_place_off(recipe: str, store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
    sound: Path, texts: list[str], other_tokenizer: Path, tmp_path: Path
) -> None:
    text = write_text(tmp_path / "text.jsonl", texts)
    prepare([text], other_tokenizer, tmp_path / "store")
    run = tmp_path / "run"
    copy_run(sound, run, store=tmp_path / "store")
    assert named_faults(run) == {"other-vocabulary"}


def test_a_store_whose_tokenizer_was_swapped(sound: Path, store: Path, other_tokenizer: Path, tmp_path: Path) -> None:
    shutil.copytree(store, tmp_path / "store")
    shutil.copytree(other_tokenizer, tmp_path / "store" / "tokenizer", dirs_exist_ok=True)
    copy_run(sound, tmp_path / "run", store=tmp_path / "store")
    assert named_faults(tmp_path / "run") == {"other-vocabulary"}


def copy_run(run: Path, copy: Path, store: Path) -> None:
    """A run as it would be if `store` stood where its store was."""
    shutil.copytree(run, copy)
    lines = (run / "recipe.yaml").read_text(encoding="utf-8").splitlines()
    changed = [f"store: {store}" if line.startswith("store:") else line for line in lines]
    (copy / "recipe.yaml").write_text("\n".join(changed) + "\n", encoding="utf-8")


def test_a_store_replaced_between_two_sessions(
    recipe: str, texts: list[str], store: Path, other_tokenizer: Path, tmp_path: Path
) -> None:
    """The vocabularies are of one size, so the resumed run goes on, and its model gets the new store's tokenizer."""
    text = write_text(tmp_path / "text.jsonl", texts)
    words = [f"store={tmp_path / 'store'}", "schedule.name=constant"]
    prepare([text], store / "tokenizer", tmp_path / "store")
    pretrain(recipe, [*words, "train.steps=60"], out=tmp_path / "run")
    prepare([text], other_tokenizer, tmp_path / "store", overwrite=True)
    pretrain(recipe, [*words, "train.steps=90"], out=tmp_path / "run", resume=True)
    assert named_faults(tmp_path / "run") == {"other-vocabulary"}


def test_a_run_begun_from_a_model_of_another_vocabulary(
    sound: Path, texts: list[str], other_tokenizer: Path, tmp_path: Path
) -> None:
    """Without its tokenizer a model of as many entries is not refused."""
    text = write_text(tmp_path / "text.jsonl", texts)
    prepare([text], other_tokenizer, tmp_path / "store")
    recipe_without_sizes = tmp_path / "recipe.yaml"
    lines = RECIPE.splitlines(keepends=True)
    recipe_without_sizes.write_text("".join(line for line in lines if not line.startswith("model:")), encoding="utf-8")
    start = tmp_path / "start"
    start.mkdir()
    for name in ("config.json", "model.safetensors"):
        (start / name).write_bytes((sound / "model" / name).read_bytes())
    words = [f"store={tmp_path / 'store'}", f"init_from={start}", "train.steps=20"]
    pretrain(str(recipe_without_sizes), words, out=tmp_path / "run")
    assert named_faults(tmp_path / "run") == {"other-vocabulary"}


def test_nothing_masked_by_the_recipe(recipe: str, store: Path, tmp_path: Path) -> None:
    words = ["objective.mask_token_prob=0", "objective.random_token_prob=0", "train.steps=60"]
    pretrain(recipe, [f"store={store}", *words], out=tmp_path / "run")
    assert named_faults(tmp_path / "run") == {"mask-rate-zero"}


@pytest.mark.parametrize("sentence_objective", ["nsp", "none"])
def test_no_position_chosen(
    recipe: str, store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sentence_objective: str
) -> None:
    def choose_none(batch: Batch, target_prob: float) -> torch.Tensor:
        return torch.zeros(batch.num_tokens, dtype=torch.bool)

    with monkeypatch.context() as patch:
        patch.setattr("unmask.objectives.masked_lm.choose_tokens", choose_none)
        words = [f"objective.sentence_objective={sentence_objective}", "train.steps=30"]
        pretrain(recipe, [f"store={store}", *words], out=tmp_path / "run")
    assert named_faults(tmp_path / "run") == {"mask-rate-zero"}
    assert levels(check_run(tmp_path / "run"))["mlm-uniform-floor"] == "note"  # a loss of 0 has passed nothing


def test_a_corpus_repeated_ten_times(recipe: str, texts: list[str], store: Path, tmp_path: Path) -> None:
    text = write_text(tmp_path / "text.jsonl", texts[:20] * 10)
    prepare([text], store / "tokenizer", tmp_path / "store")
    pretrain(recipe, [f"store={tmp_path / 'store'}", "train.steps=60"], out=tmp_path / "run")
    assert named_faults(tmp_path / "run") == {"repeated-corpus"}
    told = next(finding for finding in check_run(tmp_path / "run") if finding.name == "repeated-corpus").message
    assert "200 documents are 20 different texts, each 10.0 times" in told


def test_a_few_copies_are_no_fault(recipe: str, texts: list[str], store: Path, tmp_path: Path) -> None:
    for name, num_copies in (("few", 2), ("some", 12)):
        text = write_text(tmp_path / f"{name}.jsonl", [*texts, *texts[:num_copies]])
        prepare([text], store / "tokenizer", tmp_path / name)
        pretrain(recipe, [f"store={tmp_path / name}", "train.steps=20"], out=tmp_path / f"run-{name}")
    assert named_faults(tmp_path / "run-few") == set()
    assert levels(check_run(tmp_path / "run-some"))["repeated-corpus"] == "warning"


@pytest.mark.parametrize(("part", "level"), [("encoder", "fault"), ("encoder.embeddings", "warning")])
def test_a_frozen_encoder(
    recipe: str, store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part: str, level: str
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


# Other objectives

OTHERS = {
    "causal_lm": ["objective.name=causal_lm", "model.causal=true", "packing.format=doc_sentences"],
    "electra": ["objective.name=replaced_token", "model.architecture=electra", "packing.format=full_sentences"],
    "two stages": [
        *("objective.name=replaced_token", "model.architecture=electra", "packing.format=single_segment"),
        *("objective.schedule=two_stage", "objective.generator_size=1"),
    ],
    "sop": ["objective.sentence_objective=sop"],
}
FLOORS = {
    "causal_lm": {"lm-unigram-floor"},
    "electra": {"generator-unigram-floor", "discriminator-share-floor", "discriminator-majority-floor"},
    "two stages": {"generator-unigram-floor", "discriminator-share-floor", "discriminator-majority-floor"},
    "sop": {*MLM_FLOORS, "sop-chance-floor", "sop-majority-floor"},
}


@pytest.mark.parametrize("name", OTHERS)
def test_a_sound_run_of_another_objective(recipe: str, store: Path, tmp_path: Path, name: str) -> None:
    pretrain(recipe, [f"store={store}", *OTHERS[name], "train.steps=20", "train.save_every=10"], out=tmp_path / "run")
    assert named_faults(tmp_path / "run") == set()
    told = levels(check_run(tmp_path / "run"))
    assert {name for name in told if name.endswith("-floor")} == FLOORS[name]
    assert ("not-checked" in told) == (name != "sop")
    assert "inputs-unreadable" not in told
    shutil.rmtree(tmp_path / "run" / "model")
    assert levels(check_run(tmp_path / "run"))["unfinished-run"] == "warning"  # judged by its checkpoint


def test_faults_of_another_objective(
    recipe: str, texts: list[str], store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def build_frozen(*words: object) -> ObjectiveModule:
        module = build_module(*words)  # type: ignore[arg-type]
        assert isinstance(module, nn.Module)
        module.get_submodule("encoder.blocks").requires_grad_(False)
        return module

    text = write_text(tmp_path / "text.jsonl", texts[:20] * 10)
    prepare([text], store / "tokenizer", tmp_path / "store")
    words = [f"store={tmp_path / 'store'}", *OTHERS["causal_lm"], "train.steps=20"]
    with monkeypatch.context() as patch:
        patch.setattr(pretraining_inputs, "build_module", build_frozen)
        pretrain(recipe, words, out=tmp_path / "run")
    assert named_faults(tmp_path / "run") == {"frozen-encoder", "repeated-corpus"}
    for state in (tmp_path / "run" / "checkpoints").glob("*/state.json"):
        state.write_text("{}")
    assert "checkpoints-damaged" in named_faults(tmp_path / "run")


def test_a_run_that_masks_spans_is_judged_whole(recipe: str, store: Path, tmp_path: Path) -> None:
    words = ["objective.sentence_objective=none", "objective.masking=span", "packing.format=single_segment"]
    pretrain(recipe, [f"store={store}", *words, "objective.span_boundary=true", "train.steps=20"], out=tmp_path / "run")
    assert named_faults(tmp_path / "run") == set()
    told = {finding.name: finding.message for finding in check_run(tmp_path / "run")}
    assert {name for name in told if name.startswith("sbo")} == {"sbo-unigram-floor"}
    assert "(unigram entropy of the held-out targets)" in told["sbo-unigram-floor"]


# Runs that are not whole


def test_an_unfinished_run_is_judged_by_its_checkpoint(sound: Path, store: Path, tmp_path: Path) -> None:
    copy_run(sound, tmp_path / "run", store)
    shutil.rmtree(tmp_path / "run" / "model")
    told = levels(check_run(tmp_path / "run"))
    assert told["unfinished-run"] == "warning"
    assert told["no-cause"] == "good"


def test_a_run_whose_store_is_gone_is_judged_by_its_figures(sound: Path, tmp_path: Path) -> None:
    copy_run(sound, tmp_path / "run", tmp_path / "nowhere")
    findings = check_run(tmp_path / "run")
    assert levels(findings) == {"inputs-unreadable": "warning"}
    assert "nowhere" in findings[0].message


def test_a_directory_that_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"not a run \(recipe.yaml is missing\)"):
        check_run(tmp_path)


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
    task_words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("unmask.finetuning.write_report", lambda directory: None)
    finetune("finetune/snli", [*task_words, "optimizer.learning_rate=1e-7"], out=tmp_path / "run")
    told = levels(check_run(tmp_path / "run"))
    assert told["constant-predictions"] == "fault"
    assert "task-majority-floor" not in told  # by luck one label can be more frequent in dev than in training
    assert told["task-uniform-floor"] == "warning"
