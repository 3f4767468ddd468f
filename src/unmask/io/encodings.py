"""Bytes to lines of text: UTF-8, or another encoding by name; what does not decode is reported with its place. And text
to Unicode's normal forms."""

from __future__ import annotations

import codecs
import io
import unicodedata
from collections.abc import Iterable, Iterator
from itertools import compress, islice
from pathlib import Path
from typing import IO, TYPE_CHECKING, Literal

from unmask.errors import InputError

if TYPE_CHECKING:
    from unmask.io.settings import TableSettings

NumberedLines = Iterable[tuple[int, str]]
"""Lines with their ends, numbered from 1."""

SAMPLE_BYTES = 64 * 1024
"""Most bytes looked at to find which encoding fits."""

MOST_LINE_BYTES = 1 << 28
"""Of a line of text: a small compressed file may hold one without an end."""

_SHOWN = ("cp949", "cp932", "gb18030", "cp1252")
"""Encodings in which the beginning of a file that is not UTF-8 is shown, where it decodes."""

_OTHERS = (
    "cp1250 (Central Europe), cp1251 or koi8-r (Russian), cp1253 (Greek), cp1254 (Turkish), cp1255 (Hebrew), cp1256 "
    "(Arabic), cp874 (Thai), euc-jp (Japanese) or big5 (Chinese)"
)
"""What is often right where none of these is."""

LFS_POINTER = "version https://git-lfs"
"""How a file begins that Git LFS has put in place of a large one."""

_PACKED = {
    b"\x1f\x8b": "gzip (.gz)",
    b"\x28\xb5\x2f\xfd": "zstandard (.zst)",
    b"\xfd7zXZ": "xz (.xz)",
    b"PK\x03\x04": "zip (.zip, .xlsx)",
}
"""How files begin that hold no text as they are, and what they are."""

_LONGEST_RUN = 64
"""Of combining marks that are left to `unicodedata`, whose time grows with the square of their number."""

_MARKS_IN_ONE = {sign: unicodedata.normalize("NFD", sign) for sign in "\u0f73\u0f75\u0f81"}
"""Tibetan vowels that are two marks in every normal form, though of class 0, as letters are."""


def _mark(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeDecodeError)
    return "\udcff", error.end


codecs.register_error("unmask.mark", _mark)


class PieceReader(io.RawIOBase):
    """The bytes that an iterator gives, as a stream."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces = pieces
        self._held = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        while not self._held:
            piece = next(self._pieces, None)
            if piece is None:
                return 0
            self._held = memoryview(piece)
        size = min(len(buffer), len(self._held))
        buffer[:size], self._held = self._held[:size], self._held[size:]
        return size


def as_utf8(file: IO[bytes], encoding: str) -> IO[bytes]:
    """The bytes of a file in any encoding, as UTF-8; 0xff, which no UTF-8 holds, marks what is invalid.

    Reading them raises OSError where the byte order mark is missing that the encoding asks for.
    """
    return file if encoding == "utf-8" else io.BufferedReader(PieceReader(_recoded(file, encoding)))


def _recoded(file: IO[bytes], encoding: str) -> Iterator[bytes]:
    decoder = codecs.getincrementaldecoder(encoding)("unmask.mark")
    chunk = b"the first"
    while chunk:
        chunk = file.read(SAMPLE_BYTES)
        try:
            text = decoder.decode(chunk, final=not chunk)
        except UnicodeError as error:  # of UTF-16 and UTF-32; no other passes by `_mark`
            raise OSError(
                f"it begins without the byte order mark of {encoding}: give {encoding}-le or {encoding}-be as its "
                "encoding, or leave the encoding out for UTF-8"
            ) from error
        yield text.encode("utf-8", "surrogateescape")


def lines_of(stream: IO[bytes] | io.BufferedIOBase) -> Iterator[bytes]:
    """The lines of a stream; one of over `MOST_LINE_BYTES`, which `read_utf8_lines` refuses, is cut after that."""
    return iter(lambda: stream.readline(MOST_LINE_BYTES + 1), b"")


def is_text(value: str) -> bool:
    """Whether UTF-8 can hold a value: it has no half of a surrogate pair, as a JSON escape may give."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def read_utf8_lines(
    lines: Iterable[bytes],
    name: str | Path,
    settings: TableSettings | None = None,
    *,
    stream: str = "text",
    undecoded: list[int] | None = None,
) -> Iterator[tuple[int, str]]:
    """Lines with their numbers from 1, each with its line end; a byte order mark before the first is removed.

    Args:
        lines: of a stream of decompressed bytes; of `as_utf8` where the encoding is another one.
        settings: name the encoding; None where there is no option for it.
        stream: what messages count bytes in.
        undecoded: the numbers of lines that do not decode are added here, and they are yielded with surrogates in place
            of their invalid bytes; None refuses them.

    Raises:
        InputError: a line does not decode; names the first byte that does not, and shows it in others. Or the first
            one shows that this is compressed, or a pointer of Git LFS. Or one has over `MOST_LINE_BYTES`.
    """
    offset, first, lines = 0, b"", lines_of(lines) if isinstance(lines, io.BufferedIOBase) else iter(lines)
    for number, line in enumerate(lines, start=1):
        if number == 1 and (packed := next((kind for mark, kind in _PACKED.items() if line.startswith(mark)), None)):
            raise InputError(
                f"{name}:1: this is {packed}, not text: give a compressed file a name that ends in .gz, .bz2, .xz or "
                ".zst; save the sheet of a workbook as .csv"
            )
        if len(line) > MOST_LINE_BYTES:
            raise InputError(
                f"{name}:{number}: a line of over {MOST_LINE_BYTES:,} bytes: expected text, with line ends; in "
                "place of a .json in one line give a .jsonl, an object a line"
            )
        try:
            text = line.decode("utf-8")
        except UnicodeDecodeError as error:
            if undecoded is None:
                sample = (first[:1000] + line + b"".join(islice(lines, 200)))[:SAMPLE_BYTES]
                what = _describe_undecodable(line, offset, error, sample, settings, stream)
                raise InputError(f"{name}:{number}: {what}") from error
            undecoded.append(number)
            text = line.decode("utf-8", "surrogateescape")
        offset += len(line)
        if number == 1 and text.startswith(LFS_POINTER):
            raise InputError(
                f"{name}:1: a pointer of Git LFS, not the file: fetch it with `git lfs pull` in that clone"
            )
        first = first or line
        yield number, text.removeprefix("\ufeff") if number == 1 else text


