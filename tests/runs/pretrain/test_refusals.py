"""What pre-training refuses before it begins: one clear message, nothing half-written, nothing destroyed."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from support.commands import write_documents
from support.corpora import contents
from support.files import write
from unmask.errors import InputError, ModelError, SettingsError, StoreError, UserError
from unmask.pretraining.own_store import check_tokenizer
from unmask.pretraining.run import pretrain
from unmask.recipe.loading import load_pretrain_recipe
from unmask.tokenization.tokenizer import load_tokenizer

pytestmark = pytest.mark.usefixtures("one_thread", "without_report")


def damaged_copy(store: Path, copy: Path, part: str) -> Path:
    """A store with one flipped byte."""
    for name, content in contents(store).items():
        changed = bytearray(content)
        if name.startswith(part):
            changed[len(changed) // 2] ^= 4
        write(copy / name, bytes(changed))
    return copy


SENTENCE = "The old man went to the store and bought a gallon of milk. Then he went home. "
ALONE = "objective.sentence_objective=none packing.format=single_segment"
# A text, and a tokenizer to train on it that has no special tokens but one for what it does not know.
BARE = "corpus={text} held_out=0 tokenizer.kind=bpe tokenizer.vocab_size=80"

REFUSALS: dict[str, tuple[str, type[UserError], str]] = {
    # settings, with the names of `inputs`; the error, and how it is told
    "no such store": ("store={place}/none", StoreError, "no such store"),
    "a folder that is no store": ("store={place}", StoreError, "not a token store"),
    "no such text": ("corpus={place}/none.txt", InputError, "no such file"),
    "an empty text": ("corpus={empty}", InputError,
     r"empty\.jsonl: no document with text in it: give a text to learn from"),
    "one document": ("corpus={one} held_out=0", InputError,
     r"1 training document\(s\), but packing\.format=segment_pair \(objective\.sentence_objective=nsp\) needs two.*"
     r"a blank line ends one.*or take objective\.sentence_objective=none with packing\.format=single_segment"),
    "text that is not UTF-8, far in": ("corpus={broken} held_out=0", InputError, r"broken\.txt.*(UTF-8|byte)"),
    "no such tokenizer": ("corpus={text} tokenizer={place}/none", ModelError, "does not exist"),
    "a tokenizer that sets no special tokens around text": ("corpus={text} tokenizer={unframed}", SettingsError,
     r"unframed: the post_processor of its tokenizer\.json does not set \[CLS\] around a text, and models of "
     r"the family bert learn from it: .*`unmask tokenizer train`"),
    "a flipped byte in the tokens": ("store={damaged} held_out=0", StoreError,
     r"tokens-00000\.bin: its checksum is not the manifest's"),
    "nothing but held-out documents": ("store={store} held_out=0.999", InputError,
     r"training document\(s\), but packing.format=segment_pair .* needs two.*; or change held_out, which takes"),
    "sequences over the model's positions": ("store={store} packing.max_length=33", SettingsError,
     "packing.max_length 33 is over the 32 positions of the model"),
    "heads that do not divide": ("store={store} model.num_attention_heads=5", SettingsError,
     "hidden_size 32 is not divisible by num_attention_heads 5"),
    "another vocabulary size than the tokenizer's": ("store={store} model.vocab_size=30522", SettingsError,
     "model.vocab_size is 30522 but the tokenizer has 200"),
    "two inputs": ("store={store} tokenizer={store}/tokenizer", SettingsError, "brings its own tokenizer"),
    "sequences over what RoBERTa's positions leave": ("store={store} model.architecture=roberta " + ALONE,
     SettingsError, "packing.max_length 32 is over the 31 positions of the model"),
    "sequences over the positions in a phase": ('store={store} phases=[{{"until":0.5}},{{"until":1,"max_length":64}}]',
     SettingsError, r"phases\.1\.max_length 64 is over the 32 positions of the model"),
    "masks without a mask token": (f"{BARE} {ALONE}", SettingsError,
     r"the tokenizer of .*: objective\.name=masked_lm needs a tokenizer with a mask token, and this one has none.*"
     r"`unmask tokenizer train TEXT --kind wordpiece --out DIR` and then `unmask prepare TEXT --tokenizer DIR"),
    "replaced tokens without a mask token": (f"{BARE} objective.name=replaced_token model.architecture=electra",
     SettingsError, r"objective\.name=replaced_token needs a tokenizer with a mask token, and this one has none"),
    "full sentences without a separator":
    (f"{BARE} objective.name=causal_lm model.architecture=gpt1 packing.format=full_sentences", SettingsError,
     r"packing\.format=full_sentences sets a separator token between documents, and the tokenizer has none"),
    "entities in a text without annotations": ("store={store} objective.masking=entity", SettingsError,
     r"objective\.masking=entity needs text in which such runs are marked"),
    "entities in a text without annotations, nothing held out":
    ("store={store} objective.masking=entity held_out=0", SettingsError,
     r"objective\.masking=entity needs text in which such runs are marked"),
    "noun phrases in a corpus without annotations": ("corpus={text} objective.masking=noun_phrase", SettingsError,
     r'objective\.masking=noun_phrase needs text .* and .*text\.jsonl has none: give each .*"noun_phrase"'),
    "entities in a mixture without annotations": ("corpus={mixture} objective.masking=entity held_out=0",
     SettingsError, r"objective\.masking=entity needs text .* and .*mixture\.yaml has none"),
    "an unknown key": ("store={store} optimizer.lr=1", SettingsError, "unknown key optimizer.lr"),
    "no such model to start from": ("store={store} init_from={place}/none", ModelError, "no such directory"),
    "a GPU where there is none": ("store={store} device=cuda", SettingsError,
     "device=cuda, but PyTorch sees no CUDA device"),
}  # fmt: skip


def inputs(place: Path, store: Path) -> dict[str, Path]:
    """Stores, texts and a mixture, sound and not, by the names of `REFUSALS`."""
    text = write_documents(place / "text.jsonl", [f"{number} men. {SENTENCE}" for number in range(9)])
    (place / "unframed").mkdir()
    load_tokenizer(store / "tokenizer").without_template().save(place / "unframed")
    return {
        "unframed": place / "unframed",
        "place": place,
        "store": store,
        "damaged": damaged_copy(store, place / "damaged", "tokens-"),
        "text": text,
        "empty": write_documents(place / "empty.jsonl", []),
        "one": write_documents(place / "one.jsonl", [SENTENCE * 40]),
        "mixture": write(place / "mixture.yaml", f"corpora: {{books: {{text: [{text}]}}}}\n"),
        "broken": write(place / "broken.txt", "\n\n".join([SENTENCE] * 50).encode() + b"\n\n\xff\xfe broken"),
    }


@pytest.mark.parametrize("reason", REFUSALS)
def test_a_refused_run_leaves_nothing_and_takes_nothing_away(
    reason: str, tiny_recipe: Path, tiny_store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    words, kind, told = REFUSALS[reason]
    runs = tmp_path / "runs"
    overrides = words.format(**inputs(tmp_path, tiny_store)).split()
    for resume in (False, True):
        with pytest.raises(kind, match=told):
            pretrain(str(tiny_recipe), overrides, out=runs / "new", resume=resume)
        assert not (runs / "new").exists()
    write(runs / "old" / "recipe.yaml", "train: {steps: 1}\n")
    write(runs / "old" / "model" / "model.safetensors", "weeks of work")
    before = contents(runs)
    with pytest.raises(kind, match=told):
        pretrain(str(tiny_recipe), overrides, out=runs / "old", overwrite=True)
    assert contents(runs) == before


def test_a_segmenter_and_masking_by_annotations_do_not_go_together(tiny_recipe: Path, tiny_store: Path) -> None:
    tokenizer = load_tokenizer(tiny_store / "tokenizer")
    tokenizer.segmenter = "kiwi"
    store = f"store={tiny_store}"
    check_tokenizer(load_pretrain_recipe(str(tiny_recipe), [store, "objective.masking=span"]), tokenizer, "t")
    told = r"objective\.masking=entity and tokenizer\.segmenter=kiwi of t do"
    with pytest.raises(SettingsError, match=told):
        check_tokenizer(load_pretrain_recipe(str(tiny_recipe), [store, "objective.masking=entity"]), tokenizer, "t")
