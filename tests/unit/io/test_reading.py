"""Compressed files: they are read whole, frame after frame; what is damaged or cut is never taken for the whole."""

from __future__ import annotations

import gzip
import io
import lzma
import tracemalloc
import unicodedata
from pathlib import Path

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from support.corpora import COMPRESS, COMPRESSED
from support.files import write
from unmask.errors import InputError
from unmask.io.encodings import read_utf8_lines
from unmask.io.reading import COMPRESSIONS, DamagedData, detect_compression, open_input, split_suffixes

TEXT = "\n".join(f"line {number} of some length" for number in range(3_000)).encode()


def unpack(packed: bytes, suffix: str) -> bytes:
    return COMPRESSIONS[suffix].open(io.BytesIO(packed)).read()


def test_every_compression_is_tested() -> None:
    assert COMPRESS.keys() == COMPRESSIONS.keys()


@pytest.mark.parametrize("suffix", COMPRESSED)
@given(st.lists(st.binary(max_size=200), max_size=5))
def test_frames_one_after_another_are_one_stream(suffix: str, frames: list[bytes]) -> None:
    assert unpack(b"".join(map(COMPRESS[suffix], frames)), suffix) == b"".join(frames)


@pytest.mark.parametrize("suffix", COMPRESSED)
@pytest.mark.parametrize("whole_frames", [0, 1])
def test_a_file_cut_anywhere_is_damaged(suffix: str, whole_frames: int) -> None:
    whole = COMPRESS[suffix](TEXT) * whole_frames
    packed = COMPRESS[suffix](TEXT)
    for kept in (*range(1, 40), *range(40, len(packed) - 40, 97), *range(len(packed) - 40, len(packed))):
        with pytest.raises(DamagedData):
            unpack(whole + packed[:kept], suffix)


@pytest.mark.parametrize("suffix", COMPRESSED)
def test_what_follows_a_frame_must_be_one(suffix: str) -> None:
    """Python's own readers of .bz2 and .xz end without a word here, and lose what follows."""
    packed = COMPRESS[suffix](b"first") + b"X" + COMPRESS[suffix](b"second")
    with pytest.raises(DamagedData):
        unpack(packed, suffix)


@pytest.mark.parametrize("suffix", COMPRESSED)
def test_zero_bytes_after_a_frame_are_padding_where_the_format_says_so(suffix: str) -> None:
    packed = COMPRESS[suffix](b"first") + bytes(10_000) + COMPRESS[suffix](b"second") + bytes(512)
    if suffix in (".gz", ".xz"):
        assert unpack(packed, suffix) == b"firstsecond"
    else:
        with pytest.raises(DamagedData):
            unpack(packed, suffix)


@pytest.mark.parametrize("suffix", COMPRESSED)
def test_a_small_file_that_unpacks_to_much_takes_little_memory(suffix: str) -> None:
    packed = COMPRESS[suffix](bytes(400 * 2**20) if suffix in (".zst", ".gz") else bytes(50 * 2**20))
    tracemalloc.start()
    stream = COMPRESSIONS[suffix].open(io.BytesIO(packed))
    assert stream.read(10) == bytes(10)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 150 * 2**20  # 128 MiB is what 4 KiB of zstd can become; bzip2 gets 30 MiB out of it, xz 28


@pytest.mark.parametrize("suffix", COMPRESSED)
def test_a_stream_without_a_name_tells_its_compression(suffix: str) -> None:
    assert detect_compression(COMPRESS[suffix](b"x")[:6]) is COMPRESSIONS[suffix]


@pytest.mark.parametrize("head", [b"", b"B", b"plain", b"\xef\xbb\xbftext", '{"text": 1}'.encode("utf-16")])
def test_other_streams_are_plain(head: bytes) -> None:
    assert detect_compression(head) is COMPRESSIONS[""]


def test_a_leading_skippable_frame_is_passed_over() -> None:
    """As `pzstd` writes it."""
    packed = b"\x50\x2a\x4d\x18" + (4).to_bytes(4, "little") + bytes(4) + COMPRESS[".zst"](b"text")
    assert detect_compression(packed[:6]) is COMPRESSIONS[".zst"]
    assert unpack(packed, ".zst") == b"text"


def test_suffixes() -> None:
    names = ("a.jsonl.zst", "A.TXT.GZ", "a.zst", "a", "1.2.csv")
    suffixes = [(".jsonl", ".zst"), (".txt", ".gz"), ("", ".zst"), ("", ""), (".csv", "")]
    assert [split_suffixes(Path(name)) for name in names] == suffixes


def test_failures_of_a_file_name_it(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"gone\.txt: cannot be read: No such file"), open_input(tmp_path / "gone.txt"):
        pass
    path = write(tmp_path / "a.txt.xz", b"plain text after all\n")
    with pytest.raises(InputError, match=r"a\.txt\.xz: the compressed data are damaged"), open_input(path) as file:
        file.read()


def test_lines_are_utf8_and_their_byte_order_mark_goes() -> None:
    lines = [b"\xef\xbb\xbfone\r\n", b"\xef\xbb\xbftwo"]
    assert list(read_utf8_lines(lines, "a")) == [(1, "one\r\n"), (2, "\ufefftwo")]
    with pytest.raises(InputError, match=r"^a:2: not UTF-8 at byte 6 of the text \(0xff\): expected text in UTF-8"):
        list(read_utf8_lines([b"one\n", b"tw\xff"], "a"))


def test_a_pointer_of_git_lfs_is_no_text() -> None:
    pointer = [b"version https://git-lfs.github.com/spec/v1\n", b"oid sha256:0000\n", b"size 17\n"]
    told = r"^a\.txt:1: a pointer of Git LFS, not the file: fetch it with `git lfs pull`"
    with pytest.raises(InputError, match=told):
        list(read_utf8_lines(pointer, "a.txt"))
    assert len(list(read_utf8_lines([b"see:\n", *pointer], "a.txt"))) == 4


@pytest.mark.parametrize(
    ("content", "kind"),
    [
        (gzip.compress(b"text\na\n"), r"gzip \(\.gz\)"),
        (lzma.compress(b"text\na\n"), r"xz \(\.xz\)"),
        (zstandard.compress(b"text\na\n"), r"zstandard \(\.zst\)"),
        (b"PK\x03\x04\x14\0\x06\0\x08\0", r"zip \(\.zip, \.xlsx\)"),
    ],
    ids=["gzip", "xz", "zstandard", "zip"],
)
def test_what_is_packed_is_no_text_in_any_encoding(content: bytes, kind: str) -> None:
    with pytest.raises(InputError, match=rf"^a\.csv:1: this is {kind}, not text: give a compressed file a name that"):
        list(read_utf8_lines(content.splitlines(keepends=True), "a.csv"))


def test_a_file_whose_name_is_written_decomposed_is_named(tmp_path: Path) -> None:
    write(tmp_path / unicodedata.normalize("NFD", "영화.csv"), "text")
    told = r"No such file or directory \(there is .*, which looks the same: name it by"
    with pytest.raises(InputError, match=told), open_input(tmp_path / "영화.csv"):
        pass
