"""Opening files from outside: plain or compressed, in any encoding; every error names the file.

Python's own `gzip`, `bz2` and `lzma` files, and `zstandard`'s, each take some damaged files for complete ones: a broken
second stream counts as padding, or a frame that is cut short as complete. So all formats are read by one loop here,
around the libraries' decompressors.
"""

from __future__ import annotations

import bz2
import io
import lzma
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Protocol

import zstandard

from unmask.errors import InputError
from unmask.io.encodings import PieceReader, as_utf8
from unmask.io.paths import looks_the_same, where_samples_are

BUFFER_BYTES = 256 * 1024


class DamagedData(Exception):  # noqa: N818  what is wrong, in the words of the messages
    """Compressed data are damaged, or end before they should."""


class Decompressor(Protocol):
    """Unpacks one frame (zstd), member (gzip) or stream (bzip2, xz), as the libraries' decompressors do."""

    def decompress(self, data: bytes, /) -> bytes: ...

    @property
    def eof(self) -> bool: ...

    @property
    def unused_data(self) -> bytes: ...


CHUNK_BYTES = 4096
"""Compressed bytes read at once. Each can unpack to 32,768 bytes (zstd's best): 128 MiB at the very worst. 1024 are
10 % slower, 16,384 no faster."""


def _unpacked(file: IO[bytes], new_frame: Callable[[], Decompressor], padding: bytes) -> Iterator[bytes]:
    """The decompressed bytes of a file of any number of frames.

    Raises:
        DamagedData: a frame is damaged or incomplete, or is followed by something that is not a frame.
    """
    frame, has_begun = new_frame(), False
    while True:
        packed = (frame.eof and frame.unused_data) or file.read(CHUNK_BYTES)
        if frame.eof:
            while padding and packed and not (packed := packed.lstrip(padding)):
                packed = file.read(CHUNK_BYTES)
            frame, has_begun = new_frame(), False
        if not packed:
            if has_begun:
                raise DamagedData("the last frame is incomplete")
            return
        has_begun = True
        try:
            yield frame.decompress(packed)
        except (OSError, ValueError, zlib.error, lzma.LZMAError, zstandard.ZstdError) as error:
            raise DamagedData(str(error)) from error


@dataclass(frozen=True)
class Compression:
    """How to read a compressed file."""

    # a decompressor for one frame; None for a file that is not compressed
    new_frame: Callable[[], Decompressor] | None = None
    magic: tuple[bytes, ...] = ()  # the bytes with which such a file begins
    padding: bytes = b""  # bytes that the format allows between and after frames

    def open(self, file: IO[bytes]) -> IO[bytes]:
        """The decompressed stream of a file."""
        if self.new_frame is None:
            return file
        return io.BufferedReader(PieceReader(_unpacked(file, self.new_frame, self.padding)), BUFFER_BYTES)


def _zstd_frame() -> Decompressor:
    # Large public dumps are packed with `zstd --long=31`. A frame takes the memory it asks for, if it holds that much.
    return zstandard.ZstdDecompressor(max_window_size=2**31).decompressobj(write_size=32 * 1024)


COMPRESSIONS: dict[str, Compression] = {
    "": Compression(),
    ".gz": Compression(partial(zlib.decompressobj, 16 + zlib.MAX_WBITS), (b"\x1f\x8b",), padding=b"\0"),
    ".bz2": Compression(bz2.BZ2Decompressor, (b"BZh",)),
    # xz -9 needs 65 MiB
    ".xz": Compression(partial(lzma.LZMADecompressor, lzma.FORMAT_XZ, 256 * 2**20), (b"\xfd7zXZ\0",), padding=b"\0"),
    ".zst": Compression(_zstd_frame, (b"\x28\xb5\x2f\xfd", b"\x50\x2a\x4d\x18")),  # a frame; pzstd's leading one
}


def detect_compression(head: bytes) -> Compression:
    """The compression of a stream that has no name, by its first 6 bytes or more."""
    found = (each for each in COMPRESSIONS.values() if each.magic and head.startswith(each.magic))
    return next(found, COMPRESSIONS[""])


LIBRARIES = {"parquet": ("pyarrow", ".parquet"), "wikipedia": ("mwparserfromhell", "Wikipedia dumps")}
"""Formats that a library reads, which the extra of that name installs; and how messages call them."""


def check_library(format: str | None, name: str | Path) -> None:
    """Refuses a file, by an `InputError`, where the library that reads its format is not installed. To be called before
    any other file is read."""
    library, what = LIBRARIES.get(format or "", ("", ""))
    if library and find_spec(library) is None:
        raise InputError(f"{name}: reading {what} needs {library}: pip install 'unmask[{format}]'")


def split_suffixes(path: Path) -> tuple[str, str]:
    """The format and compression suffixes of a name, in lower case: `a.jsonl.zst` gives `.jsonl` and `.zst`."""
    suffixes = [suffix.lower() for suffix in path.suffixes]
    compression = suffixes.pop() if suffixes and suffixes[-1] in COMPRESSIONS else ""
    return suffixes[-1] if suffixes else "", compression


@contextmanager
def open_input(path: Path, encoding: str = "utf-8") -> Iterator[IO[bytes]]:
    """The decompressed bytes of a file, as UTF-8, for a `with` statement in which they are read.

    Raises:
        InputError: the file is missing, cannot be read, or its compressed data are damaged or cut short.
    """
    try:
        with open(path, "rb") as file:
            yield as_utf8(COMPRESSIONS[split_suffixes(path)[1]].open(file), encoding)
    except DamagedData as error:
        raise InputError(f"{path}: {describe_damage(error)}") from error
    except OSError as error:
        hint = looks_the_same(path) + where_samples_are(path) if isinstance(error, FileNotFoundError) else ""
        raise InputError(f"{path}: cannot be read: {error.strerror or error}{hint}") from error


def describe_damage(error: DamagedData) -> str:
    """What is wrong with a damaged file and what to do, for a message that names it."""
    return f"the compressed data are damaged or cut short ({error}): fetch or make the file again"
