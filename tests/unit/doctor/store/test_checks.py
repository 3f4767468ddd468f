"""What the doctor says of a store: each complaint where there is reason for it, and only there."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support.trained import trained
from unmask.doctor.findings import Finding
from unmask.doctor.store.checks import check_store, entries_table, length_histograms, length_table, longest_table
from unmask.doctor.store.floors import floors_table
from unmask.doctor.store.statistics import StoreStatistics, count_store, find_duplicates
from unmask.doctor.terminal import print_tables
from unmask.objectives.settings import MaskedLMSettings
from unmask.objectives.table import new_objective
from unmask.packing.settings import PackingSettings
from unmask.store.preparation import prepare
from unmask.store.store import TokenStore
from unmask.tokenization.tokenizer import TextTokenizer, load_tokenizer
from unmask.tokenization.vocabulary import Vocabulary

SENTENCES = ("A man is outside.", "Two dogs run in the snow.", "A woman plays with a ball.", "The boy smiles.")


def make(directory: Path, tokenizer: Path, documents: list[str]) -> tuple[TokenStore, TextTokenizer, StoreStatistics]:
    text = directory / "text.txt"
    text.write_text("\n\n".join(documents) + "\n", encoding="utf-8")
    store = prepare([text], tokenizer, directory / "store")
    return store, load_tokenizer(store.tokenizer_directory), count_store(store)


def varied(number: int) -> list[str]:
    """So many documents of six sentences, no two alike, of letters that the tokenizer knows."""
    names = [first + second for first in "abcdefghiklmnoprst" for second in "abcdefghiklmnoprst"]
    return [" ".join(f"{SENTENCES[(n + k) % 4]} The dog is {names[n]}." for k in range(3)) for n in range(number)]


def looked_at_for(max_length: int) -> dict[str, Any]:
    """BERT's segment pairs, with three special tokens."""
    packing = PackingSettings(max_length=max_length)
    return {"packing": packing, "text_length": max_length - 3, "objective": MaskedLMSettings()}


def check(directory: Path, tokenizer: Path, documents: list[str], max_length: int = 128) -> dict[str, Finding]:
    store, _, statistics = make(directory, tokenizer, documents)
    found = check_store(store, statistics, find_duplicates(store), **looked_at_for(max_length))
    return {finding.name: finding for finding in found}


def test_nothing_to_complain_of(tmp_path: Path, tiny_model: Path) -> None:
    found = check(tmp_path, tiny_model, varied(120))
    levels = {name: finding.level for name, finding in found.items() if name != "vocabulary-used"}
    assert levels == dict.fromkeys(("checksums", "duplicates", "unknown-tokens"), "good")


def test_a_repeated_corpus(tmp_path: Path, tiny_model: Path) -> None:
    finding = check(tmp_path, tiny_model, varied(20) * 10)["repeated-corpus"]
    assert finding.level == "fault"
    assert "repeated corpus: 200 documents are 20 distinct ones, nearly every one 10 times" in finding.message


def test_some_copies(tmp_path: Path, tiny_model: Path) -> None:
    finding = check(tmp_path, tiny_model, [*varied(20), *varied(5)])["duplicates"]
    assert finding.level == "warning"
    assert "5 documents (20.00%) are copies of earlier ones, such as document " in finding.message
    examples = finding.message.rpartition("document ")[2].split(", ")
    assert set(examples) <= {f"{20 + n} of {n}" for n in range(5)}


def test_unknown_tokens(tmp_path: Path, tiny_model: Path) -> None:
    finding = check(tmp_path, tiny_model, [f"{text} {'수 ' * 20}." for text in varied(120)])["unknown-tokens"]
    assert finding.level == "fault"
    assert "tokenizer report" in finding.advice


def test_unknown_share_by_hand(tmp_path: Path, tiny_model: Path) -> None:
    store, *_ = make(tmp_path, tiny_model, ["수 man man man.", "man 수 수 수."])
    assert store.unknown_share == 4 / 10


