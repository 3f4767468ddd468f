"""What pre-training refuses before it begins: one clear message, nothing half-written, nothing destroyed."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from unmask.errors import InputError, ModelError, OutputError, SettingsError, StoreError, UserError
from unmask.pretraining.inputs import check_tokenizer
from unmask.pretraining.run import pretrain
from unmask.recipe.loading import load_pretrain_recipe
from unmask.tokenization.tokenizer import load_tokenizer

pytestmark = pytest.mark.usefixtures("one_thread", "without_report")


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
