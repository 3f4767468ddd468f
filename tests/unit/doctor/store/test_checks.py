"""What the doctor says of a store: each complaint where there is reason for it, and only there."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from unmask.doctor.findings import Finding
from unmask.doctor.store.checks import (
    Floors,
    check_store,
    entries_table,
    floors_table,
    length_histograms,
    length_table,
    longest_table,
    unknown_share,
)
from unmask.doctor.store.statistics import StoreStatistics, count_store, find_duplicates
from unmask.objectives.settings import CausalLMSettings, MaskedLMSettings, ReplacedTokenSettings
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
    return {"packing": packing, "room": max_length - 3, "objective": MaskedLMSettings()}


def check(directory: Path, tokenizer: Path, documents: list[str], max_length: int = 128) -> dict[str, Finding]:
    store, opened, statistics = make(directory, tokenizer, documents)
    found = check_store(store, opened, statistics, find_duplicates(store), **looked_at_for(max_length))
    return {finding.name: finding for finding in found}


def test_nothing_to_complain_of(tmp_path: Path, tiny_model: Path) -> None:
    found = check(tmp_path, tiny_model, varied(120))
    levels = {name: finding.level for name, finding in found.items() if name != "vocabulary-used"}
    assert levels == dict.fromkeys(("checksums", "tokenizer", "duplicates", "unknown-tokens"), "good")


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
    _, tokenizer, statistics = make(tmp_path, tiny_model, ["수 man man man.", "man 수 수 수."])
    assert unknown_share(statistics, tokenizer) == 4 / 10


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


def test_another_tokenizer_in_the_store(tmp_path: Path, tiny_model: Path) -> None:
    store, tokenizer, statistics = make(tmp_path, tiny_model, varied(20))
    duplicates = find_duplicates(store)
    store.manifest["tokenizer_fingerprint"] = "0" * 64
    found = check_store(store, tokenizer, statistics, duplicates, **looked_at_for(128))
    assert "is not the one that made its ids" in next(f.message for f in found if f.name == "tokenizer-differs")
    store.manifest["vocab_size"] = 300
    found = check_store(store, tokenizer, count_store(store), duplicates, **looked_at_for(128))
    assert "has 400 entries, its ids are of 300" in next(f.message for f in found if f.name == "tokenizer-differs")


VOCABULARY = Vocabulary(4, 0, (0,), np.zeros(4, dtype=np.bool_))


def test_floors_by_hand() -> None:
    even = Floors.of(np.array([5, 5, 5, 5]), MaskedLMSettings(), VOCABULARY)
    assert even.uniform == pytest.approx(math.log(4))
    assert even.unigram == pytest.approx(math.log(4))
    uneven = Floors.of(np.array([3, 1, 0, 0]), MaskedLMSettings(), VOCABULARY)
    assert uneven.unigram == pytest.approx(0.75 * math.log(4 / 3) + 0.25 * math.log(4))
    assert uneven.commonest == 0.75
    table = {row[0]: row[1] for row in floors_table(even, 4, MaskedLMSettings()).rows}
    assert table["NSP chance"] == "0.6931"
    assert table["first loss"] == "2.0794"  # ln 4 + ln 2
    assert even.figures(MaskedLMSettings())["nsp_chance"] == pytest.approx(math.log(2))


def test_floors_without_context() -> None:
    """Two entries alike, kept or drawn: what is shown is the target by 1/2 + 1/4."""
    counts, vocabulary = np.array([0, 0, 5, 5]), Vocabulary(4, 0, (0, 1), np.zeros(4, dtype=np.bool_))
    masking = MaskedLMSettings(mask_token_prob=0.0, random_token_prob=0.5)
    floors = Floors.of(counts, masking, vocabulary)
    assert floors.no_context == pytest.approx((-0.75 * math.log(0.75) - 0.25 * math.log(0.25), 0.75))
    assert floors.figures(masking)["no_context"] == pytest.approx(0.5623, abs=5e-5)
    assert floors.figures(masking)["no_context_accuracy"] == pytest.approx(0.75)
    rows = {row[0]: row[1:] for row in floors_table(floors, 4, masking).rows}
    assert rows["no context"][0] == "0.5623"
    assert "75.00%" in rows["no context"][1]
    for objective in (ReplacedTokenSettings(), CausalLMSettings()):
        assert Floors.of(counts, objective, vocabulary).no_context is None
    assert Floors.of(counts, masking, replace(vocabulary, mask_id=None)).no_context is None
    kept = Floors.of(counts, ReplacedTokenSettings(mask_token_prob=0.85), vocabulary)
    assert kept.no_context == pytest.approx((0.85 * math.log(2), 0.85 * 0.5 + 0.15))


def test_floors_of_other_objectives() -> None:
    even = Floors.of(np.array([5, 5, 5, 5]), CausalLMSettings(), VOCABULARY)
    order, left_to_right, replaced = (
        MaskedLMSettings(sentence_objective="sop"), CausalLMSettings(), ReplacedTokenSettings(target_prob=0.25)
    )  # fmt: skip
    assert "SOP chance" in {row[0] for row in floors_table(even, 4, order).rows}
    rows = {row[0]: row[1:] for row in floors_table(even, 4, left_to_right).rows}
    assert set(rows) == {"ln V", "unigram entropy", "commonest entry"}
    assert "where language modelling begins" in rows["ln V"][1]
    # Of four tokens one is replaced: -(1/4 ln 1/4 + 3/4 ln 3/4).
    assert {row[0]: row[1] for row in floors_table(even, 4, replaced).rows}["always original"] == "0.5623"
    assert even.figures(replaced)["discriminator_share_entropy"] == pytest.approx(0.5623, abs=5e-5)
    assert set(even.figures(left_to_right)) == {"ln_vocab_size", "unigram_entropy", "commonest_share"}


def test_one_document_is_enough_for_sequences_of_one_segment(tmp_path: Path, tiny_model: Path) -> None:
    store, tokenizer, statistics = make(tmp_path, tiny_model, [*varied(1), "man " * 200 + "."][:1])
    single: dict[str, Any] = {"packing": PackingSettings(format="single_segment", max_length=16), "room": 14}
    found = check_store(
        store,
        tokenizer,
        statistics,
        find_duplicates(store),
        **single,
        objective=MaskedLMSettings(sentence_objective="none"),
    )
    assert not {"too-few-documents", "few-documents", "long-sentences"} & {finding.name for finding in found}


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
