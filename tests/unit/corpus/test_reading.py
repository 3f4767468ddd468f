"""Reading: what is written in a format comes back from it, through every compression; bad input is told by place, or
passed over and counted."""

from __future__ import annotations

import json
import tempfile
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support import files
from support.commands import type_in
from support.corpora import COMPRESS, COMPRESSED, SKIP, read, refused
from unmask.corpus.documents import CorpusCounts, Document
from unmask.corpus.files import FORMAT_OF_SUFFIX
from unmask.corpus.formats import plain_text
from unmask.corpus.reading import CORPUS_READERS, CorpusReader, read_files
from unmask.corpus.settings import ReadingSettings
from unmask.corpus.source import CorpusFile
from unmask.io import encodings
from unmask.io.reading import COMPRESSIONS, split_suffixes


def write(path: Path, content: bytes) -> Path:
    """Compressed, as the suffix says."""
    return files.write(path, COMPRESS[split_suffixes(path)[1]](content))


def texts(documents: list[Document]) -> list[str]:
    return [document.text for document in documents]


def test_every_format_has_a_reader() -> None:
    formats = get_args(ReadingSettings.model_fields["format"].annotation)
    assert sorted(formats) == sorted(["auto", *CORPUS_READERS])
    assert set(FORMAT_OF_SUFFIX.values()) <= CORPUS_READERS.keys()


