"""Corpus files: which are found, what documents they hold, what is cleaned and counted, what is refused and where."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
import tracemalloc
import unicodedata
from collections.abc import Callable
from pathlib import Path

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from unmask.data.corpus import (
    COMPRESSIONS,
    CORPUS_READERS,
    CorpusCounts,
    Document,
    ReaderSettings,
    clean_text,
    find_files,
    format_of,
    read_documents,
)
from unmask.errors import InputError

COMPRESS: dict[str, Callable[[bytes], bytes]] = {
    "": bytes,
    ".gz": gzip.compress,
    ".zst": zstandard.ZstdCompressor().compress,
}


def read(path: Path, settings: ReaderSettings | None = None) -> tuple[list[Document], CorpusCounts]:
    counts = CorpusCounts()
    return list(read_documents([path], counts, settings)), counts


def write(path: Path, content: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(COMPRESS[format_of(path)[1]](content))
    return path


def texts(documents: list[Document]) -> list[str]:
    return [document.text for document in documents]


# ---------------------------------------------------------------------------------------------------------- reading


@pytest.mark.parametrize("compression", COMPRESSIONS)
@pytest.mark.parametrize("form", CORPUS_READERS)
def test_every_format_reads_through_every_compression(tmp_path: Path, form: str, compression: str) -> None:
    contents = {".txt": "하나\n둘\n\nthree\n", ".jsonl": '{"text": "하나\\n둘"}\n{"text": "three", "n": [1]}\n'}
    path = write(tmp_path / f"corpus{form}{compression}", contents[form].encode())
    documents, counts = read(path)
    assert texts(documents) == ["하나\n둘", "three"]
    second_line = {".txt": 4, ".jsonl": 2}[form]
    assert [document.source for document in documents] == [f"{path}:1", f"{path}:{second_line}"]
    assert (counts.files, counts.documents, counts.characters, counts.utf8_bytes) == (1, 2, 9, 15)
    assert counts.file_bytes == path.stat().st_size


def test_txt_documents_are_separated_by_blank_lines(tmp_path: Path) -> None:
    path = write(tmp_path / "a.txt", b"\n \t\n\none\r\ntwo\r\n\r\n\x0c\nthree\n\n\n")
    documents, _ = read(path)
    assert documents == [Document("one\ntwo", f"{path}:4"), Document("three", f"{path}:8")]


def test_txt_file_as_one_document_keeps_its_blank_lines(tmp_path: Path) -> None:
    path = write(tmp_path / "a.txt", b"one\n\ntwo\r\n")
    assert texts(read(path, ReaderSettings(txt_documents="file"))[0]) == ["one\n\ntwo"]


def test_jsonl_takes_the_named_field_and_passes_over_blank_lines(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", b'\n{"text": 1, "body": "one"}\n  \n{"body": "two"}')
    documents, _ = read(path, ReaderSettings(text_field="body"))
    assert documents == [Document("one", f"{path}:2"), Document("two", f"{path}:4")]


def test_several_zstandard_frames_and_gzip_members_are_one_stream(tmp_path: Path) -> None:
    for suffix in (".gz", ".zst"):
        path = tmp_path / f"a.txt{suffix}"
        path.write_bytes(COMPRESS[suffix](b"one\n\nt") + COMPRESS[suffix](b"") + COMPRESS[suffix](b"wo\n"))
        assert texts(read(path)[0]) == ["one", "two"]


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_memory_does_not_grow_with_the_file(tmp_path: Path, compression: str) -> None:
    line = json.dumps({"text": "the same words again " * 40}).encode() + b"\n"
    path = write(tmp_path / f"a.jsonl{compression}", line * 40_000)  # 34 MB
    tracemalloc.start()
    documents = read_documents([path], CorpusCounts())
    for _ in range(5_000):  # enough to show that the file is not unpacked at once; tracing all of it would take long
        next(documents)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 20e6  # most for .zst: what 1 KiB of so repetitive a file unpacks to


# -------------------------------------------------------------------------------------------- cleaning and counting


def clean(text: str) -> tuple[str, int, int]:
    counts = CorpusCounts()
    return clean_text(text, counts), counts.control_characters, counts.zero_width_characters


@pytest.mark.parametrize(
    ("text", "cleaned", "num_control", "num_zero_width"),
    [
        ("plain\ttext\n", "plain\ttext\n", 0, 0),
        ("a\x00b\x07c\x7fd\x9be", "abcde", 4, 0),
        ("a\r\nb\rc\x0cd\x0be\x85f\u2028g\u2029h", "a\nb\nc\nd\ne\nf\ng\nh", 0, 0),
        ("\ufeffze\u200bro\u2060 wi\u00addth\u200e", "zero width", 0, 5),
        ("e\u0301", "é", 0, 0),
        ("e\u200b\u0301", "é", 0, 1),
        ("각".encode().decode() + "\u1100\u1161", "각가", 0, 0),
        ("می\u200cخواهم", "می\u200cخواهم", 0, 0),  # Persian: the joiner parts the letters
        ("ക\u200d ക്\u200d", "ക\u200d ക്\u200d", 0, 0),  # Malayalam: also at the end of a word
        ("👩\u200d👩\u200d👧 ❤️\u200d🔥", "👩\u200d👩\u200d👧 ❤️\u200d🔥", 0, 0),
        ("\u200dla\u200ctin 한\u200d글 👩\u200d\u200d", "latin 한글 👩\u200d", 0, 4),
    ],
)
def test_cleaning(text: str, cleaned: str, num_control: int, num_zero_width: int) -> None:
    assert clean(text) == (cleaned, num_control, num_zero_width)


@given(
    st.text(st.one_of(st.characters(codec="utf-8"), st.sampled_from("a\r\n\x00\u200b\u200c\u200d\ufeff\u0301ക가👩")))
)
def test_cleaned_text_is_normalised_and_stays_as_it_is(text: str) -> None:
    cleaned, _, _ = clean(text)
    assert unicodedata.is_normalized("NFC", cleaned)
    assert clean(cleaned) == (cleaned, 0, 0)
    assert all(character in "\t\n" or unicodedata.category(character) != "Cc" for character in cleaned)
    assert not set(cleaned) & set("\u2028\u2029\u200b\u2060\ufeff\u00ad")


def test_counts_tell_what_was_removed_skipped_and_long(tmp_path: Path) -> None:
    long_line = b"x" * 3_000_000
    files = [
        write(tmp_path / "1.txt", b"\xef\xbb\xbfone\x00\n\n" + long_line + b"\n\n\x00\xe2\x80\x8b\n"),
        write(tmp_path / "2.txt", b""),
        write(tmp_path / "3.txt.zst", b" \n\n"),
        write(tmp_path / "4.jsonl.gz", b'{"text": ""}\n{"text": " \\u200b"}\n{"text": "\xed\x95\x9c"}\n'),
    ]
    (tmp_path / "5.jsonl.zst").write_bytes(b"")
    counts = CorpusCounts()
    documents = list(read_documents([*files, tmp_path / "5.jsonl.zst"], counts))
    assert texts(documents) == ["one", long_line.decode(), "한"]
    assert counts == CorpusCounts(
        files=5,
        empty_files=3,
        documents=3,
        empty_documents=3,
        characters=3_000_004,
        utf8_bytes=3_000_006,
        control_characters=2,
        zero_width_characters=3,
        long_lines=1,
        file_bytes=sum(path.stat().st_size for path in files),
    )


# ---------------------------------------------------------------------------------------------------------- refusing


@pytest.mark.parametrize("compression", COMPRESSIONS)
@pytest.mark.parametrize("form", CORPUS_READERS)
def test_broken_utf8_is_refused_with_file_line_and_byte(tmp_path: Path, form: str, compression: str) -> None:
    first = {".txt": "가나\n".encode(), ".jsonl": b'{"text": "a"}\n'}[form]
    path = write(tmp_path / f"a{form}{compression}", first + b"ok \xff\n")
    with pytest.raises(InputError) as error:
        read(path)
    stream = "decompressed text" if compression else "file"
    assert f"{path}:2: not UTF-8 at byte {len(first) + 3} of the {stream} (0xff)" in str(error.value)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b'{"text": "cut', "not JSON"),
        (b'["text"]', "a JSON array, not an object"),
        (b"null", "a JSON null, not an object"),
        (b'{"txt": "a"}', "no field 'text' (there is 'txt')"),
        (b"{}", "no field 'text' (there is none at all)"),
        (b'{"text": 5}', "field 'text' is number, not a string"),
        (b'{"text": null}', "field 'text' is null, not a string"),
        (b"[" * 100_000, "not JSON"),
        (b'{"text": "\\ud83d"}', "half of a surrogate pair, \\ud83d"),
    ],
)
def test_a_wrong_json_line_is_refused_with_its_number(tmp_path: Path, line: bytes, reason: str) -> None:
    path = write(tmp_path / "a.jsonl", b'{"text": "fine"}\n' + line + b"\n")
    with pytest.raises(InputError) as error:
        read(path)
    assert str(error.value).startswith(f"{path}:2: {reason}")


@pytest.mark.parametrize("suffix", [".gz", ".zst"])
@pytest.mark.parametrize("kept", [0.5, -1])
def test_a_file_cut_short_is_refused(tmp_path: Path, suffix: str, kept: float) -> None:
    content = "\n\n".join(f"document {number}" for number in range(20_000)).encode()
    path = write(tmp_path / f"a.txt{suffix}", content)
    packed = path.read_bytes()
    path.write_bytes(packed[: int(kept * len(packed))] if kept > 0 else packed[:-1])
    with pytest.raises(InputError, match="damaged or cut short"):
        read(path)


@pytest.mark.parametrize("suffix", [".gz", ".zst"])
def test_a_file_that_is_not_what_its_suffix_says_is_refused(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"a.txt{suffix}"
    path.write_bytes(b"plain text after all\n")
    with pytest.raises(InputError, match="damaged or cut short"):
        read(path)


def test_a_file_that_vanished_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read: No such file"):
        read(tmp_path / "gone.txt")


# ----------------------------------------------------------------------------------------------------------- finding


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name in ("b.txt", "a.jsonl.zst", "sub/c.TXT.gz", "sub/deep/d.jsonl", "notes.md", ".hidden.txt"):
        write(tmp_path / name, b"")
    write(tmp_path / ".unfinished-store" / "e.txt", b"")
    write(tmp_path / ".unfinished-f.txt", b"")
    return tmp_path


def names(files: list[Path], tree: Path) -> list[str]:
    return [file.relative_to(tree).as_posix() for file in files]


def test_folders_are_searched_to_the_bottom_in_sorted_order(tree: Path) -> None:
    found = ["a.jsonl.zst", "b.txt", "sub/c.TXT.gz", "sub/deep/d.jsonl"]
    assert names(find_files([tree]), tree) == found
    assert names(find_files([f"{tree}/**"]), tree) == found
    assert names(find_files([f"{tree}/*"]), tree) == found


def test_order_of_arguments_is_kept_and_repeats_are_dropped(tree: Path) -> None:
    found = find_files([tree / "sub", f"{tree}/**/*.jsonl*", str(tree / "b.txt"), tree / "sub" / ".." / "b.txt"])
    assert names(found, tree) == ["sub/c.TXT.gz", "sub/deep/d.jsonl", "a.jsonl.zst", "b.txt"]


def test_links_that_lead_in_circles_end(tree: Path) -> None:
    os.symlink(tree, tree / "sub" / "loop")
    os.symlink(tree / "b.txt", tree / "sub" / "again.txt")
    assert names(find_files([tree]), tree) == ["a.jsonl.zst", "b.txt", "sub/c.TXT.gz", "sub/deep/d.jsonl"]


def test_a_file_whose_name_looks_like_a_pattern_is_a_file(tmp_path: Path) -> None:
    path = write(tmp_path / "part[1].txt", b"")
    assert find_files([path]) == [path]


def test_what_cannot_be_found_is_refused_saying_what_is_expected(tree: Path) -> None:
    (tree / "empty").mkdir()
    wrong = {
        tree / "missing.txt": "no such file or folder",
        tree / "*.csv": "matches no file",
        tree / "empty": "no file in this folder",
        tree / "notes.md": "unknown kind of file",
    }
    for path, reason in wrong.items():
        with pytest.raises(InputError) as error:
            find_files([tree / "b.txt", path])
        message = str(error.value)
        assert message.startswith(f"{path}: ")
        assert reason in message
        assert ".txt, .txt.gz, .txt.zst, .jsonl, .jsonl.gz, .jsonl.zst" in message
    with pytest.raises(InputError, match="no corpus was named"):
        find_files([])


def test_reading_a_corpus_needs_no_torch() -> None:
    program = "import sys, unmask.data.corpus, unmask.data.sentences; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
