"""What holds of every prepared store, whatever the text: its ids are those of the cleaned sentences, the sequences made
of it come from where they should, and it has the same bytes whoever made it."""

from __future__ import annotations

import json
import re
from collections import Counter
from itertools import count, pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from support.commands import write_documents
from support.corpora import contents
from support.files import json_lines, write
from unmask.corpus.documents import CorpusCounts
from unmask.corpus.pipeline import read_documents
from unmask.corpus.sentences.rules import split_sentences
from unmask.corpus.settings import CleaningSettings, ReadingSettings
from unmask.errors import InputError
from unmask.packing.formats import open_planner
from unmask.packing.loader import SequenceLoader
from unmask.packing.pair_formats import IS_NEXT
from unmask.packing.settings import PackingSettings
from unmask.packing.split import Split
from unmask.packing.templates import SequenceTemplate
from unmask.store import encoding
from unmask.store.preparation import prepare
from unmask.tokenization.learning.from_files import train_tokenizer
from unmask.tokenization.settings import TokenizerSettings
from unmask.tokenization.tokenizer import load_tokenizer

KINDS = ["wordpiece", "bpe", "byte_bpe"]


@pytest.fixture(scope="module", params=KINDS)
def tokenizer(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, samples_dir: Path) -> Path:
    """A small tokenizer of each kind, of English and Korean."""
    folder = tmp_path_factory.mktemp("tokenizer")
    for name in ("en-books.jsonl", "ko-constitution.jsonl"):
        (folder / name).write_bytes((samples_dir / "text" / name).read_bytes()[:60_000].rpartition(b"\n")[0])
    train_tokenizer([folder], folder / "made", TokenizerSettings(kind=request.param, vocab_size=1200))
    return folder / "made"


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("stores")


NUMBERS = count()


# ------------------------------------------------------------------------------------------------------ what is stored

CHARACTERS = st.characters(exclude_categories=["Cs"])  # half a surrogate pair is no text
WORDS = ["The dog", "barks.", "Mr. Fox ran 3.5 km", "e\u0301", "\u1112\u1161\u11ab", "나는 간다.", "갔다 ", "漢字。"]
MARKS = ["[CLS]", "[SEP]", "[MASK]", "[UNK]", "<s>", "</s>", "<unk>", "<|endoftext|>", "</w>", "##s", "Ġ", "▁"]
SPACES = [*" \n\t\x00", "  ", "\r\n", "\u00a0", "\u200b", "\u200d", "\ufeff", "\u2028", "\x85", "\u3000"]
SIGNS = [*(".", "...", '."', "?!", "…", "“", "”", "'"), *("\U0001f468\u200d\U0001f469", "\ufffd", "\U000e0041", *"ﬁİß")]
PIECES = st.sampled_from(WORDS + MARKS + SPACES + SIGNS)
TEXTS = st.lists(st.text(CHARACTERS, max_size=80) | st.lists(PIECES, max_size=14).map("".join), min_size=1, max_size=6)


@settings(max_examples=20)  # each makes a store, for each kind of tokenizer
@given(texts=TEXTS)
@example(texts=["He said no. \u200b\u200bShe said yes.", "e\u0301.\u200b\u0301 A", "a\u00adb", "...", " ", ""])
@example(texts=["The [MASK] is here.[SEP]Next one. </s> <|endoftext|>", "\ufeffWe. \ufeffThey."])
def test_the_ids_read_back_are_those_of_the_cleaned_sentences(tokenizer: Path, place: Path, texts: list[str]) -> None:
    """As the `tokenizers` library alone gives them for each sentence; with byte-level BPE its text comes back."""
    file = write_documents(place / f"{next(NUMBERS)}.jsonl", texts)
    library = Tokenizer.from_file(str(tokenizer / "tokenizer.json"))
    library.encode_special_tokens = True  # in a text they are characters
    is_byte_level = library.token_to_id("\u0120") is not None  # the space of GPT-2's bytes
    cleaned = [document.text for document in read_documents([file], CorpusCounts())]
    expected = []
    for text in cleaned:
        bounds = split_sentences(text)
        sentences = [text[start:end] for start, end in bounds]
        if is_byte_level:  # what stands before a sentence is a space, but before the first
            after_space = [text[start - 1].isspace() for start, _ in bounds[1:]]
            sentences[1:] = [" " * is_after + each for is_after, each in zip(after_space, sentences[1:], strict=True)]
        encoded = [(sentence, library.encode(sentence, add_special_tokens=False).ids) for sentence in sentences]
        kept = [(sentence, ids) for sentence, ids in encoded if ids]
        if kept:
            expected.append(kept)
    if not expected:
        with pytest.raises(InputError, match="no text with a sentence in it"):
            prepare([file], tokenizer, file.with_suffix(""))
        return
    store = prepare([file], tokenizer, file.with_suffix(""))
    assert store.num_documents == len(expected)
    assert store.num_tokens == sum(len(ids) for document in expected for _, ids in document)
    for number, document in enumerate(expected):
        stored = store.document(number)
        ids = [stored.tokens[start:end].tolist() for start, end in pairwise([0, *stored.sentence_ends.tolist()])]
        assert ids == [ids for _, ids in document]
        if is_byte_level:
            decoded = [library.decode(sentence, skip_special_tokens=False) for sentence in ids]
            assert decoded == [sentence for sentence, _ in document]


# ------------------------------------------------------------------------------------------------ what is made of it

SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
LENGTHS = st.lists(st.lists(st.integers(1, 14), min_size=1, max_size=9), min_size=6, max_size=14)