def test_a_vocabulary_for_another_text(tmp_path: Path, tiny_model: Path) -> None:
    assert check(tmp_path, tiny_model, ["A man is outside."] * 3)["vocabulary-used"].level == "warning"


def test_sentences_too_long_for_a_sequence(tmp_path: Path, tiny_model: Path) -> None:
    documents = [*varied(10), "man " * 60 + "."]
    assert "long-sentences" not in check(tmp_path, tiny_model, documents)
    (tmp_path / "short").mkdir()
    finding = check(tmp_path / "short", tiny_model, documents, max_length=32)["long-sentences"]
    assert "1 sentences, with" in finding.message
    assert "over the 29 tokens" in finding.message


def test_documents_of_one_sentence(tmp_path: Path, tiny_model: Path) -> None:
    found = check(tmp_path, tiny_model, ["A man is outside.", "The boy smiles."] * 15)
    assert found["single-sentence-documents"].level == "warning"
    assert "few-documents" in found


def test_a_single_document(tmp_path: Path, tiny_model: Path) -> None:
    assert check(tmp_path, tiny_model, varied(1))["too-few-documents"].level == "fault"


def test_floors_by_hand() -> None:
    vocabulary = Vocabulary(4, 0, (0,), np.zeros(4, dtype=np.bool_))
    floors = new_objective(MaskedLMSettings(), vocabulary).floors(np.array([5, 5, 5, 5]))
    rows = {row[:2]: row[2] for row in floors_table(floors).rows}
    assert rows["loss/mlm", "unigram entropy"] == rows["loss/mlm", "uniform"] == "1.3863"  # ln 4
    assert rows["loss/nsp", "chance"] == "0.6931"
    assert rows["eval/nsp_accuracy", "chance"] == "50.00%"


def test_one_document_is_enough_for_sequences_of_one_segment(tmp_path: Path, tiny_model: Path) -> None:
    store, _, statistics = make(tmp_path, tiny_model, ["man " * 200 + "."])
    packing = PackingSettings(format="single_segment", max_length=16)
    objective = MaskedLMSettings(sentence_objective="none")
    about: dict[str, Any] = {"packing": packing, "text_length": 14, "objective": objective}
    found = check_store(store, statistics, find_duplicates(store), **about)
    assert not {"too-few-documents", "few-documents", "long-sentences"} & {finding.name for finding in found}


def test_the_share_of_a_long_entry_is_told_whole(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = [
        "internationalization",
        "Donaudampfschifffahrt",
        "counterrevolutionary",
        "misunderstandings",
        "가나다라마바사",
    ]
    text = " ".join(words)
    tokenizer = tmp_path / "tokenizer"
    tokenizer.mkdir()
    trained([text] * 20, kind="byte_bpe", vocab_size=600).save(tokenizer)
    _, opened, statistics = make(tmp_path, tokenizer, [text] * 20)
    print_tables([entries_table(statistics, opened)])
    shown = re.findall(r"(\S+)  20\.00%", capsys.readouterr().out)
    assert sorted(shown) == ["internati…", "␣Donaudam…", "␣counterr…", "␣misunder…", "␣가나다라…"]


def test_tables_and_pictures(tmp_path: Path, tiny_model: Path) -> None:
    store, tokenizer, statistics = make(tmp_path, tiny_model, [*varied(20), "A man. " * 300])
    sentence, document = length_table(statistics).rows
    assert (sentence[0], document[0]) == ("sentence", "document")
    for histogram, num in zip(length_histograms(statistics), (store.manifest["sentences"], 21), strict=True):
        assert sum(histogram.counts) == num
        assert list(histogram.starts) == sorted(set(histogram.starts))
        assert histogram.label(len(histogram.counts) - 1).endswith("+")
    assert length_histograms(statistics)[1].counts[-1] == 1  # the long document, alone in its bin
    cells = [cell for row in entries_table(statistics, tokenizer).rows for cell in row]
    assert any(cell.startswith(".  ") for cell in cells)
    assert all(row[2] for row in longest_table(statistics, tokenizer).rows)
