"""Annotated text from end to end: the same store whatever the workers, a resumed one, and masking that goes by it."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path
from typing import Any

import pytest
import torch

from support.corpora import contents
from support.files import write_rows
from unmask.errors import OutputError, SettingsError, StoreError
from unmask.objectives.masks import span_masking
from unmask.objectives.table import new_objective
from unmask.pretraining.run import pretrain
from unmask.pretraining.start import open_start
from unmask.pretraining.steps import build_loader
from unmask.recipe.loading import load_pretrain_recipe
from unmask.store import encoding
from unmask.store.preparation import describe_annotations, prepare
from unmask.store.shard_writer import EncodedChunk, ShardWriter
from unmask.store.store import TokenStore
from unmask.tokenization.learning.from_files import train_tokenizer
from unmask.tokenization.settings import TokenizerSettings
from unmask.tokenization.tokenizer import load_tokenizer

PEOPLE = ["Ada Lovelace", "Grace Hopper", "Alan Turing", "Emmy Noether", "Mary Jackson"]
PLACES = ["the old mill", "a quiet harbour", "the northern station"]
SHARD_BYTES = 4_000
pytestmark = pytest.mark.usefixtures("one_thread")


def annotated(dice: random.Random) -> dict[str, Any]:
    """A document of invented sentences; some characters are such as cleaning removes."""
    text, spans = "", []
    for _ in range(dice.randint(2, 9)):
        for piece, kind in (
            (dice.choice(PEOPLE), "entity"),
            (dice.choice([" walked to ", " never\u200b saw ", " wrote about "]), None),
            (dice.choice(PLACES), "noun_phrase"),
            (dice.choice([".", " with ", "!"]), None),
            (dice.choice(PEOPLE), "entity"),
            (dice.choice([". ", ".\r\n", "? "]), None),
        ):
            if kind is not None:
                spans.append([len(text), len(text) + len(piece), kind])
            text += piece
    return {"text": text, "spans": spans}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`text.jsonl`, every third document of which is annotated, `tokenizer`, and `store`, made by one process."""
    folder, dice = tmp_path_factory.mktemp("annotated"), random.Random(5)
    documents = [annotated(dice) if number % 3 == 0 else {"text": annotated(dice)["text"]} for number in range(120)]
    write_rows(folder / "text.jsonl", *documents)
    train_tokenizer([folder / "text.jsonl"], folder / "tokenizer", TokenizerSettings(vocab_size=160, unused_slots=0))
    prepare([folder / "text.jsonl"], folder / "tokenizer", folder / "store", shard_bytes=SHARD_BYTES)
    return folder


def test_the_store_holds_the_annotations(folder: Path) -> None:
    store = TokenStore(folder / "store")
    store.verify()
    tokenizer = load_tokenizer(store.tokenizer_directory)
    rows = [json.loads(line) for line in (folder / "text.jsonl").read_text().splitlines()]
    assert store.manifest["side_arrays"] == {"spans": "<u4"}
    assert len(store.shards) > 2
    for number, row in enumerate(rows):
        for kind, names in (("entity", PEOPLE), ("noun_phrase", PLACES)):
            spans = store.spans(number, 0, len(store.document(number).tokens), kind)
            said = [row["text"][start:end] for start, end, its_kind in row.get("spans", []) if its_kind == kind]
            stored = [tokenizer.decode(store.tokens(number, *span).tolist()) for span in spans.tolist()]
            assert stored == [each.lower() for each in said]
            assert set(said) <= set(names)
    assert store.num_spans("entity") == store.manifest["text"]["annotations"] * 2 // 3
    assert store.manifest["text"]["annotations_removed"] == 0
    entities, phrases = store.num_spans("entity"), store.num_spans("noun_phrase")
    assert describe_annotations(store) == f"annotations: {entities:,} entity, {phrases:,} noun_phrase"


def test_neither_workers_nor_chunks_change_a_byte(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = contents(folder / "store")
    prepare([folder / "text.jsonl"], folder / "tokenizer", folder / "two", shard_bytes=SHARD_BYTES, workers=2)
    assert contents(folder / "two") == whole
    monkeypatch.setattr(encoding, "CHUNK_BYTES", 300)
    prepare([folder / "text.jsonl"], folder / "tokenizer", folder / "small", shard_bytes=SHARD_BYTES)
    assert contents(folder / "small") == whole


def interrupt(folder: Path, out: Path) -> None:
    """A preparation that ends in its third shard; the first two stay."""
    add = ShardWriter.add

    def break_off(writer: ShardWriter, chunk: EncodedChunk) -> None:
        if (out / "shard-00001.json").exists():
            raise OutputError("the disk is full")
        add(writer, chunk)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ShardWriter, "add", break_off)
        with pytest.raises(OutputError, match="2 finished shard"):
            prepare([folder / "text.jsonl"], folder / "tokenizer", out, shard_bytes=SHARD_BYTES)
    assert (out / "spans-00000.bin").is_file()


def test_a_resumed_store_is_the_same(folder: Path) -> None:
    out = folder / "resumed"
    interrupt(folder, out)
    prepare([folder / "text.jsonl"], folder / "tokenizer", out, shard_bytes=SHARD_BYTES, resume=True)
    assert contents(out) == contents(folder / "store")


