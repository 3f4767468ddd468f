"""The loader of each `packing.format`: its sequences fit, carry their labels, and too little text is refused."""

from __future__ import annotations

from itertools import islice
from typing import get_args

import pytest
import torch

from support.stores import numbered_store
from support.templates import BERT, CLS, ROBERTA, SEP, A
from unmask.errors import InputError, SettingsError
from unmask.packing.formats import SEQUENCE_FORMATS, check_documents, documents_needed, open_planner
from unmask.packing.loader import SequenceLoader
from unmask.packing.settings import LABEL_COLUMNS, PAIRED, PackingSettings, SentenceObjective, SentenceQuestion
from unmask.packing.split import Split
from unmask.packing.templates import SequenceTemplate
from unmask.store.store import TokenStore
from unmask.tokenization.definition import BARE, Piece, TextTemplate

PAIRINGS: list[tuple[str, SentenceObjective]] = [
    (name, objective)
    for name in SEQUENCE_FORMATS
    for objective in get_args(SentenceObjective)
    if name in PAIRED or objective == "none"
]


def packing(name: str, max_length: int = 16) -> PackingSettings:
    return PackingSettings.model_validate({"format": name, "max_length": max_length})


def loader(
    store: TokenStore,
    name: str,
    objective: SentenceObjective = "none",
    template: SequenceTemplate = BERT,
    **split: float,
) -> SequenceLoader:
    chosen = Split(store, split.get("held_out", 0.0), bool(split.get("held", False)))
    label = None if objective == "none" else LABEL_COLUMNS[objective]
    planner = open_planner(chosen, packing(name), objective, template, seed=3)
    return SequenceLoader(planner, template, 8, 3, label_column=label)


def test_every_format_but_stream_is_here() -> None:
    names = get_args(PackingSettings.model_fields["format"].annotation)
    assert {*SEQUENCE_FORMATS, "stream"} == set(names)
    assert set(LABEL_COLUMNS) == set(get_args(SentenceQuestion)) == set(get_args(SentenceObjective)) - {"none"}
    assert set(PAIRED) <= set(SEQUENCE_FORMATS)


@pytest.mark.parametrize("template", [BERT, ROBERTA, SequenceTemplate(BARE, SEP)], ids=["bert", "roberta", "bare"])
@pytest.mark.parametrize(("name", "objective"), PAIRINGS)
def test_batches_of_every_format(name: str, objective: SentenceObjective, template: SequenceTemplate) -> None:
    store = numbered_store([[3 + n % 5, 30, 2] * (1 + n % 4) for n in range(20)])
    steps = list(islice(loader(store, name, objective, template).steps(), 12))
    batches = [batch for step in steps for batch in step.batches]
    assert [batch.num_sequences for batch in batches[:3]] == [3, 3, 2]
    longest = max(length for batch in batches for length in batch.lengths)
    assert longest == 16  # the space that the template leaves is used to the full, and no more
    column = {"nsp": {"next_sentence_label"}, "sop": {"sentence_order_label"}, "none": set()}[objective]
    assert all(batch.columns.keys() == {"special_tokens_mask", *column} for batch in batches)
    labels = {label for batch in batches for name in column for label in batch.columns[name].tolist()}
    assert labels == ({0, 1} if column else set())
    segments = {0, 1} if template is not ROBERTA and name in PAIRED else {0}
    assert {kind for batch in batches for kind in batch.token_type_ids.tolist()} == segments
    for batch in batches:
        assert torch.equal(batch.input_ids > 1_000_000, batch.columns["special_tokens_mask"])


def test_short_sequences_are_of_segment_pairs_alone() -> None:
    store = numbered_store([[1] * 3000] * 2)
    short = PackingSettings(max_length=16, short_sequence_prob=1)
    planner = open_planner(Split(store, 0, False), short, "none", BERT, seed=0)
    [batch] = next(SequenceLoader(planner, BERT, 500, 500).steps()).batches
    assert sum(batch.lengths) / 500 < 13


# ------------------------------------------------------------------------------------------------------- too little


@pytest.mark.parametrize(
    ("name", "objective", "needed"),
    [
        ("segment_pair", "nsp", 2),
        ("segment_pair", "none", 2),
        ("segment_pair", "sop", 1),
        ("sentence_pair", "nsp", 2),
        ("sentence_pair", "sop", 1),
        ("full_sentences", "none", 1),
        ("doc_sentences", "none", 1),
        ("single_segment", "none", 1),
    ],
)
def test_too_few_documents_are_refused(name: str, objective: SentenceObjective, needed: int) -> None:
    assert documents_needed(packing(name), objective) == needed
    enough = numbered_store([[5, 4]] * needed)
    assert next(loader(enough, name, objective).steps()).batches
    store = numbered_store([[5]] * 3)
    message = rf"{store.directory}: 0 held-out document.s., but .*a blank line ends one.*; or change held_out"
    with pytest.raises(InputError, match=message):
        loader(store, name, objective, held_out=0.1, held=True)
    if needed == 2:
        one = numbered_store([[5]])
        with pytest.raises(InputError) as refused:
            loader(one, name, objective)
        question = " (objective.sentence_objective=nsp)" if objective == "nsp" else ""
        assert f"1 training document(s), but packing.format={name}{question} needs two" in str(refused.value)
        assert str(refused.value).endswith("packing.format=single_segment, which makes do with one")


def test_the_same_message_for_files_that_are_no_store_yet() -> None:
    message = r"a\.txt, b\.txt: 1 training document.s., but packing.format=segment_pair \(objective.*=nsp\) needs two"
    with pytest.raises(InputError, match=message):
        check_documents(1, "training", "a.txt, b.txt", packing("segment_pair"), "nsp")
    check_documents(1, "training", "a.txt", packing("single_segment"), "none")


@pytest.mark.parametrize("name", ["segment_pair", "single_segment", "stream"])
def test_a_text_without_documents_has_its_own_message(name: str) -> None:
    with pytest.raises(InputError, match=r"^a\.txt: no document with text in it: give a text to learn from$"):
        check_documents(0, "training", "a.txt", packing(name), "none")
    with pytest.raises(InputError, match=rf"0 training document.s., but packing.format={name}.*; or change held_out"):
        check_documents(0, "training", "a.txt", packing(name), "none", num_others=3)


@pytest.mark.parametrize("name", SEQUENCE_FORMATS)
def test_documents_shorter_than_anything(name: str) -> None:
    store = numbered_store([[1]] * 5)
    batches = next(loader(store, name).steps()).batches
    assert sum(batch.num_sequences for batch in batches) == 8


def test_documents_without_anything_between_them_are_refused() -> None:
    store = numbered_store([[5]] * 3)
    with pytest.raises(SettingsError, match=r"format=full_sentences sets .*format=doc_sentences or single"):
        loader(store, "full_sentences", template=SequenceTemplate(BARE))
    assert next(loader(store, "doc_sentences", template=SequenceTemplate(BARE)).steps()).batches


def test_a_frame_that_leaves_no_room_is_refused() -> None:
    store = numbered_store([[5]] * 3)
    wide = SequenceTemplate(TextTemplate(single=(Piece("", (CLS,) * 16, 0), A), pair=()))
    with pytest.raises(SettingsError, match=r"packing\.max_length 16 has no room for the 16 special .* at least 17"):
        loader(store, "single_segment", template=wide)
    assert BERT.capacity(5, 2) == ROBERTA.capacity(6, 2) == SequenceTemplate(BARE).capacity(2, 2) == 2
    with pytest.raises(SettingsError, match="at least 6"):
        ROBERTA.capacity(5, 2)