def _describe_undecodable(
    line: bytes, offset: int, error: UnicodeDecodeError, sample: bytes, settings: TableSettings | None, stream: str
) -> str:
    if settings is not None and settings.encoding != "utf-8":
        return (
            f"not {settings.encoding}: expected text in that encoding, as all files here; name the file's own with "
            f"{settings.option('encoding', 'NAME')}, leave it out for UTF-8, or convert the file (for example with "
            "iconv)"
        )
    what = (
        f"not UTF-8 at byte {offset + error.start} of the {stream} (0x{line[error.start]:02x}): expected text in "
        "UTF-8; convert the file (for example with iconv) or repair that line"
    )
    shown = ", ".join(f"{_excerpt(line, sample, each)!r} in {each}" for each in _encodings_of(sample))
    if settings is not None:
        what += f"; or give its encoding, {settings.option('encoding', 'NAME')}"
    return f"{what}. It reads as {shown}; else it is often {_OTHERS}" if shown else f"{what}; it is often {_OTHERS}"


def _encodings_of(sample: bytes) -> list[str]:
    """Encodings in which bytes that are not UTF-8 decode."""
    if sample.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return ["utf-16"]
    if (num_zeros := sample.count(0)) > max(3, len(sample) / 20):
        return ["utf-16-le" if sample[1::2].count(0) * 2 > num_zeros else "utf-16-be"]
    return [each for each in _SHOWN if _decodes(sample, each)]


def _decodes(sample: bytes, encoding: str) -> bool:
    try:
        codecs.getincrementaldecoder(encoding)().decode(sample)  # which leaves out a character cut at the end
    except UnicodeDecodeError:
        return False
    return True


def _excerpt(line: bytes, sample: bytes, encoding: str) -> str:
    """The line as it reads in an encoding, from shortly before its first character beyond ASCII."""
    content = sample if encoding.startswith("utf-16") else line  # in which a line does not end where its line feed does
    [text, *_] = [*content.decode(encoding, "replace").strip("\ufeff").splitlines(), ""]
    beyond = next((place for place, char in enumerate(text) if char > "\x7f"), 0)
    return text[max(0, beyond - 20) :][:40]


def normalized(form: Literal["NFC", "NFD"], text: str) -> str:
    """`unicodedata.normalize`, in time that grows with the length of the text, whatever marks it has.

    It moves each mark past those before it that are of a higher class, one by one. Here the marks of a long run are in
    the order of their classes before.
    """
    class_of = unicodedata.combining
    some = set(text[::_LONGEST_RUN]) if len(text) > _LONGEST_RUN else set()  # a longer run has a mark among these
    if not any(map(class_of, some)) and some.isdisjoint(_MARKS_IN_ONE):
        return unicodedata.normalize(form, text)
    for sign, marks in _MARKS_IN_ONE.items():
        text = text.replace(sign, marks)
    pieces, end = [], 0
    for place in compress(range(0, len(text), _LONGEST_RUN), map(class_of, text[::_LONGEST_RUN])):
        if place < end:
            continue
        start, stop = place, place + 1
        while start > end and class_of(text[start - 1]):
            start -= 1
        while stop < len(text) and class_of(text[stop]):
            stop += 1
        if stop - start > _LONGEST_RUN:
            pieces += [text[end:start], *sorted(text[start:stop], key=class_of)]
            end = stop
    return unicodedata.normalize(form, "".join([*pieces, text[end:]]) if pieces else text)
