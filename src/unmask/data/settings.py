"""Settings of reading, cleaning and packing: how files become documents, and documents sequences."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from unmask.config import Settings


class ReadingSettings(Settings):
    """How files become documents."""

    format: Literal["auto", "txt", "md", "jsonl", "csv", "tsv", "parquet", "wikipedia", "gutenberg"] = "auto"
    """`auto`: by the file's suffix, `.xml` being a Wikipedia dump, and a `.txt` with Project Gutenberg's licence a
    Gutenberg book; standard input is read as `txt`."""

    column: str = "text"
    """The field of a JSON object, or the column of a table, that holds the text."""

    txt_documents: Literal["blank_line", "file"] = "blank_line"
    """`blank_line`: documents of a `.txt` file are separated by one or more blank lines. `file`: each `.txt` file is
    one document, its blank lines kept."""

    on_error: Literal["stop", "skip"] = "stop"
    """What a record that cannot be read does: `stop` with its place, or `skip` it, count it and list it."""


class CleaningSettings(Settings):
    """What is mended in documents and which are left out; each step is counted and can be switched off."""

    nfc: bool = True
    """True composes characters (Unicode NFC)."""

    control_characters: bool = True
    """True removes control characters, tab and line breaks aside, and makes every line break a newline."""

    zero_width_characters: bool = True
    """True removes characters that take no room and mean nothing where they stand."""

    boilerplate_lines: bool = False
    """True removes lines that are furniture of web pages rather than text."""

    min_characters: int = Field(1, ge=1)
    """Documents of fewer characters, white space at their ends aside, are dropped."""

    duplicates: Literal["keep", "documents", "paragraphs"] = "keep"
    """`documents`: of equal documents only the first stays; `paragraphs`: of equal paragraphs (lines) likewise, and of
    equal documents with them. Compared by 128-bit hashes that are sorted on disk: memory does not grow."""

    near_duplicates: float | None = Field(None, gt=0, lt=1)
    """Documents whose sets of word 5-grams have at least this Jaccard similarity with an earlier one, by MinHash, are
    dropped; needs the extra `near-duplicates`, and memory that grows with the documents. Null keeps them."""

    min_script_share: dict[str, float] = Field(default_factory=dict)
    """Unicode script ("Hangul", "Latin", ...) -> least share (0..1) of a document's letters in it. A document passes if
    it has enough of any one of them; empty lets all pass."""


class PackingSettings(Settings):
    """How documents become sequences (BERT, appendix A.2)."""

    format: Literal["segment_pair"] = "segment_pair"
    """`segment_pair`: `[CLS] A [SEP] B [SEP]`, each segment a run of sentences."""

    max_length: int = Field(128, ge=8)
    """Tokens in a sequence, special ones included."""

    short_sequence_prob: float = Field(0.1, ge=0, le=1)
    """Share of sequences whose target length is drawn evenly between 2 and the longest."""

    copies: int | None = Field(None, ge=1)
    """Epoch e repeats the sequences of epoch e modulo `copies`; null draws new ones in every epoch."""
