"""What pre-training refuses, when, and what it leaves: one clear message, nothing half-written, nothing destroyed."""

from __future__ import annotations

import errno
import json
import math
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import pytest
import torch
from safetensors.torch import load_file

from unmask import cli
from unmask.data.store import TokenStore
from unmask.errors import InputError, ModelError, OutputError, SettingsError, StoreError, UserError
from unmask.preparation import prepare
from unmask.pretraining import pretrain
from unmask.pretraining_inputs import check_tokenizer, tell_beforehand
from unmask.recipe import load_pretrain_recipe
from unmask.tokenization.tokenizer import load_tokenizer
from unmask.training import checkpoint, session
from unmask.training.run_log import read_metrics

pytestmark = pytest.mark.usefixtures("one_thread", "without_report")


@pytest.fixture
def words(tiny_recipe: Path, tiny_store: Path) -> tuple[str, list[str]]:
    return str(tiny_recipe), [f"store={tiny_store}"]


def files_in(directory: Path) -> dict[str, bytes]:
    return {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


def write_text(path: Path, documents: list[str]) -> Path:
    path.write_text("".join(json.dumps({"text": document}) + "\n" for document in documents), encoding="utf-8")
    return path


def damaged_copy(store: Path, copy: Path, part: str) -> Path:
    """A store with one flipped byte."""
    for name, content in files_in(store).items():
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        changed = bytearray(content)
        if name.startswith(part):
            changed[len(changed) // 2] ^= 4
        (copy / name).write_bytes(changed)
    return copy


SENTENCE = "The old man went to the store and bought a gallon of milk. Then he went home. "

ALONE = ["objective.sentence_objective=none", "packing.format=single_segment"]
CAUSAL = ["objective.name=causal_lm", "model.architecture=gpt1"]

REFUSALS: dict[str, tuple[Callable[[Path, Path], list[str]], type[UserError], str]] = {
    "no such store": (lambda place, store: [f"store={place / 'none'}"], StoreError, "no such store"),
    "a folder that is no store": (lambda place, store: [f"store={place}"], StoreError, "not a token store"),
    "no such text": (lambda place, store: [f"corpus={place / 'none.txt'}"], InputError, "no such file"),
    "an empty text": (
        lambda place, store: [f"corpus={write_text(place / 'a.jsonl', [])}"],
        InputError,
        r"a\.jsonl: no document with text in it: give a text to learn from",
    ),
    "an empty text, for an objective without pairs": (
        lambda place, store: [f"corpus={write_text(place / 'a.jsonl', [])}", *ALONE],
        InputError,
        r"a\.jsonl: no document with text in it: give a text to learn from",
    ),
    "one document": (
        lambda place, store: [f"corpus={write_text(place / 'a.jsonl', [SENTENCE * 40])}", "held_out=0"],
        InputError,
        r"1 training document\(s\), but packing\.format=segment_pair \(objective\.sentence_objective=nsp\) needs two.*"
        r"a blank line ends one.*or take objective\.sentence_objective=none with packing\.format=single_segment",
    ),
    "text that is not UTF-8, far in": (
        lambda place, store: [f"corpus={broken_text(place / 'a.txt')}", "held_out=0"],
        InputError,
        r"a\.txt.*(UTF-8|byte)",
    ),
    "no such tokenizer": (
        lambda place, store: [f"corpus={write_text(place / 'a.jsonl', [SENTENCE] * 9)}", f"tokenizer={place / 'none'}"],
        ModelError,
        "does not exist",
    ),
    "a flipped byte in the tokens": (
        lambda place, store: [f"store={damaged_copy(store, place / 'damaged', 'tokens-')}", "held_out=0"],
        StoreError,
        r"tokens-00000\.bin: its checksum is not the manifest's",
    ),
    "a flipped byte in the sentences": (
        lambda place, store: [f"store={damaged_copy(store, place / 'damaged', 'sentences-')}", "held_out=0"],
        StoreError,
        r"sentences-00000\.bin: its checksum is not the manifest's",
    ),
    "a flipped byte in the documents": (
        lambda place, store: [f"store={damaged_copy(store, place / 'damaged', 'documents-')}"],
        StoreError,
        r"documents-00000\.bin: its checksum is not the manifest's",
    ),
    "nothing but held-out documents": (
        lambda place, store: [f"store={store}", "held_out=0.999"],
        InputError,
        r"training document\(s\), but packing.format=segment_pair .* needs two.*; or change held_out, which takes",
    ),
    "sequences over the model's positions": (
        lambda place, store: [f"store={store}", "packing.max_length=33"],
        SettingsError,
        "packing.max_length 33 is over model.max_position_embeddings 32",
    ),
    "sequences over the preset's positions": (
        lambda place, store: [f"store={store}", "packing.max_length=513", "model.max_position_embeddings=null"],
        SettingsError,
        "packing.max_length 513 is over the model's 512 positions",
    ),
    "heads that do not divide": (
        lambda place, store: [f"store={store}", "model.num_attention_heads=5"],
        SettingsError,
        "hidden_size 32 is not divisible by num_attention_heads 5",
    ),
    "another vocabulary size than the tokenizer's": (
        lambda place, store: [f"store={store}", "model.vocab_size=30522"],
        SettingsError,
        "model.vocab_size is 30522 but the tokenizer has 200",
    ),
    "static masks and copies": (
        lambda place, store: [f"store={store}", "objective.masking_mode=static", "packing.copies=5"],
        SettingsError,
        "masking_mode=static shows ten fixed copies: leave out packing.copies",
    ),
    "two inputs": (
        lambda place, store: [f"store={store}", f"tokenizer={store / 'tokenizer'}"],
        SettingsError,
        "brings its own tokenizer",
    ),
    "two budgets": (
        lambda place, store: [f"store={store}", "train.steps=3", "train.epochs=1"],
        SettingsError,
        "exactly one of steps, tokens, epochs, minutes",
    ),
    "sequences over what RoBERTa's positions leave": (
        lambda place, store: [f"store={store}", *ALONE, "model.architecture=roberta"],
        SettingsError,
        "packing.max_length 32 is over the model's 31 positions",
    ),
    "sequences over the positions in a phase": (
        lambda place, store: [f"store={store}", "phases=[{until: .5}, {until: 1, max_length: 64}]"],
        SettingsError,
        r"phases\.1\.max_length 64 is over model\.max_position_embeddings 32",
    ),
    "masks without a mask token": (
        lambda place, store: [*bare_text(place), *ALONE],
        SettingsError,
        r"the tokenizer of .*: objective\.name=masked_lm needs a tokenizer with a mask token, and this one has none.*"
        r"`unmask tokenizer train TEXT --kind wordpiece --out DIR` and then `unmask prepare TEXT --tokenizer DIR",
    ),
    "replaced tokens without a mask token": (
        lambda place, store: [*bare_text(place), "objective.name=replaced_token", "model.architecture=electra"],
        SettingsError,
        r"objective\.name=replaced_token needs a tokenizer with a mask token, and this one has none",
    ),
    "full sentences without a separator": (
        lambda place, store: [*bare_text(place), *CAUSAL, "packing.format=full_sentences"],
        SettingsError,
        r"packing\.format=full_sentences sets a separator token between documents, and the tokenizer has none",
    ),
    "entities in a text without annotations": (
        lambda place, store: [f"store={store}", "objective.masking=entity"],
        SettingsError,
        r"objective\.masking=entity needs text in which such runs are marked",
    ),
    "entities in a text without annotations, nothing held out": (
        lambda place, store: [f"store={store}", "objective.masking=entity", "held_out=0"],
        SettingsError,
        r"objective\.masking=entity needs text in which such runs are marked",
    ),
    "noun phrases in a corpus without annotations": (
        lambda place, store: [
            f"corpus={write_text(place / 'a.jsonl', [SENTENCE] * 9)}",
            "objective.masking=noun_phrase",
        ],
        SettingsError,
        r'objective\.masking=noun_phrase needs text .* and .*a\.jsonl has none: give each .*"noun_phrase"',
    ),
    "entities in a mixture without annotations": (
        lambda place, store: [f"corpus={mixture(place)}", "objective.masking=entity", "held_out=0"],
        SettingsError,
        r"objective\.masking=entity needs text .* and .*mixture\.yaml has none",
    ),
    "an unknown key": (
        lambda place, store: [f"store={store}", "optimizer.lr=1"],
        SettingsError,
        "unknown key optimizer.lr",
    ),
    "no such model to start from": (
        lambda place, store: [f"store={store}", f"init_from={place / 'none'}"],
        ModelError,
        "no such directory",
    ),
    "a GPU where there is none": (
        lambda place, store: [f"store={store}", "device=cuda"],
        SettingsError,
        "device=cuda, but PyTorch sees no CUDA device",
    ),
}
"""What is wrong, how it is told."""


def bare_text(place: Path) -> list[str]:
    """A text, and a tokenizer to train on it that has no special tokens but one for what it does not know."""
    text = write_text(place / "a.jsonl", [f"{number} men. {SENTENCE}" for number in range(9)])
    return [f"corpus={text}", "held_out=0", "tokenizer={kind: bpe, vocab_size: 80}"]


def mixture(place: Path) -> Path:
    """A mixture of one corpus."""
    text = write_text(place / "a.jsonl", [f"{number} men. {SENTENCE}" for number in range(9)])
    path = place / "mixture.yaml"
    path.write_text(f"corpora: {{books: {{text: [{text}]}}}}\n")
    return path


def broken_text(path: Path) -> Path:
    path.write_bytes("\n\n".join([SENTENCE] * 50).encode() + b"\n\n\xff\xfe broken")
    return path


@pytest.mark.parametrize("reason", REFUSALS)
def test_a_refused_run_leaves_nothing_and_takes_nothing_away(
    reason: str,
    tiny_recipe: Path,
    tiny_store: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    make, kind, told = REFUSALS[reason]
    runs = tmp_path / "runs"
    overrides = make(tmp_path, tiny_store)
    for resume in (False, True):
        with pytest.raises(kind, match=told):
            pretrain(str(tiny_recipe), overrides, out=runs / "new", resume=resume)
        assert not (runs / "new").exists()
    (runs / "old" / "model").mkdir(parents=True)
    (runs / "old" / "recipe.yaml").write_text("train: {steps: 1}\n")
    (runs / "old" / "model" / "model.safetensors").write_text("weeks of work")
    before = files_in(runs)
    with pytest.raises(kind, match=told):
        pretrain(str(tiny_recipe), overrides, out=runs / "old", overwrite=True)
    assert files_in(runs) == before


def test_a_segmenter_and_masking_by_annotations_do_not_go_together(tiny_recipe: Path, tiny_store: Path) -> None:
    tokenizer = load_tokenizer(tiny_store / "tokenizer")
    tokenizer.segmenter = "kiwi"
    store = f"store={tiny_store}"
    check_tokenizer(load_pretrain_recipe(str(tiny_recipe), [store, "objective.masking=span"]), tokenizer, "t")
    with pytest.raises(
        SettingsError, match=r"objective\.masking=entity and the segmenter kiwi of the tokenizer of t do"
    ):
        check_tokenizer(load_pretrain_recipe(str(tiny_recipe), [store, "objective.masking=entity"]), tokenizer, "t")


def test_a_run_that_would_overwrite_its_own_store_is_refused(
    tiny_recipe: Path, tiny_text: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    pretrain(str(tiny_recipe), [f"corpus={tiny_text}", "train.steps=1"], out=run)
    before = files_in(run)
    with pytest.raises(StoreError, match="no such store"):
        pretrain(str(tiny_recipe), [f"store={run / 'store'}"], out=run, overwrite=True)
    assert files_in(run) == before


def test_an_existing_run_needs_a_word(words: tuple[str, list[str]], tmp_path: Path) -> None:
    recipe, overrides = words
    short = recipe, [*overrides, "train.steps=1"]
    pretrain(*short, out=tmp_path / "run")
    before = files_in(tmp_path)
    with pytest.raises(OutputError, match="choose another --out, or pass --resume or --overwrite"):
        pretrain(*short, out=tmp_path / "run")
    with pytest.raises(SettingsError, match=r"begun with other settings: optimizer\.learning_rate"):
        pretrain(
            recipe, [*overrides, "train.steps=1", "optimizer.learning_rate=1e-5"], out=tmp_path / "run", resume=True
        )
    with pytest.raises(SettingsError, match="give one of them"):
        pretrain(*short, out=tmp_path / "run", resume=True, overwrite=True)
    assert files_in(tmp_path) == before
    pretrain(recipe, [*overrides, "train.steps=1", "seed=8"], out=tmp_path / "run", overwrite=True)
    assert "seed: 8" in (tmp_path / "run" / "recipe.yaml").read_text()


def test_a_folder_that_is_not_a_run_is_not_overwritten(words: tuple[str, list[str]], tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("three years of work")
    for how in ({"overwrite": True}, {"resume": True}, {}):
        with pytest.raises(OutputError):
            pretrain(*words, out=tmp_path, **how)
    assert files_in(tmp_path) == {"thesis.txt": b"three years of work"}


# What is allowed but hardly meant is told, and the run goes on


def told_at_the_start(
    words: tuple[str, list[str]], run: Path, caplog: pytest.LogCaptureFixture, *changes: str
) -> dict[str, str]:
    """Each line of the log of a run of one step, with its level."""
    with caplog.at_level("INFO", "unmask"):
        pretrain(words[0], [*words[1], "train.steps=1", "schedule.warmup_steps=0", *changes], out=run)
    return {record.getMessage(): record.levelname for record in caplog.records}


def level_of(told: dict[str, str], beginning: str) -> str | None:
    return next((level for line, level in told.items() if line.startswith(beginning)), None)


@pytest.mark.parametrize(
    ("changes", "level"),
    [
        ([], None),
        (["objective.sentence_objective=none"], "INFO"),
        (["objective.sentence_objective=none", "model.architecture=roberta", "packing.max_length=31"], "INFO"),
        (ALONE, None),
        (["objective={name: causal_lm}", "model.causal=true"], "INFO"),
    ],
    ids=str,
)
def test_pairs_without_a_question_are_told(
    words: tuple[str, list[str]],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    changes: list[str],
    level: str | None,
) -> None:
    told = told_at_the_start(words, tmp_path / "run", caplog, *changes)
    assert level_of(told, "packing.format=segment_pair makes segment pairs, half of them") == level


@pytest.mark.parametrize(
    ("changes", "is_told"),
    [([], False), (["optimizer.name=lamb"], True), (["optimizer.name=lamb", "train.batch_size=512"], False)],
    ids=str,
)
def test_lamb_with_small_batches_is_told(
    tiny_recipe: Path, tiny_store: Path, changes: list[str], is_told: bool, caplog: pytest.LogCaptureFixture
) -> None:
    settings = load_pretrain_recipe(str(tiny_recipe), [f"store={tiny_store}", *changes])
    tell_beforehand(settings, TokenStore(tiny_store))
    told = [line for line in caplog.messages if line.startswith("optimizer.name=lamb is for batches of thousands")]
    assert len(told) == is_told
    assert all(f"the largest here is of {settings.train.batch_size};" in line for line in told)


def test_a_store_that_its_tokenizer_can_hardly_spell_is_told(
    words: tuple[str, list[str]], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    text = write_text(tmp_path / "a.jsonl", [f"{SENTENCE} Она пошла домой. {SENTENCE}" * 3] * 40)
    prepare([text], Path(words[1][0].removeprefix("store=")) / "tokenizer", tmp_path / "store")
    told = told_at_the_start((words[0], [f"store={tmp_path / 'store'}"]), tmp_path / "run", caplog)
    [line] = [line for line in told if "are unknown to its tokenizer" in line]
    assert told[line] == "WARNING"
    share = float(line.partition("%")[0])
    manifest = json.loads((tmp_path / "store" / "manifest.json").read_text())
    assert share == pytest.approx(100 * manifest["unknown_tokens"] / manifest["tokens"], abs=0.05)  # one decimal
    assert "`unmask prepare TEXT --tokenizer DIR --out STORE`" in line
    assert "[UNK] is all that is learnt of them" in line
    caplog.clear()
    told = told_at_the_start(words, tmp_path / "fine", caplog)
    assert not [line for line in told if "are unknown to its tokenizer" in line]


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        (["objective.schedule=joint"], None),
        (
            ["objective.schedule=two_stage", "objective.generator_size=1"],
            "schedule.warmup_steps=3 of the 2 steps of each of its 2 stages: each of its 2 stages ends before",
        ),
        (["schedule.name=wsd", "schedule.decay_ratio=0.5"], "schedule.warmup_steps=3 of the 4 steps of the run, whose"),
    ],
    ids=str,
)
def test_a_warm_up_that_does_not_fit_is_told(
    words: tuple[str, list[str]],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    changes: list[str],
    told: str | None,
) -> None:
    rtd = ["objective.name=replaced_token", "model.architecture=electra", "packing.format=single_segment"]
    changes = [*rtd, *changes, "train.steps=4", "schedule.warmup_steps=3"]
    with caplog.at_level("WARNING", "unmask"):
        pretrain(words[0], [*words[1], *changes], out=tmp_path / "run")
    warnings = [record.getMessage() for record in caplog.records]
    assert [line for line in warnings if "warmup_steps" in line] == [line for line in warnings if told and told in line]
    assert (told is not None) == any("warmup_steps" in line for line in warnings)


# What goes wrong later, as a command tells it


def run_command(
    words: tuple[str, list[str]],
    run: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    *more: str,
) -> tuple[int, str]:
    """The exit code and the last lines on standard error."""
    recipe, overrides = words
    monkeypatch.setattr(
        sys, "argv", ["unmask", "pretrain", recipe, *overrides, "--out", str(run), "--workers=1", *more]
    )
    monkeypatch.setattr(cli.signal, "signal", lambda number, handler: None)  # pytest keeps its own
    capsys.readouterr()
    with pytest.raises(SystemExit) as exit_:
        cli.main()
    return int(exit_.value.code or 0), capsys.readouterr().err


def test_a_full_disk_keeps_the_earlier_checkpoint_and_the_run_can_go_on(
    words: tuple[str, list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run, save_file = tmp_path / "run", checkpoint.save_file

    def fill_up(tensors: Any, path: Path) -> None:
        if "step-00000008" in str(path) and path.name == checkpoint.OPTIMIZER:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        save_file(tensors, path)

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "save_file", fill_up)
        code, told = run_command(words, run, monkeypatch, capsys)
    assert code == 2
    assert "error: the disk is full while writing" in told.splitlines()[-1]
    assert "the disk is full" in (run / "log.txt").read_text()
    assert [path.name for path in (run / "checkpoints").iterdir()] == ["step-00000004"]
    pretrain(*words, out=run, resume=True)
    pretrain(*words, out=tmp_path / "whole")
    assert (run / "model" / "model.safetensors").read_bytes() == (
        tmp_path / "whole" / "model" / "model.safetensors"
    ).read_bytes()


def test_a_loss_that_is_not_finite_is_told_and_never_saved(
    words: tuple[str, list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe, overrides = words
    run, train = tmp_path / "run", session.train

    def train_and_spoil(module: torch.nn.Module, *arguments: Any, **named: Any) -> None:
        *others, on_step = arguments

        def hook(state: Any, result: Any) -> None:
            on_step(state, result)
            if state.step == 5:
                with torch.no_grad():
                    module.get_parameter("masked_lm_head.bias").fill_(math.nan)

        train(module, *others, hook, **named)

    monkeypatch.setattr(session, "train", train_and_spoil)
    # rows are further apart than checkpoints: those of steps 6 and 8 would push out the sound ones
    changes = ["train.log_every=50", "train.save_every=2", "train.keep_last=1"]
    code, told = run_command((recipe, [*overrides, *changes]), run, monkeypatch, capsys)
    assert code == 2
    assert "not finite at step 6: the run has diverged" in told.splitlines()[-1]
    assert "optimizer.learning_rate" in told.splitlines()[-1]
    assert "the run has diverged" in (run / "log.txt").read_text()
    [kept] = (run / "checkpoints").iterdir()
    assert kept.name == "step-00000004"
    assert all(weight.isfinite().all() for weight in load_file(kept / checkpoint.WEIGHTS).values())


def test_a_learning_rate_that_is_far_too_high_is_told_with_the_row(
    words: tuple[str, list[str]], tmp_path: Path
) -> None:
    recipe, overrides = words
    changes = [
        "optimizer.learning_rate=1e30",
        "schedule.warmup_steps=0",
        "train.log_every=1",
        "train.max_grad_norm=null",
    ]
    with pytest.raises(UserError, match=r"not finite at step \d+: the run has diverged"):
        pretrain(recipe, [*overrides, *changes], out=tmp_path / "run")
    rows = read_metrics(tmp_path / "run" / "metrics.jsonl")
    assert rows[0]["loss"] is not None
    assert rows[-1]["loss"] is None or rows[-1]["gradient_norm"] is None


def test_our_own_fault_leaves_its_traceback_in_the_log_of_the_run(
    words: tuple[str, list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*arguments: Any, **named: Any) -> NoReturn:
        raise ZeroDivisionError("a mistake of ours")

    monkeypatch.setattr(session, "train", fail)
    code, told = run_command(words, tmp_path / "run", monkeypatch, capsys)
    assert code == 1
    assert "Traceback" not in told
    log = (tmp_path / "run" / "log.txt").read_text()
    assert "Traceback (most recent call last)" in log
    assert "ZeroDivisionError: a mistake of ours" in log
