"""Bytes to lines of text: UTF-8, or another encoding by name; what does not decode is reported with its place. And text
to Unicode's normal forms."""

from __future__ import annotations

import codecs
import io
import re
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

_IN_WORD = re.compile(rb"(?<=[A-Za-z])[\x80-\xff]{1,2}(?![\x80-\xff])|(?<![\x80-\xff])[\x80-\xff]{1,2}(?=[A-Za-z])")
"""One or two bytes beyond ASCII beside an ASCII letter, as in Western European languages."""

_RARE_HAN = "".join(
    bytes((row, cell)).decode("gb2312", "ignore") for row in range(0xD8, 0xF8) for cell in range(0xA1, 0xFF)
)
_USUAL = {
    "cp1252": "[À-ÏÑ-ÜßŒœŠšŽžà-ïñ-üÿ‘’“”„–—…•€£§©®°´·«»¡¿\u00a0]",  # Turkish has others for ÐÝÞðýþ
    "cp949": "[가-힣ㅋㅎㅠㅜㅡㅉㄷㅇ]",
    "cp932": "[ぁ-ヿ一-鿿]",
    "gb18030": f"(?![{_RARE_HAN}])[一-鿿㐀-䶿]",
}
"""Encodings to try, in order, and what nearly all letters beyond ASCII are in text that is written in them."""

_COMMON_HANGUL = "이다는에을의가고를은지하한로기서도"
"""A quarter to a third of what Korean is written in."""

_OTHERS = (
    "cp1252 (Western Europe), cp1250 (Central Europe), cp1251 or koi8-r (Russian), cp1253 (Greek), cp1254 (Turkish), "
    "cp1255 (Hebrew), cp1256 (Arabic), cp874 (Thai), cp949 (Korean), cp932 or euc-jp (Japanese), gb18030 or big5 "
    "(Chinese)"
)
"""What is often right where none of these fits."""

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

_MARKED = re.compile("\udcff([\u0100-\u01ff])")
"""What `as_utf8` makes of a byte that does not decode: 0xff, and the character of that number after U+0100."""


def _mark(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeDecodeError)
    invalid = error.object[error.start : error.end]
    return "".join(f"\udcff{chr(0x100 + byte)}" for byte in invalid), error.end


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
        InputError: a line does not decode; names the first byte that does not, and an encoding that fits. Or the first
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
                f"{name}:{number}: a line of over {MOST_LINE_BYTES:,} bytes: expected text, with line ends"
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
        what = (
            f"not {settings.encoding}: expected text in that encoding; name the file's own with "
            f"{settings.option('encoding', 'NAME')}, or leave it out for UTF-8"
        )
        line, sample = (_as_it_was(content, settings.encoding) for content in (line, sample))
        fitting = "utf-8" if _decoded(sample, "utf-8") is not None else fitting_encoding(sample)
    else:
        what = (
            f"not UTF-8 at byte {offset + error.start} of the {stream} (0x{line[error.start]:02x}): expected text in "
            "UTF-8; convert the file (for example with iconv) or repair that line"
        )
        fitting = fitting_encoding(sample)
    if fitting is None and settings is not None and settings.encoding == "utf-8":
        return f"{what}; or give its encoding, {settings.option('encoding', 'NAME')}: often {_OTHERS}"
    if fitting is None or (settings is not None and fitting == settings.encoding):
        return what
    read = sample if fitting.startswith("utf-16") else line  # in UTF-16 a line does not end where its line feed does
    what += f". It reads as {fitting}: {_excerpt(read, fitting)!r}"
    is_unclear = fitting == "gb18030" and _is_hangul(sample)
    if is_unclear:
        what += f", and as cp949: {_excerpt(read, 'cp949')!r}"
    if settings is None:
        return what
    if is_unclear:
        options = (settings.option("encoding", each) for each in (fitting, "cp949"))
        return f"{what}: give the right one, {' or '.join(options)}"
    what += f": if that is right, give {settings.option('encoding', fitting)}"
    other, one = (fitting, "utf-8") if settings.encoding == "utf-8" else (settings.encoding.replace("_", "-"), fitting)
    return f"{what}. All files here are read in one encoding: convert those in another (iconv -f {other} -t {one})"


def _excerpt(content: bytes, encoding: str) -> str:
    """The first line as it reads in an encoding, from shortly before its first character beyond ASCII."""
    [line, *_] = [*content.decode(encoding, "replace").strip("\ufeff").splitlines(), ""]
    beyond = next((place for place, char in enumerate(line) if char > "\x7f"), 0)
    return line[max(0, beyond - 20) :][:40]


def _is_hangul(sample: bytes) -> bool:
    """Whether at least half of the letters are Hangul as cp949, and a tenth of these are common: of Korean with Hanja,
    and of some Chinese. (Thai would be Hangul, too, of rare syllables.)"""
    beyond = [char for char in _decoded(sample, "cp949") or "" if char > "\x7f" and _is_letter(char)]
    hangul = [char for char in beyond if "가" <= char <= "힣"]
    return 2 * len(hangul) >= len(beyond) > 0 and 10 * sum(map(_COMMON_HANGUL.__contains__, hangul)) >= len(hangul)


def _as_it_was(content: bytes, encoding: str) -> bytes:
    """The bytes of a file that `as_utf8` has read in an encoding, those that did not decode too."""
    encoder = codecs.getincrementalencoder(encoding)("replace")
    parts = _MARKED.split(content.decode("utf-8", "surrogateescape"))
    return b"".join(
        bytes([ord(part) - 0x100]) if number % 2 else encoder.encode(part) for number, part in enumerate(parts)
    )


def _decoded(sample: bytes, encoding: str) -> str | None:
    try:
        return codecs.getincrementaldecoder(encoding)().decode(sample)  # which leaves out a character cut at the end
    except UnicodeDecodeError:
        return None


def fitting_encoding(sample: bytes) -> str | None:
    """The encoding that bytes which are not UTF-8, or hold NUL bytes, are probably in; None if none fits."""
    if sample.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "utf-16"
    if (num_zeros := sample.count(0)) > max(3, len(sample) / 20):
        return "utf-16-le" if sample[1::2].count(0) * 2 > num_zeros else "utf-16-be"
    num_beyond = sum(byte > 0x7F for byte in sample)
    is_western = 2 * sum(map(len, _IN_WORD.findall(sample))) >= num_beyond
    for encoding, usual in _USUAL.items():
        if (encoding == "cp1252" and not is_western) or (text := _decoded(sample, encoding)) is None:
            continue
        beyond = [char for char in text if char > "\x7f" and (encoding == "cp1252" or _is_letter(char))]
        is_usual = beyond and len(re.findall(usual, "".join(beyond))) >= 0.9 * len(beyond)
        # Of two bytes each; few of the second ones are ASCII letters.
        if is_usual and (encoding in ("cp1252", "cp932") or 1.3 * len(beyond) < num_beyond):
            return encoding
    return "cp949" if not is_western and _is_hangul(sample) else None


def _is_letter(char: str) -> bool:
    """Whether it is a letter, or of the private use that a wrong encoding makes of letters."""
    return char.isalpha() or unicodedata.category(char) == "Co"


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