def test_other_annotations_are_another_text_to_a_resumed_preparation(folder: Path) -> None:
    interrupt(folder, folder / "changed")
    first, *others = (folder / "text.jsonl").read_text().splitlines()
    document = json.loads(first)
    document["spans"][0][2] = "noun_phrase"
    changed = folder / "changed.jsonl"
    changed.write_text("\n".join([json.dumps(document), *others]))
    with pytest.raises(StoreError, match="made from another text"):
        prepare([changed], folder / "tokenizer", folder / "changed", shard_bytes=SHARD_BYTES, resume=True)


def test_damage_to_them_is_found(folder: Path, tmp_path: Path) -> None:
    store = prepare([folder / "text.jsonl"], folder / "tokenizer", tmp_path / "store", shard_bytes=SHARD_BYTES)
    path = tmp_path / "store" / "spans-00001.bin"
    sound = path.read_bytes()
    path.write_bytes(bytes([sound[0] ^ 1]) + sound[1:])
    with pytest.raises(StoreError, match=r"spans-00001\.bin: its checksum"):
        store.verify()
    path.write_bytes(sound[:-12])
    with pytest.raises(StoreError, match=r"spans-00001\.bin: .* bytes, the manifest says"):
        TokenStore(tmp_path / "store")


# -------------------------------------------------------------------------------------------------------- pre-training


def overrides(store: Path, kind: str) -> list[str]:
    return [
        *(f"store={store}", f"objective.masking={kind}", "objective.sentence_objective=none"),
        *("packing.format=doc_sentences", "train.steps=4", "held_out=0"),
    ]


@pytest.mark.parametrize("kind", ["entity", "noun_phrase"])
def test_what_is_masked_is_what_is_annotated(
    folder: Path, tiny_recipe: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(span_masking, "ANNOTATION_PROB", 1.0)  # words are drawn only once no annotation is left
    settings = load_pretrain_recipe(str(tiny_recipe), overrides(folder / "store", kind))
    store = TokenStore(folder / "store")
    tokenizer = load_tokenizer(store.tokenizer_directory)
    loader = build_loader(open_start(settings), store, tokenizer, held_out=False, phase=settings.all_phases[0])
    objective = new_objective(settings.objective, tokenizer.vocabulary)
    names = {"entity": PEOPLE, "noun_phrase": PLACES}[kind]
    of_names = {token for name in names for token in tokenizer.encode_batch([name])[0]}
    num_annotated = 0
    for batch in loader.sample(60):
        prepared = objective.prepare(batch)
        column = batch.columns[kind]
        assert set(batch.input_ids[column > 0].tolist()) <= of_names
        targets = torch.zeros(batch.num_tokens, dtype=torch.bool)
        targets[prepared.columns["target_positions"]] = True
        for start, end in zip(batch.bounds[:-1].tolist(), batch.bounds[1:].tolist(), strict=True):
            share = (column[start:end] > 0).float().mean()
            if share >= 0.15:  # else the budget, that share of the tokens, has room for words too
                assert (column[start:end][targets[start:end]] > 0).all()
                num_annotated += 1
    assert num_annotated > 10


def test_a_run_masks_annotations(folder: Path, tiny_recipe: Path, tmp_path: Path, without_report: None) -> None:
    model = pretrain(str(tiny_recipe), overrides(folder / "store", "entity"), out=tmp_path / "run")
    assert (model / "model.safetensors").is_file()


def test_a_run_tells_what_its_store_lacks_of_its_corpus_once(
    folder: Path, tiny_recipe: Path, tmp_path: Path, without_report: None, caplog: pytest.LogCaptureFixture
) -> None:
    lines = (folder / "text.jsonl").read_text().splitlines()
    twice = json.loads(lines[3])
    twice["spans"].append([twice["spans"][0][0], twice["spans"][0][1] - 1, "entity"])
    corpus = tmp_path / "corpus.jsonl"
    faulty = json.dumps({"text": "a word", "spans": [[0, 99, "entity"]]})
    corpus.write_text("\n".join([*lines[:3], json.dumps(twice), *lines[4:], faulty, ""]))
    words = [f"corpus={corpus}", f"tokenizer={folder / 'tokenizer'}", "reading.on_error=skip"]
    words += overrides(folder / "store", "entity")[1:]
    caplog.set_level("INFO", logger="unmask")
    pretrain(str(tiny_recipe), words, out=tmp_path / "run")
    listed = tmp_path / "run" / "store" / "skipped.jsonl"
    assert f"corpus: {len(lines)} documents (1 record passed over: bad annotations), listed in {listed}" in caplog.text
    assert re.search(r"annotations: [\d,]+ entity, [\d,]+ noun_phrase; 1 overlapped a longer one", caplog.text)
    caplog.clear()
    pretrain(str(tiny_recipe), words, out=tmp_path / "run", resume=True)
    assert "passed over" not in caplog.text


def test_a_store_without_annotations_is_refused(tiny_store: Path, tiny_recipe: Path, tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"objective\.masking=entity needs text in which such runs are marked"):
        pretrain(str(tiny_recipe), overrides(tiny_store, "entity"), out=tmp_path / "run")
