"""Opening files from outside: plain, gzip- or Zstandard-compressed, UTF-8; every failure is told by file and place."""

from __future__ import annotations

import gzip
import io
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import zstandard

from unmask.errors import InputError


class ZstdStream(io.RawIOBase):
    """The decompressed bytes of a Zstandard file of one or more frames.

    `zstandard`'s own `stream_reader` ends without an error where a file was cut short; this one raises EOFError.
    """

    CHUNK_BYTES = 1024  # compressed bytes at a time: few, because each can unpack to thousands

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._frame = self._new_frame()
        self._frame_begun = False
        self._unpacked = memoryview(b"")

    @staticmethod
    def _new_frame() -> zstandard.ZstdDecompressionObj:
        return zstandard.ZstdDecompressor().decompressobj(write_size=16 * 1024)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        while not self._unpacked:
            packed = self._frame.unused_data
            if self._frame.eof:
                self._frame = self._new_frame()
                self._frame_begun = False
            packed = packed or self._file.read(self.CHUNK_BYTES)
            if not packed:
                if self._frame_begun:
                    raise EOFError("the last frame is incomplete")
                return 0
            self._frame_begun = True
            self._unpacked = memoryview(self._frame.decompress(packed))
        size = min(len(buffer), len(self._unpacked))
        buffer[:size] = self._unpacked[:size]
        self._unpacked = self._unpacked[size:]
        return size


@dataclass(frozen=True)
class Compression:
    """How to read a compressed file.

    Attributes:
        open: the decompressed stream of a file.
        errors: what reading that stream raises where the file is damaged or cut short.
    """

    open: Callable[[IO[bytes]], IO[bytes]]
    errors: tuple[type[Exception], ...] = ()


def open_plain(file: IO[bytes]) -> IO[bytes]:
    return file


def open_gzip(file: IO[bytes]) -> IO[bytes]:
    return io.BufferedReader(gzip.GzipFile(fileobj=file), buffer_size=256 * 1024)


def open_zstd(file: IO[bytes]) -> IO[bytes]:
    return io.BufferedReader(ZstdStream(file), buffer_size=256 * 1024)


COMPRESSIONS: dict[str, Compression] = {
    "": Compression(open_plain),
    ".gz": Compression(open_gzip, (EOFError, gzip.BadGzipFile, zlib.error)),
    ".zst": Compression(open_zstd, (EOFError, zstandard.ZstdError)),
}


def split_suffixes(path: Path) -> tuple[str, str]:
    """The format and compression suffixes of a name, in lower case: `a.jsonl.zst` gives `.jsonl` and `.zst`."""
    suffixes = [suffix.lower() for suffix in path.suffixes]
    compression = suffixes.pop() if suffixes and suffixes[-1] in COMPRESSIONS else ""
    return suffixes[-1] if suffixes else "", compression


@contextmanager
def open_input(path: Path) -> Iterator[IO[bytes]]:
    """The decompressed bytes of a file, for a `with` statement in which they are read.

    Raises:
        InputError: the file is missing, cannot be read, or its compressed data are damaged or cut short.
    """
    compression = COMPRESSIONS[split_suffixes(path)[1]]
    try:
        with open(path, "rb") as file:
            yield compression.open(file)
    except compression.errors as error:
        raise InputError(
            f"{path}: the compressed data are damaged or cut short ({error}): fetch or make the file again"
        ) from error
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror or error}") from error


def read_utf8_lines(lines: Iterable[bytes], name: str | Path) -> Iterator[tuple[int, str]]:
    """Lines with their numbers from 1, each with its line end; a byte order mark before the first is taken off.

    Args:
        lines: of a stream of decompressed bytes.
        name: of the file, for messages.

    Raises:
        InputError: the bytes are not UTF-8; names the first byte that is not.
    """
    offset = 0
    for number, line in enumerate(lines, start=1):
        try:
            text = line.decode("utf-8")
        except UnicodeDecodeError as error:
            raise InputError(
                f"{name}:{number}: not UTF-8 at byte {offset + error.start} of the text (0x{line[error.start]:02x}): "
                "expected text in UTF-8; convert the file (for example with iconv) or repair that line"
            ) from error
        offset += len(line)
        yield number, text.removeprefix("\ufeff") if number == 1 else text
