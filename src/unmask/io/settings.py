"""How files that people bring are written: their encoding, and how a table separates and quotes its cells."""

from __future__ import annotations

import codecs
from typing import Any, Literal

from pydantic import field_validator

from unmask.config import Settings


class TableSettings(Settings):
    """How files are written, where they are not UTF-8, or not the usual `.csv` and `.tsv`."""

    encoding: str = "utf-8"
    """Such as cp949 (Korean Windows) or utf-16; a byte order mark at the beginning is passed over."""
    separator: str | None = None
    """The character between the cells of a table, or `tab`; null: a tab in `.tsv`; in `.csv` a comma, or `;`, a tab or
    `|` where the header has no comma."""
    header: Literal["first_row", "none"] = "first_row"
    """`none`: the table begins with its first row, and its columns are called 1, 2, 3 ..."""
    quoted: bool | None = None
    """True: quotes protect separators and line breaks (RFC 4180); False: a quotation mark is a character like any
    other; null: True in `.csv`, False in `.tsv`."""

    def option(self, name: str, value: str) -> str:
        """How a setting is given, for messages."""
        return f"data.{name}={value}"

    @property
    def of_tables(self) -> dict[str, Any]:
        """These settings alone, of a class that has more, as far as they are not the usual ones."""
        return self.model_dump(include=set(TableSettings.model_fields), exclude_defaults=True)

    @field_validator("encoding")
    @classmethod
    def _is_known(cls, encoding: str) -> str:
        try:
            found = codecs.lookup(encoding)
            "".encode(encoding)  # some codecs are not of text, such as hex
            if found.name in ("idna", "punycode"):  # of names of hosts
                raise LookupError(encoding)
        except LookupError as error:
            raise ValueError(
                f"there is no encoding {encoding!r}: expected a name such as utf-8, cp949, utf-16 or cp1252"
            ) from error
        return "utf-8" if found.name == "utf-8-sig" else found.name

    @field_validator("separator")
    @classmethod
    def _is_one_character(cls, separator: str | None) -> str | None:
        separator = "\t" if separator in ("tab", "\\t") else separator
        if separator is not None and (len(separator) != 1 or separator in '"\r\n\0'):
            raise ValueError(f"{separator!r}: expected one character, such as ';', or tab")
        return separator


class TableOptions(TableSettings):
    """The same as options of a command."""

    def option(self, name: str, value: str) -> str:
        """See `TableSettings`."""
        flags = {"true": f"--{name}", "false": f"--not-{name}"}
        return flags.get(value, f"--{name} {value}")
