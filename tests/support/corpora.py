"""Corpora that several tests of `unmask prepare` write."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import zstandard
from pyarrow import parquet

GOOD = "The quick brown fox jumps over the lazy dog. It barks.\n\nA second document is here. Fine.\n"
COMPRESS: dict[str, Callable[[bytes], bytes]] = {
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
    ".xz": lzma.compress,
    ".zst": zstandard.ZstdCompressor().compress,
}
Files = dict[str, str | bytes]


def table(**columns: list[Any]) -> bytes:
    file = io.BytesIO()
    parquet.write_table(pa.table(columns), file)
    return file.getvalue()


def dump(*titles: str) -> str:
    pages = (
        f"<page>\n<title>{title}</title><ns>0</ns>\n<revision><text>A wren sings here.</text></revision>\n</page>\n"
        for title in titles
    )
    return f"<mediawiki>\n{''.join(pages)}</mediawiki>\n"
