"""Corpora for tests, as bytes of every format, what is read of them, and the stores that are made of them."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import zstandard
from pyarrow import parquet

from unmask.corpus.documents import CorpusCounts, Document
from unmask.corpus.reading import read_files
from unmask.corpus.settings import ReadingSettings
from unmask.errors import InputError

GOOD = "The quick brown fox jumps over the lazy dog. It barks.\n\nA second document is here. Fine.\n"
COMPRESS: dict[str, Callable[[bytes], bytes]] = {
    "": bytes,
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
    ".xz": partial(lzma.compress, preset=0),
    ".zst": zstandard.ZstdCompressor().compress,
}
COMPRESSED = [suffix for suffix in COMPRESS if suffix]
Files = dict[str, str | bytes]
STOP = ReadingSettings()
SKIP = ReadingSettings(on_error="skip")


def read(path: Path, settings: ReadingSettings = STOP) -> tuple[list[Document], CorpusCounts]:
    """The documents of a file, and its account."""
    counts = CorpusCounts()
    return list(read_files([path], counts, settings)), counts


def refused(path: Path, settings: ReadingSettings = STOP) -> str:
    """What is wrong with a file, by the error that names the way around it."""
    with pytest.raises(InputError) as error:
        read(path, settings)
    assert str(error.value).endswith(
        "; or pass over what cannot be read with --on-error skip (in a recipe reading.on_error=skip)"
    )
    return str(error.value)


def table(**columns: list[Any]) -> bytes:
    """A Parquet file."""
    file = io.BytesIO()
    parquet.write_table(pa.table(columns), file)
    return file.getvalue()


def dump(*titles: str) -> str:
    """A dump of Wikipedia."""
    pages = (
        f"<page>\n<title>{title}</title><ns>0</ns>\n<revision><text>A wren sings here.</text></revision>\n</page>\n"
        for title in titles
    )
    return f"<mediawiki>\n{''.join(pages)}</mediawiki>\n"


def contents(directory: Path) -> dict[str, bytes]:
    """The files of a directory."""
    return {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def learn_and_prepare(text: Path, place: Path, **tokenizer: Any) -> Path:
    """The folder `store` of a place, made with a tokenizer of these settings, learned from the text itself."""
    from unmask.store.preparation import prepare
    from unmask.tokenization.learning.from_files import train_tokenizer
    from unmask.tokenization.settings import TokenizerSettings

    train_tokenizer([text], place / "tokenizer", TokenizerSettings.model_validate(tokenizer))
    prepare([text], place / "tokenizer", place / "store")
    return place / "store"