@settings(max_examples=20)  # each makes a store
@given(lengths=LENGTHS, max_length=st.sampled_from([8, 16, 40]), held_out=st.sampled_from([0.0, 0.3]))
def test_the_sequences_of_a_prepared_store_come_from_where_they_should(
    place: Path, lengths: list[list[int]], max_length: int, held_out: float
) -> None:
    """Every word of the corpus is another one and a token of its own, so each token tells where it comes from."""
    words = [
        [[f"d{d}s{s}w{w}" for w in range(length)] for s, length in enumerate(document)]
        for d, document in enumerate(lengths)
    ]
    flat = [[word for sentence in document for word in sentence] for document in words]
    texts = ["\n".join(" ".join(sentence) for sentence in document) for document in words]
    folder = place / str(next(NUMBERS))
    folder.mkdir()
    vocabulary = [*SPECIALS, *(word for document in flat for word in document)]
    (folder / "vocab.txt").write_text("\n".join(vocabulary))
    store = prepare([write_documents(folder / "text.jsonl", texts)], folder / "vocab.txt", folder / "store")
    is_held_out = [encoding.held_out_hash(text) < held_out * 2**32 for text in texts]
    if is_held_out.count(False) < 2:
        return
    template = SequenceTemplate(load_tokenizer(store.tokenizer_directory).template)
    packing, split = PackingSettings(max_length=max_length), Split(store, held_out, False)
    planner = open_planner(split, packing, "nsp", template, seed=1)
    batches = SequenceLoader(planner, template, 4, 3, label_column="next_sentence_label").sample(10**6)
    shown: Counter[str] = Counter()
    cut = False
    for batch in batches:
        labels = batch.columns["next_sentence_label"].tolist()
        types = batch.token_type_ids.split(batch.lengths)
        for ids, segments, label in zip(batch.input_ids.split(batch.lengths), types, labels, strict=True):
            tokens = [vocabulary[token] for token in ids.tolist()]
            first_sep = tokens.index("[SEP]")
            a, b = tokens[1:first_sep], tokens[first_sep + 1 : -1]
            assert tokens == ["[CLS]", *a, "[SEP]", *b, "[SEP]"]
            assert segments.tolist() == [0] * (len(a) + 2) + [1] * (len(b) + 1)
            is_full = len(tokens) == max_length  # only then may tokens have been cut off
            cut |= is_full
            places = []
            for segment in (a, b):
                document = int(re.match(r"d(\d+)", segment[0])[1])  # type: ignore[index]
                start = flat[document].index(segment[0])
                assert segment == flat[document][start : start + len(segment)], "a run of one document"
                assert not is_held_out[document]
                places.append((document, start))
            (doc_a, start_a), (doc_b, start_b) = places
            if label == IS_NEXT:
                assert doc_a == doc_b
                assert start_b >= start_a + len(a) if is_full else start_b == start_a + len(a)
                shown.update(a + b)
            else:
                assert doc_a != doc_b
                assert is_full or segment_begins_sentence(words[doc_b], b[0])
                shown.update(a)
    everything = {word for document, held in zip(flat, is_held_out, strict=True) if not held for word in document}
    assert shown.keys() <= everything
    assert max(shown.values()) == 1, "no token of a document is shown twice as its own"
    assert cut or shown.keys() == everything


def segment_begins_sentence(document: list[list[str]], word: str) -> bool:
    return any(sentence[0] == word for sentence in document)


# ---------------------------------------------------------------------------------------------- the same bytes always


def test_with_everything_on_the_bytes_do_not_depend_on_the_workers(
    tmp_path: Path, samples_dir: Path, tiny_store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Repeated paragraphs and near-duplicates dropped, a mixture, records passed over, several shards and chunks."""
    monkeypatch.setattr(encoding, "CHUNK_BYTES", 5000)
    for name in ("en-books", "ko-wiki"):
        lines = (samples_dir / "text" / f"{name}.jsonl").read_text("utf-8").splitlines()
        texts = [json.loads(line)["text"][:3000] for line in lines[:20]]
        texts += [texts[0], texts[1].replace("\n", " ") + " And one more word.", f"{texts[2][:200]}\n{texts[3][:200]}"]
        rows = [*({"text": text} for text in texts), {"text": 1}]
        write(tmp_path / f"{name}.jsonl", json_lines(*rows) + "{\n")
    mixture = tmp_path / "m.yaml"
    mixture.write_text("exponent: 0.5\ncorpora:\n  en: {text: [en-books.jsonl]}\n  ko: {text: [ko-wiki.jsonl]}\n")
    cleaning = CleaningSettings(duplicates="paragraphs", near_duplicates=0.8)
    how: dict[str, Any] = {"shard_bytes": 40_000, "reading": ReadingSettings(on_error="skip"), "cleaning": cleaning}
    for workers in (1, 2, 3):
        store = prepare([mixture], tiny_store / "tokenizer", tmp_path / str(workers), workers=workers, **how)
    text = store.manifest["text"]
    assert len(store.manifest["shards"]) >= 2
    assert text["skipped"] == {"not JSON": 2, "not a string": 2}
    assert text["dropped"].keys() >= {"duplicate", "near-duplicate"}
    assert "duplicate paragraphs" in text["removed"]
    assert len(set(store.manifest["mixture"].values())) == 2
    assert (tmp_path / "1" / "skipped.jsonl").read_text().count("\n") == 4
    assert contents(tmp_path / "1") == contents(tmp_path / "2") == contents(tmp_path / "3")