def test_a_binary_format_is_given_the_bytes_as_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In text the first two would be passed over, as a mark of UTF-16, and the others decoded."""

    def read_bytes(source: CorpusFile) -> Iterator[Document]:
        yield Document(source.stream.read().hex(), source.name)

    monkeypatch.setitem(FORMAT_OF_SUFFIX, ".bin", "bin")
    monkeypatch.setitem(CORPUS_READERS, "bin", CorpusReader(read_bytes, is_binary=True))
    (tmp_path / "a.bin").write_bytes(b"\xff\xfeA\x00\xe9\x00")
    documents, _ = read(tmp_path / "a.bin")
    assert texts(documents) == ["fffe4100e900"]


# ------------------------------------------------------------------------------------------- what is written comes back

ANY_TEXT = st.text(st.characters(codec="utf-8"))
LINE = st.text(st.characters(codec="utf-8", exclude_characters="\r\n\ufeff"), min_size=1).filter(lambda t: t.strip())
PARAGRAPHS = st.lists(LINE, min_size=1, max_size=4).map("\n".join)


def texts_of(content: bytes, name: str) -> list[str]:
    """The texts of a file with that content, whose bytes are all counted."""
    with tempfile.TemporaryDirectory() as folder:
        path = write(Path(folder, name), content)
        documents, counts = read(path)
    assert counts.file_bytes == len(COMPRESS[split_suffixes(path)[1]](content))
    assert counts == CorpusCounts(files=1, empty_files=int(not documents), file_bytes=counts.file_bytes)
    return texts(documents)


@given(st.lists(ANY_TEXT), st.sampled_from(sorted(COMPRESS)), st.booleans())
def test_jsonl_holds_any_text(written: list[str], compression: str, escaped: bool) -> None:
    lines = (json.dumps({"n": [1], "text": text}, ensure_ascii=escaped) + "\n" for text in written)
    assert texts_of("".join(lines).encode(), f"a.jsonl{compression}") == written


@given(
    st.lists(PARAGRAPHS), st.sampled_from(sorted(COMPRESS)), st.sampled_from(["\n\n", "\r\n\r\n", "\r\r", "\n \t\n\n"])
)
def test_txt_holds_documents_between_blank_lines(written: list[str], compression: str, between: str) -> None:
    assert texts_of(between.join(written).encode(), f"a.txt{compression}") == written


@given(PARAGRAPHS, PARAGRAPHS)
def test_a_txt_file_as_one_document_keeps_its_blank_lines(first: str, second: str) -> None:
    text = f"{first}\n\n\n{second}"
    with tempfile.TemporaryDirectory() as folder:
        path = write(Path(folder, "a.txt"), text.encode() + b"\r\n")
        assert texts(read(path, ReadingSettings(txt_documents="file"))[0]) == [text]


def test_a_lone_carriage_return_ends_a_line(tmp_path: Path) -> None:
    path = write(tmp_path / "a.txt", b"one\rtwo\r \r\rthree\r\r\n")
    assert read(path)[0] == [Document("one\ntwo", f"{path}:1"), Document("three", f"{path}:1")]
    assert texts(read(path, ReadingSettings(txt_documents="file"))[0]) == ["one\ntwo\n \n\nthree"]


# ---------------------------------------------------------------------------------------------------------- the formats


def test_places_are_the_lines_on_which_documents_begin(tmp_path: Path) -> None:
    path = write(tmp_path / "a.txt", b"\n \t\n\none\r\ntwo\r\n\r\n\x0c\nthree\n\n\n")
    assert read(path)[0] == [Document("one\ntwo", f"{path}:4"), Document("three", f"{path}:8")]
    path = write(tmp_path / "a.jsonl", b'\n{"text": 1, "body": "one"}\n  \n{"body": "two"}')
    documents = [Document("one", f"{path}:2"), Document("two", f"{path}:4")]
    assert read(path, ReadingSettings(column="body"))[0] == documents


@pytest.mark.parametrize("name", ["a.txt", "a.md", "a.jsonl", "a.csv", "a.tsv"])
def test_a_byte_order_mark_at_the_beginning_goes(tmp_path: Path, name: str) -> None:
    content = {".jsonl": '\ufeff{"text": "one"}', ".csv": '\ufefftext\n"one"', ".tsv": "\ufefftext\none"}
    path = write(tmp_path / name, content.get(Path(name).suffix, "\ufeffone").encode())
    assert texts(read(path)[0]) == ["one"]


def test_a_format_that_is_named_goes_before_the_suffix(tmp_path: Path) -> None:
    path = write(tmp_path / "a.json.gz", b'{"text": "one"}\n')
    assert texts(read(path, ReadingSettings(format="jsonl"))[0]) == ["one"]
    assert texts(read(path, ReadingSettings(format="txt"))[0]) == ['{"text": "one"}']


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_standard_input_is_text_or_what_is_named_and_its_compression_is_seen(
    monkeypatch: pytest.MonkeyPatch, compression: str
) -> None:
    given = COMPRESS[compression](b"one\n\ntwo\n")
    type_in(monkeypatch, given)
    documents, counts = read(Path("-"))
    assert documents == [Document("one", "standard input:1"), Document("two", "standard input:3")]
    assert (counts.files, counts.file_bytes) == (1, len(given))
    type_in(monkeypatch, COMPRESS[compression](b"text,n\none,1\n"))
    assert texts(read(Path("-"), ReadingSettings(format="csv"))[0]) == ["one"]


# ------------------------------------------------------------------------------------------------------ size and memory


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_memory_does_not_grow_with_the_file(tmp_path: Path, compression: str) -> None:
    random = Random(0)
    content = b"".join(b'{"text": "%s"}\n' % random.randbytes(4_000).hex().encode() for _ in range(1_000))  # 8 MB
    path = write(tmp_path / f"a.jsonl{compression}", content)
    counts = CorpusCounts()
    tracemalloc.start()
    assert sum(len(document.text) for document in read_files([path], counts)) == 8_000_000
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 6e6  # most for .bz2, which unpacks blocks of 900 kB


@pytest.mark.parametrize("name", ["a.jsonl.zst", "a.txt", "a.csv", "a.tsv"])
def test_a_line_of_100_megabytes_is_read_and_counted(tmp_path: Path, name: str) -> None:
    text = b"word " * 20_000_000
    content = {".jsonl": b'{"text": "%s"}\n' % text, ".txt": text}.get(split_suffixes(Path(name))[0], b"text\n" + text)
    documents, counts = read(write(tmp_path / name, content))
    assert [len(document.text) for document in documents] == [len(text)]
    assert counts.long_lines == 1


def test_a_document_of_a_txt_is_kept_once(tmp_path: Path) -> None:
    path = write(tmp_path / "a.txt", b"five words in this line\n" * 100_000 + b"\nanother\n")
    tracemalloc.start()
    documents = read_files([path], CorpusCounts())
    size = len(next(documents).text)
    kept = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert size < kept < 2 * size  # a buffer is held too; with its lines it would be over 4 times its size


def test_a_txt_that_is_one_large_document_is_named_once_in_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(plain_text, "LARGE_DOCUMENT", 10)
    path = write(tmp_path / "a.txt", b"of five\n\n" * 3 + b"one\ntwo\n\n" + b"a\n" * 12 + b"\n" + b"b\n" * 12)
    assert len(read(path)[0]) == 6
    [message] = caplog.messages
    assert message.startswith(f"{path}:10: over 10 characters without a blank line")
    assert len(read(path)[0]) == 6, "a corpus is read several times"
    assert read(path, ReadingSettings(txt_documents="file"))[0]
    assert len(caplog.messages) == 1


def test_many_empty_documents_stream(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl.gz", b'{"text": ""}\n' * 50_000)
    counts = CorpusCounts()
    tracemalloc.start()
    assert sum(not document.text for document in read_files([path], counts)) == 50_000
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert counts.empty_files == 0
    assert peak < 5e6  # as documents they would be 10 MB


@pytest.mark.parametrize("suffix", [".txt", ".jsonl"])
@pytest.mark.parametrize("compression", COMPRESS)
def test_files_without_any_document_are_counted(tmp_path: Path, suffix: str, compression: str) -> None:
    first, second, third = (tmp_path / f"{number}{suffix}{compression}" for number in range(3))
    paths = [write(first, b""), write(second, b" \n\n"), files.write(third)]
    counts = CorpusCounts()
    assert not list(read_files(paths, counts))
    assert (counts.files, counts.empty_files, counts.skipped) == (3, 3, {})


# ------------------------------------------------------------------------------------------------------------ bad input


def skipped(path: Path) -> tuple[list[str], list[tuple[str, str]]]:
    """The texts that are left, and what is passed over: places and reasons."""
    listed: list[tuple[str, str]] = []
    counts = CorpusCounts(on_skip=lambda source, reason: listed.append((source, reason)))
    left = texts(list(read_files([path], counts, SKIP)))
    assert sum(counts.skipped.values()) == len(listed)
    assert {reason for _, reason in listed} == counts.skipped.keys()
    return left, listed


@pytest.mark.parametrize("compression", COMPRESSIONS)
@pytest.mark.parametrize("form", [".txt", ".jsonl", ".csv", ".tsv"])
def test_text_that_is_not_utf8_is_told_with_file_line_and_byte(tmp_path: Path, form: str, compression: str) -> None:
    first = {".txt": "가나\n\n", ".jsonl": '{"text": "a"}\n', ".csv": "text\n", ".tsv": "text\n"}[form].encode()
    line = first.count(b"\n") + 1
    bad, last = {".jsonl": (b'{"text": "\xb0\xa1"}\n', b'{"text": "z"}\n')}.get(form, (b"ok \xff\n", b"\nz\n"))
    path = write(tmp_path / f"a{form}{compression}", first + bad + last)
    place = len(first) + {".jsonl": 10}.get(form, 3)
    stream = "decompressed text" if compression else "file"
    assert f"{path}:{line}: not UTF-8 at byte {place} of the {stream} (0x" in refused(path)
    left, listed = skipped(path)
    assert left[-1] == "z"
    assert listed == [(f"{path}:{line}", "not UTF-8")]


def test_of_mixed_encodings_whole_documents_are_passed_over_once(tmp_path: Path) -> None:
    path = write(tmp_path / "a.txt", "가\n나\n\n".encode("cp949") + "다\n\n".encode() + "café\n".encode("latin-1"))
    assert skipped(path) == (["다"], [(f"{path}:1", "not UTF-8"), (f"{path}:6", "not UTF-8")])


@pytest.mark.parametrize(
    ("content", "line"),
    [
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", 1),
        (b"PK\x03\x04 a workbook\n", 1),
        (b"a\n\n" + b"b" * 2000 + b"\n\nc\n", 3),
    ],
    ids=["a pointer of Git LFS", "packed", "a long line"],
)
def test_a_file_that_is_given_up_is_counted_as_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes, line: int
) -> None:
    monkeypatch.setattr(encodings, "MOST_LINE_BYTES", 1000)
    path = write(tmp_path / "a.txt", content)
    assert skipped(path) == (["a"][: line - 1], [(f"{path}:{line}", "unreadable file")])


@pytest.mark.parametrize(
    ("line", "reason", "told"),
    [
        (b'{"text": "cut', "not JSON", "not JSON ("),
        (b'["text"]', "not a JSON object", 'expected a JSON object, such as {"text": "..."}; found ["text"]'),
        (b'"text"', "not a JSON object", 'expected a JSON object, such as {"text": "..."}; found "text"'),
        (b"null", "not a JSON object", 'expected a JSON object, such as {"text": "..."}; found null'),
        (b'{"txt": "a"}', "no such field", "no field 'text' (there is 'txt')"),
        (b"{}", "no such field", "no field 'text' (there is none at all)"),
        (b'{"text": 5}', "not a string", "field 'text' is number, not a string"),
        (b'{"text": null}', "not a string", "field 'text' is null, not a string"),
        (b"[" * 100_000, "not JSON", "not JSON"),
        (b'{"text": "\\ud83d"}', "half a surrogate pair", "half of a surrogate pair, \\ud83d"),
        (b'{"text": "\\udc80"}', "half a surrogate pair", "half of a surrogate pair, \\udc80"),
    ],
)
def test_a_wrong_json_line_is_told_with_its_number(tmp_path: Path, line: bytes, reason: str, told: str) -> None:
    path = write(tmp_path / "a.jsonl", b'{"text": "fine"}\n' + line + b'\n{"text": "too"}\n')
    assert refused(path).startswith(f"{path}:2: {told}")
    assert skipped(path) == (["fine", "too"], [(f"{path}:2", reason)])


def test_a_line_that_does_not_decode_says_nothing_of_the_next(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", b'{"text": "fine", "x": "\xff"}\n{"text": "\\ud83d"}\n')
    assert skipped(path) == (["fine"], [(f"{path}:2", "half a surrogate pair")])


def test_what_a_text_begins_with_is_looked_at_in_bounded_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(encodings, "MOST_LINE_BYTES", 1 << 20)
    path = write(tmp_path / "a.txt.gz", b"x" * (1 << 26))
    tracemalloc.start()
    assert skipped(path) == ([], [(f"{path}:1", "unreadable file")])
    assert tracemalloc.get_traced_memory()[1] < 1 << 24
    tracemalloc.stop()


@pytest.mark.parametrize("compression", COMPRESSED)
def test_of_a_file_cut_short_what_came_before_stays(tmp_path: Path, compression: str) -> None:
    content = b"".join(b'{"text": "document %d"}\n' % number for number in range(60_000))
    path = write(tmp_path / f"a.jsonl{compression}", content)
    path.write_bytes(path.read_bytes()[:-20])
    assert refused(path).startswith(f"{path}: the compressed data are damaged or cut short (")
    left, listed = skipped(path)
    assert listed == [(str(path), "damaged file")]
    assert left == [f"document {number}" for number in range(len(left))]
    # bzip2 gives its text in blocks of 900 kB, of which the last is lost
    assert len(left) > (30_000 if compression == ".bz2" else 50_000)


@pytest.mark.parametrize("compression", COMPRESSED)
def test_a_file_that_is_not_what_its_suffix_says_is_told(tmp_path: Path, compression: str) -> None:
    path = files.write(tmp_path / f"a.txt{compression}", b"plain text after all\n")
    assert "damaged or cut short" in refused(path)
    assert skipped(path) == ([], [(str(path), "damaged file")])


def test_a_file_that_vanished_is_told(tmp_path: Path) -> None:
    path = tmp_path / "gone.txt"
    assert refused(path).startswith(f"{path}: cannot be read: No such file")
    assert skipped(path) == ([], [(str(path), "unreadable file")])


def test_after_a_file_that_fails_the_next_is_read(tmp_path: Path) -> None:
    bad = files.write(tmp_path / "a.txt.gz", b"no archive")
    counts = CorpusCounts()
    documents = list(read_files([bad, write(tmp_path / "b.txt", b"fine")], counts, SKIP))
    assert texts(documents) == ["fine"]
    assert (counts.files, counts.empty_files, counts.skipped) == (2, 1, {"damaged file": 1})
