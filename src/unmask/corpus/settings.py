"""Settings of reading and cleaning: how files become documents."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from unmask.config import Settings
from unmask.io.settings import TableSettings


class ReadingSettings(TableSettings):
    """How files become documents."""

    format: Literal["auto", "txt", "md", "jsonl", "csv", "tsv", "parquet", "wikipedia", "gutenberg"] = "auto"
    """`auto`: by the file's suffix; `.xml` is a Wikipedia dump, a `.txt` with Project Gutenberg's licence is a
    Gutenberg book, standard input is read as `txt`, and both are tables where `separator` is given."""

    column: str = "text"
    """The field of a JSON object, or the column of a table, that holds the text."""

    txt_documents: Literal["blank_line", "file"] = "blank_line"
    """`blank_line`: documents of a `.txt` file are separated by one or more blank lines. `file`: each `.txt` file is
    one document, its blank lines kept."""

    on_error: Literal["stop", "skip"] = "stop"
    """What to do with a record that cannot be read: `stop` and name its place, or `skip` it, count it and list it."""

    def option(self, name: str, value: str) -> str:
        """How a setting is given, for messages."""
        flags = {"true": f"--{name}", "false": f"--not-{name}"}
        given = flags.get(value, f"--{name.replace('_', '-')} {value}")
        return f"{given} (in a recipe reading.{name}={value})"

    def as_recorded(self) -> dict[str, Any]:
        """What a store says of them: settings of tables only where they are not the usual ones."""
        return self.model_dump(exclude=set(TableSettings.model_fields)) | self.of_tables


class CleaningSettings(Settings):
    """What is repaired in documents, and which are left out; each step is counted and can be switched off."""

    nfc: bool = True
    """True composes characters (Unicode NFC)."""

    control_characters: bool = True
    """True removes control characters except tabs and line breaks, and makes every line break a newline."""

    zero_width_characters: bool = True
    """True removes characters that have no width and no meaning at their place."""

    boilerplate_lines: bool = False
    """True removes boilerplate lines, such as those of web pages."""

    min_characters: int = Field(default=1, ge=1)
    """Documents of fewer characters, not counting white space at their ends, are dropped."""

    duplicates: Literal["keep", "documents", "paragraphs"] = "keep"
    """`documents`: only the first of equal documents stays; `paragraphs`: likewise, and also only the first of equal
    paragraphs (lines) of 40 characters or more. Compared by 128-bit hashes that are sorted on disk: memory does not
    grow."""

    near_duplicates: float | None = Field(default=None, gt=0, lt=1)
    """Documents whose sets of word 5-grams have at least this Jaccard similarity with an earlier one, by MinHash, are
    dropped; needs the extra `near-duplicates`, and memory that grows with the documents. Null keeps them."""

    min_script_share: dict[str, float] = Field(default_factory=dict)
    """Unicode script ("Hangul", "Latin", ...) -> least share (0..1) of a document's letters in it. A document passes if
    any one of the scripts reaches its share; empty lets all pass."""
