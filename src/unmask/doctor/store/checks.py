"""What `unmask doctor` looks for in a token store, and the tables, floors and pictures that it shows for one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from rich.cells import cell_len, set_cell_size

from unmask.doctor.findings import FigureTable, Finding, Histogram, Level
from unmask.doctor.samples import read_entry
from unmask.doctor.store.statistics import Duplicates, LengthCounts, StoreStatistics
from unmask.io.progress import human_bytes, human_count
from unmask.objectives.settings_base import ObjectiveSettings
from unmask.packing.formats import documents_needed
from unmask.packing.settings import PAIRED, PackingSettings
from unmask.store.manifest import verify_file
from unmask.store.store import TokenStore
from unmask.store.unknown_tokens import (
    ADVICE,
    ADVICE_OF_WORDS,
    MUCH,
    MUCH_OF_WORDS,
    NOTABLE,
    NOTABLE_OF_WORDS,
    TOO_MUCH,
)
from unmask.tokenization.opening import Tokenizer

QUANTILES = {"5 %": 0.05, "25 %": 0.25, "median": 0.5, "75 %": 0.75, "95 %": 0.95, "99 %": 0.99}
NUM_BINS = 16
_NUM_ENTRIES = 20
_ENTRIES_IN_ROW = 5
_ENTRY_WIDTH = 10  # columns of a terminal, of whose 100 five entries with their shares then take 98
_SHOWN_TOKENS = 24


def check_store(
    store: TokenStore,
    statistics: StoreStatistics,
    duplicates: Duplicates,
    *,
    packing: PackingSettings,
    text_length: int,
    objective: ObjectiveSettings,
) -> list[Finding]:
    """Looks for what spoils a pre-training run.

    Args:
        text_length: tokens of text in a sequence.
        objective: what is learnt from them.

    Raises:
        StoreError: a file differs from what was written.
    """
    return [
        _check_files(store),
        check_duplicates(duplicates, store.manifest.get("mixture", {})),
        (_check_unknown_words if store.has_words else _check_unknown)(store.unknown_share),
        _check_use(int(np.count_nonzero(statistics.token_counts)), store.vocab_size),
        *_check_lengths(statistics, packing, text_length),
        *_check_documents(store.num_documents, statistics.num_single, packing, objective),
    ]


def _check_files(store: TokenStore) -> Finding:
    """Verifies the files other than the shards, which were verified while they were read."""
    files: dict[str, dict[str, Any]] = store.manifest["files"]
    read = ("word_ids-" if store.has_words else "tokens-", "sentences-", "documents-")
    for name, expected in files.items():
        if not name.startswith(read):
            verify_file(store.directory / name, expected)
    size = human_bytes(store.size_bytes)
    return Finding("checksums", "good", f"all {len(files)} files, {size}, are byte for byte what was written")


def check_duplicates(duplicates: Duplicates, mixture: Mapping[str, float]) -> Finding:
    times, copied = duplicates.times_repeated(), duplicates.num_documents - duplicates.num_distinct
    if any(taken > 1 for taken in mixture.values()):
        factors = ", ".join(f"{name} {taken:.2f} times" for name, taken in mixture.items())
        message = f"the mixture takes {factors}: {copied:,} of {duplicates.num_documents:,} documents are repeated"
        return Finding("duplicates", "note", message)
    if times > 1:
        return Finding(
            "repeated-corpus",
            "fault",
            f"repeated corpus: {duplicates.num_documents:,} documents are {duplicates.num_distinct:,} distinct ones, "
            f"nearly every one {times} times: an epoch of the store is {times} epochs of the text",
            "give each file once, or prepare with exact duplicates removed",
        )
    level: Level = "warning" if duplicates.share > 0.1 else "note" if duplicates.share > 0.001 else "good"
    if not copied:
        return Finding(
            "duplicates", "good", f"none of the {duplicates.num_documents:,} documents is in the store twice"
        )
    example = ", ".join(f"{second} of {first}" for first, second in duplicates.examples)
    message = f"{copied:,} documents ({duplicates.share:.2%}) are copies of earlier ones, such as document {example}"
    return Finding("duplicates", level, message, "prepare with exact duplicates removed" if level != "good" else "")


def _check_unknown(share: float) -> Finding:
    message = f"{share:.3%} of the tokens are unknown to the vocabulary"
    if share <= NOTABLE:
        return Finding("unknown-tokens", "good", message)
    level: Level = "note" if share <= MUCH else "warning" if share <= TOO_MUCH else "fault"
    return Finding("unknown-tokens", level, message, ADVICE)


def _check_unknown_words(share: float) -> Finding:
    message = f"{share:.3%} of the words are beyond the output vocabulary: the model reads their characters, and <UNK>"
    level: Level = "good" if share <= NOTABLE_OF_WORDS else "note" if share <= MUCH_OF_WORDS else "warning"
    advice = "" if level == "good" else ADVICE_OF_WORDS
    return Finding("unknown-tokens", level, f"{message} is what it predicts for them", advice)


def _check_use(used: int, vocab_size: int) -> Finding:
    share = used / vocab_size
    message = f"{used:,} of the vocabulary's {vocab_size:,} entries occur ({share:.1%})"
    if share >= 0.6:
        return Finding("vocabulary-used", "good", message)
    advice = "the vocabulary is larger than this text needs, or was made for another one: train one on this text"
    return Finding("vocabulary-used", "note" if share >= 0.25 else "warning", message, advice)


def _check_lengths(statistics: StoreStatistics, packing: PackingSettings, text_length: int) -> list[Finding]:
    sentences = statistics.sentence_lengths
    cut = sentences.sum_from(text_length + 1) / max(1, sentences.total)
    if cut <= 0.02 or packing.format in ("single_segment", "stream"):
        return []  # these formats cut sentences wherever a sequence is full
    message = (
        f"{sentences.between(text_length + 1):,} sentences, with {cut:.1%} of the tokens, are over the {text_length} "
        f"tokens that a sequence of {packing.max_length} has space for, and are cut to pieces"
    )
    advice = "look at the longest ones below: text without punctuation, tables or lists is read as one sentence"
    return [Finding("long-sentences", "warning" if cut > 0.2 else "note", message, advice)]


def _check_documents(
    num_documents: int, num_single: int, packing: PackingSettings, objective: ObjectiveSettings
) -> Iterator[Finding]:
    sentences = objective.pair_objective
    needed = documents_needed(packing, sentences)
    if num_documents < needed:
        found = f"{num_documents} document" if num_documents else "no document"
        message = f"{found}, and {f'{PAIRED[packing.format]} need two' if needed == 2 else 'one is needed'}"
        yield Finding("too-few-documents", "fault", message, "give more documents; in .txt a blank line ends one")
    elif sentences != "none" and needed == 2 and num_documents < 100:
        message = f"{num_documents} documents only: the random half of the segment pairs is drawn from few texts"
        yield Finding("few-documents", "note", message, "fine for a try, not for a model to be used")
    share = num_single / max(1, num_documents)
    if sentences != "none" and share > 0.2:
        message = f"{share:.1%} of the documents are one sentence: nothing follows it, so it is cut in two segments"
        advice = (
            "give whole documents (one a JSON line, or blank lines between them in .txt). If they are whole, their "
            "sentences end in signs that the rules do not know, such as Thai's spaces: put a line break after each "
            "sentence, or set objective.sentence_objective=none"
        )
        yield Finding("single-sentence-documents", "warning" if share > 0.5 else "note", message, advice)


# ---- What is shown


def facts_table(facts: Mapping[str, Any], statistics: StoreStatistics, tokenizer: Tokenizer) -> FigureTable:
    counts = statistics.token_counts
    rows = [
        ("documents", f"{facts['documents']:,}"),
        ("sentences", f"{facts['sentences']:,}, {facts['sentences'] / max(1, facts['documents']):.1f} a document"),
        ("tokens", f"{facts['tokens']:,} ({human_count(facts['tokens'])})"),
        ("text", f"{human_bytes(facts['text_bytes'])}, {facts['bytes_per_token']:.2f} bytes a token"),
        ("vocabulary", f"{facts['vocab_size']:,} entries, {int(np.count_nonzero(counts)):,} of them used"),
    ]
    if tokenizer.continuation.any():
        rows.append(("tokens in a word", f"{counts.sum() / max(1, counts[~tokenizer.continuation].sum()):.2f}"))
    shards = "1 shard" if facts["shards"] == 1 else f"{facts['shards']:,} shards"
    rows.append(("on disk", f"{human_bytes(facts['size_bytes'])} in {shards}"))
    return FigureTable("The store", tuple(rows))


def length_table(statistics: StoreStatistics) -> FigureTable:
    """Lengths in tokens: means and percentiles."""
    rows = []
    for name, lengths in (("sentence", statistics.sentence_lengths), ("document", statistics.document_lengths)):
        quantiles = [f"{lengths.quantile(share):,}" for share in QUANTILES.values()]
        rows.append((name, f"{lengths.mean:,.1f}", *quantiles, f"{lengths.longest:,}"))
    return FigureTable("Lengths in tokens", tuple(rows), ("", "mean", *QUANTILES, "longest"))


def length_figures(lengths: LengthCounts) -> dict[str, float]:
    """The figures of one row, for a script."""
    quantiles = {f"p{round(share * 100)}": lengths.quantile(share) for share in QUANTILES.values()}
    return {"mean": lengths.mean, **quantiles, "max": lengths.longest}


def entries_table(statistics: StoreStatistics, tokenizer: Tokenizer) -> FigureTable:
    """The commonest entries."""
    counts = statistics.token_counts
    order = np.argsort(-counts, kind="stable")[:_NUM_ENTRIES]
    total = max(1, int(counts.sum()))
    entries = {index: _shortened(read_entry(tokenizer, index)) for index in order if counts[index]}
    cells = [f"{entry}  {counts[index] / total:.2%}" for index, entry in entries.items()]
    cells += [""] * (-len(cells) % _ENTRIES_IN_ROW)
    rows = [tuple(cells[start : start + _ENTRIES_IN_ROW]) for start in range(0, len(cells), _ENTRIES_IN_ROW)]
    return FigureTable("Commonest entries", tuple(rows), ("",) * _ENTRIES_IN_ROW)


def _shortened(entry: str) -> str:
    return entry if cell_len(entry) <= _ENTRY_WIDTH else f"{set_cell_size(entry, _ENTRY_WIDTH - 1).rstrip()}…"


def longest_table(statistics: StoreStatistics, tokenizer: Tokenizer) -> FigureTable:
    """The longest sentences: how they begin."""
    rows = []
    for sentence in statistics.longest:
        more = " …" if len(sentence.tokens) > _SHOWN_TOKENS else ""
        beginning = tokenizer.decode(sentence.tokens[:_SHOWN_TOKENS].tolist()) + more
        rows.append((f"{len(sentence.tokens):,}", f"{sentence.document:,}", beginning))
    return FigureTable("Longest sentences", tuple(rows), ("tokens", "document", "begins"))


def length_histograms(statistics: StoreStatistics) -> tuple[Histogram, Histogram]:
    """Sentences in bins of equal width, up to the 99th percentile; documents in bins that double."""
    sentences, documents = statistics.sentence_lengths, statistics.document_lengths
    width = max(1, -(-sentences.quantile(0.99) // (NUM_BINS - 1)))
    first = max(0, documents.quantile(0.001).bit_length() - 1)
    doubling = [1 << power for power in range(first, max(first + 1, documents.longest.bit_length()))]
    return (
        _histogram("Sentence lengths", "sentences", sentences, range(1, 1 + width * NUM_BINS, width)),
        _histogram("Document lengths", "documents", documents, doubling),
    )


def _histogram(title: str, counted: str, lengths: LengthCounts, starts: Sequence[int]) -> Histogram:
    """A histogram without empty bins at the end; lengths below the first bin are counted in it."""
    counts = [lengths.between(start, end) for start, end in pairwise([0, *starts[1:]])]
    counts.append(lengths.between(starts[-1] if len(starts) > 1 else 0))
    while len(counts) > 1 and not counts[-1]:
        counts.pop()
    return Histogram(title, "tokens", counted, tuple(starts[: len(counts)]), tuple(counts))
