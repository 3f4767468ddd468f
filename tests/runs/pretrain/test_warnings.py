"""What pre-training allows but is hardly meant: it is told at the start, and the run goes on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from support.commands import write_documents
from support.elmo import write_elmo_recipe
from unmask.pretraining.inputs import log_remarks
from unmask.pretraining.run import pretrain
from unmask.pretraining.start import open_start
from unmask.recipe.loading import load_pretrain_recipe
from unmask.store.encoding import held_out_hash
from unmask.store.preparation import prepare
from unmask.store.store import TokenStore
from unmask.tokenization.opening import open_tokenizer

pytestmark = pytest.mark.usefixtures("one_thread", "without_report")

SENTENCE = "The old man went to the store and bought a gallon of milk. Then he went home. "
ALONE = ["objective.sentence_objective=none", "packing.format=single_segment"]


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
    store = TokenStore(tiny_store)
    log_remarks(open_start(settings), store, open_tokenizer(store.tokenizer_directory))
    told = [line for line in caplog.messages if line.startswith("optimizer.name=lamb is for batches of thousands")]
    assert len(told) == is_told
    assert all(f"the largest here is of {settings.train.batch_size};" in line for line in told)


def test_a_store_that_its_tokenizer_can_hardly_spell_is_told(
    words: tuple[str, list[str]], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    text = write_documents(tmp_path / "a.jsonl", [f"{SENTENCE} Она пошла домой. {SENTENCE}" * 3] * 40)
    prepare([text], Path(words[1][0].removeprefix("store=")) / "tokenizer", tmp_path / "store")
    told = told_at_the_start((words[0], [f"store={tmp_path / 'store'}"]), tmp_path / "run", caplog)
    [line] = [line for line in told if "are unknown to its tokenizer" in line]
    assert told[line] == "WARNING"
    share = float(line.partition("%")[0])
    manifest = json.loads((tmp_path / "store" / "manifest.json").read_text())
    assert share == pytest.approx(100 * manifest["unknown_tokens"] / manifest["tokens"], abs=0.05)  # one decimal
    assert "[UNK] is all that is learnt of them" in line
    caplog.clear()
    told = told_at_the_start(words, tmp_path / "fine", caplog)
    assert not [line for line in told if "are unknown to its tokenizer" in line]


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        (["objective.schedule=joint"], None),
        (["schedule.name=wsd", "schedule.decay_ratio=0.5"], "schedule.warmup_steps=3 of the 4 steps of the run, whose"),
    ],
    ids=str,
)
def test_a_warm_up_that_does_not_fit_is_told(
    words: tuple[str, list[str]], tmp_path: Path, caplog: pytest.LogCaptureFixture, changes: list[str], told: str | None
) -> None:
    rtd = ["objective.name=replaced_token", "model.architecture=electra", "packing.format=single_segment"]
    changes = [*rtd, *changes, "train.steps=4", "schedule.warmup_steps=3"]
    with caplog.at_level("WARNING", "unmask"):
        pretrain(words[0], [*words[1], *changes], out=tmp_path / "run")
    warnings = [record.getMessage() for record in caplog.records]
    assert [line for line in warnings if "warmup_steps" in line] == [line for line in warnings if told and told in line]
    assert (told is not None) == any("warmup_steps" in line for line in warnings)


@pytest.mark.parametrize(("num_words", "is_told"), [(5, True), (30, False)])
def test_held_out_text_that_is_shorter_than_a_window_is_told(
    num_words: int, is_told: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Not too few documents: one is held out, and one is needed."""
    drawn = (f"{'so ' * (num_words - 1)}{number}" for number in range(10_000))
    held_out = next(document for document in drawn if held_out_hash(document) < 0.01 * 2**32)
    documents = [SENTENCE * 3 + str(number) for number in range(40)]
    documents = [document for document in documents if held_out_hash(document) >= 0.01 * 2**32]
    text = write_documents(tmp_path / "a.jsonl", [*documents, held_out])
    changes: dict[str, Any] = {"tokenizer": {"vocab_size": 30}, "objective": {"num_negatives": 10}}
    train, packing = {"batch_size": 2, "micro_batch_size": None}, {"max_length": 20}
    recipe = write_elmo_recipe(tmp_path / "elmo.yaml", held_out=0.01, packing=packing, train=train, **changes)
    told = told_at_the_start((recipe, [f"corpus={text}"]), tmp_path / "run", caplog)
    number = len(documents) + 1
    beginning = f"held_out=0.01 of {number} documents is 1, too little text for a sequence of packing.format"
    assert level_of(told, beginning) == ("WARNING" if is_told else None)
    assert any("; 0 held-out sequences" in line for line in told) == is_told
