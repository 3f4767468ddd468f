"""Corpora as they should not be, through the real command: refused in one message with its place, or passed over,
counted and listed; and what is kept where a preparation is hit from outside."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from support.commands import Command, check_last_error, check_refused, tree_of, type_in, write_files
from support.corpora import COMPRESS, GOOD, Files, dump, table
from support.files import write_rows
from unmask.store.store import TokenStore

# ------------------------------------------------------------------------------------------------------ bad records

MIXED = "안녕하세요.\n\n".encode() + "나쁜 날이다.\n\n".encode("cp949") + b"caf\xe9 au lait.\n\nIt barks.\n"
JSON_LINES = """{"text": "The dog barks."}
{"text": null}
{"text": {"inner": ["x"]}}
["x"]
{"body": "x"}
{"text": "cut
{"text": "Fine."}
"""
JSON_FAULTS = ("not a string", "not a string", "not a JSON object", "no such field", "not JSON")
CSV = 'id,text\n1,The dog barks.\n2\n3,"It, barks.",x\n4,"a "quote" in it"\n5,Fine.\n'

Records = tuple[Files, list[str], str, int, list[tuple[str, str]]]
RECORDS: dict[str, Records] = {
    "encodings mixed": (
        {"a.txt": MIXED},
        [],
        "a.txt:3: not UTF-8 at byte 18 of the file (0xb3): expected text in UTF-8; convert the file",
        2,
        [("a.txt:3", "not UTF-8"), ("a.txt:5", "not UTF-8")],
    ),
    "JSON lines": (
        {"a.jsonl": JSON_LINES},
        [],
        "a.jsonl:2: field 'text' is null, not a string: expected one JSON object a line",
        2,
        list(zip([f"a.jsonl:{line}" for line in range(2, 7)], JSON_FAULTS, strict=True)),
    ),
    "ragged and misquoted rows": (
        {"a.csv": CSV},
        [],
        "a.csv:3: 1 fields where the header has 2 (id, text): fix the row",
        2,
        [("a.csv:3", "ragged row"), ("a.csv:4", "ragged row"), ("a.csv:5", "not CSV")],
    ),
    "a quote that nothing closes": (
        {"a.csv": 'text\nThe dog barks.\n"Never closed.\nFine.\nToo.\n'},
        [],
        "a.csv:3-5: not CSV in the row that begins here (unexpected end of data)",
        1,
        [("a.csv:3-5", "not CSV")],
    ),
    "rows without a text": (
        {"a.parquet": table(text=["The dog barks.", None, "Fine."])},
        [],
        "a.parquet:2: column 'text' is null in this row: expected a text",
        2,
        [("a.parquet:2", "no text")],
    ),
    "a dump cut in the middle": (
        {"a.xml": dump("Wren", "Robin", "Jay").partition("<title>Jay")[0]},
        [],
        "a.xml: the dump is damaged or cut short after the page 'Robin', which begins on line 6 (",
        2,
        [("a.xml", "damaged file")],
    ),
    **{
        f"a byte order mark that is missing in {name}": (
            {name: content.encode("utf-16-le"), "b.txt": GOOD.encode("utf-16")},
            ["--encoding", "utf-16"],
            f"{name}: cannot be read: it begins without the byte order mark of utf-16: give utf-16-le or utf-16-be as",
            2,
            [(name, "unreadable file")],
        )
        for name, content in {"a.txt": GOOD, "a.csv": f"text\n{GOOD}\n", "a.xml": dump("Wren")}.items()
    },
    "a column that one file of two lacks": (
        {"a.csv": "body\nThe dog barks.\n", "b.csv": "id,body,body\n1,x,y\n"},
        ["--column", "body"],
        "b.csv:1: the header names 'body' twice",
        1,
        [("b.csv:1", "column twice")],
    ),
    **{
        f"garbage behind a whole {suffix}": (
            {f"a.txt{suffix}": compress(f"{GOOD}\n\n".encode()) + b"no frame, but some garbage"},
            [],
            f"a.txt{suffix}: the compressed data are damaged or cut short (",
            2,
            [(f"a.txt{suffix}", "damaged file")],
        )
        for suffix, compress in COMPRESS.items()
        if suffix
    },
}
"""Files and options; the message of `--on-error stop`; with `skip`, the documents left and what is listed."""


@pytest.mark.parametrize("case", RECORDS.values(), ids=RECORDS)
def test_bad_records_stop_or_are_passed_over_and_listed(
    unmask: Command, place: Path, tokenizer: Path, case: Records
) -> None:
    files, options, message, left, listed = case
    write_files(files)
    before = tree_of(place)
    words = ["prepare", *files, "--tokenizer", tokenizer, "--out", "made", "--workers", 1, *options]
    stopped = unmask(*words)
    check_last_error(stopped, message)  # before it, on a slow machine, how large the store would be
    assert stopped.errors.endswith("be read with --on-error skip (in a recipe reading.on_error=skip)\n")
    assert tree_of(place) == before

    code, output, errors = unmask(*words, "--on-error", "skip")
    assert code == 0, errors
    rows = [json.loads(line) for line in Path("made", "skipped.jsonl").read_text("utf-8").splitlines()]
    assert [(row["source"], row["reason"]) for row in rows] == listed
    reasons = [reason for _, reason in listed]
    manifest = TokenStore(Path("made")).manifest
    assert manifest["text"]["skipped"] == {reason: reasons.count(reason) for reason in reasons}
    assert manifest["documents"] == manifest["text"]["documents"] == left
    for reason in reasons:
        count = reasons.count(reason)
        assert f"passed over {count} record{'s' * (count > 1)}: {reason}\n" in output


NOTHING_LEFT: dict[str, tuple[str, str | bytes, str]] = {
    "records": ("a.jsonl", '{"text": 3}\n{"text":\n{"text": 4}\n',
     "2 records passed over: not a string; 1 record passed over: not JSON"),
    "records and documents": ("a.jsonl", '{"text": 3}\n{"text": " "}\n',
     "1 record passed over: not a string; 1 document dropped: empty"),
    "no column": ("a.csv", "body\nThe dog barks.\n", "1 record passed over: no such column"),
    "numbers": ("a.parquet", table(text=[1, 2]), "1 record passed over: not a column of strings"),
    "UTF-16": ("a.txt", GOOD.encode("utf-16"), "1 record passed over: not UTF-8"),
    "cut": ("a.jsonl.zst", COMPRESS[".zst"](b'{"text": "x"}\n')[:-2], "1 record passed over: damaged file"),
}  # fmt: skip


@pytest.mark.parametrize(("name", "content", "losses"), NOTHING_LEFT.values(), ids=NOTHING_LEFT)
def test_where_nothing_is_left_the_reasons_are_told(
    unmask: Command, place: Path, tokenizer: Path, name: str, content: str | bytes, losses: str
) -> None:
    write_files({name: content})
    before = tree_of(place)
    options = ["--out", "made", "--workers", 1, "--on-error", "skip"]
    finished = unmask("prepare", name, "--tokenizer", tokenizer, *options)
    check_refused(finished, f"{name}: no text with a sentence in it ({losses}): give text to prepare")
    assert tree_of(place) == before


# -------------------------------------------------------------------------------------------------------- bad files

WHOLE_TABLE = table(text=["The dog barks."] * 100)
BAD_FILES: dict[str, tuple[Files, list[str], str]] = {
    # Of each sort one; others are refused below the command, in tests/unit/corpus/formats.
    "UTF-16": ({"a.txt": GOOD.encode("utf-16")}, [], "a.txt:1: not UTF-8 at byte 0 of the file (0xff): expected text"),
    "UTF-16 in JSON": ({"a.jsonl": '{"text": "x"}'.encode("utf-16")}, [], "a.jsonl:1: not UTF-8 at byte 0"),
    "an empty .zst": ({"a.txt.zst": b""}, [], "a.txt.zst: no text with a sentence in it"),
    "no parquet": ({"a.parquet": GOOD}, [], "a.parquet: not a sound Parquet file ("),
    "a flipped parquet": (
        {"a.parquet": WHOLE_TABLE[:20] + bytes([WHOLE_TABLE[20] ^ 255]) + WHOLE_TABLE[21:]},
        [],
        "a.parquet: not a sound Parquet file (",
    ),
    "text as JSON": ({"a.txt": GOOD}, ["--format", "jsonl"], "a.txt:1: not JSON"),
}


@pytest.mark.parametrize(("files", "options", "message"), BAD_FILES.values(), ids=BAD_FILES.keys())
def test_bad_files_are_refused(
    unmask: Command, place: Path, tokenizer: Path, files: Files, options: list[str], message: str
) -> None:
    write_files(files)
    before = tree_of(place)
    words = ["prepare", *files, "--tokenizer", tokenizer, "--out", "made", "--workers", 1, *options]
    check_refused(unmask(*words), message)
    assert tree_of(place) == before


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "an empty name among the corpus files: expected files, folders or globs of .txt"),
        ("x" * 300 + ".txt", f"{'x' * 80}...: cannot be read: File name too long"),
        ("nowhere/*.txt", "nowhere/*.txt: this pattern matches no file that can be read"),
        ("link.txt", "link.txt: no such file or folder"),
        ("empty.jsonl", "empty.jsonl: no file in this folder can be read"),
    ],
    ids=["no name", "a name too long", "a pattern", "a link to nothing", "a folder with a file's name"],
)
def test_names_that_are_no_files_are_refused(
    unmask: Command, place: Path, tokenizer: Path, text: str, message: str
) -> None:
    write_files({"precious.txt": GOOD})
    Path("link.txt").symlink_to("nowhere")
    Path("empty.jsonl").mkdir()
    check_refused(unmask("prepare", text, "--tokenizer", tokenizer, "--out", "made", "--workers", 1), message)
    assert not Path("made").exists()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
@pytest.mark.parametrize(("text", "named"), [("shut/a.txt", "shut/a.txt"), ("shut", "shut"), ("b.txt", "b.txt")])
def test_what_may_not_be_read_is_told(unmask: Command, place: Path, tokenizer: Path, text: str, named: str) -> None:
    write_files({"shut/a.txt": GOOD, "b.txt": GOOD})
    Path("b.txt").chmod(0)
    Path("shut").chmod(0)
    finished = unmask("prepare", text, "--tokenizer", tokenizer, "--out", "made", "--workers", 1)
    Path("shut").chmod(0o700)
    check_refused(finished, named)
    assert "Permission denied" in finished.errors


@pytest.mark.skipif(not Path("/proc/self/mem").exists(), reason="a file that opens and cannot be read needs Linux")
def test_a_file_that_fails_under_the_reader_is_told(unmask: Command, place: Path, tokenizer: Path) -> None:
    words = ["prepare", "/proc/self/mem", "--tokenizer", tokenizer, "--out", "made", "--workers", 1, "--format", "txt"]
    check_refused(unmask(*words), "/proc/self/mem: cannot be read: Input/output error")
    write_files({"a.txt": GOOD})
    assert unmask(*words, "a.txt", "--on-error", "skip").code == 0
    assert Path("made", "skipped.jsonl").read_text() == '{"source": "/proc/self/mem", "reason": "unreadable file"}\n'


def test_a_name_that_is_not_utf8_is_kept_as_it_is(unmask: Command, place: Path, tokenizer: Path) -> None:
    name = os.fsdecode(b"caf\xe9.txt")
    Path(name).write_text(GOOD + "\n\n\xe9\n", encoding="latin-1")
    words = ["prepare", name, "--tokenizer", tokenizer, "--out", "made", "--workers", 1]
    check_refused(unmask(*words), "caf")
    code, _, errors = unmask(*words, "--on-error", "skip")
    assert code == 0, errors
    assert TokenStore(Path("made")).manifest["sources"][0]["file"] == name
    assert json.loads(Path("made", "skipped.jsonl").read_text())["source"] == f"{name}:6"


def test_standard_input_that_is_closed_is_empty(place: Path, tokenizer: Path) -> None:
    words = ["prepare", "-", "--tokenizer", str(tokenizer), "--out", "made", "--workers", "1"]
    command = [sys.executable, "-c", "import os, sys; os.close(0); os.execv(sys.argv[1], sys.argv[1:])"]
    done = subprocess.run([*command, sys.executable, "-m", "unmask", *words], capture_output=True, text=True)
    assert done.stderr == "error: standard input: no text with a sentence in it: give text to prepare\n"
    assert done.returncode == 2


def test_standard_input_cut_in_its_archive_is_told(
    unmask: Command, place: Path, tokenizer: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    type_in(monkeypatch, gzip.compress(GOOD.encode())[:-9])
    finished = unmask("prepare", "-", "--tokenizer", tokenizer, "--out", "made", "--workers", 1)
    told = "standard input: the compressed data are damaged or cut short (the last frame is incomplete)"
    check_refused(finished, told)
    assert tree_of(place) == {}


# --------------------------------------------------------------------------------------------------- missing packages

EXTRAS: dict[str, tuple[Files, list[str], str, str]] = {
    "pyarrow": ({"a.parquet": table(text=["x"])}, [], "a.parquet: reading .parquet needs pyarrow", "parquet"),
    "mwparserfromhell": (
        {"a.xml": "<mediawiki></mediawiki>"},
        [],
        "a.xml: reading Wikipedia dumps needs mwparser",
        "wikipedia",
    ),
    "rensa": (
        {"a.txt": GOOD},
        ["--near-duplicates", "0.8"],
        "near_duplicates needs the package rensa",
        "near-duplicates",
    ),
    "kiwipiepy": ({"a.txt": GOOD}, ["--sentences", "kiwi"], "kiwi needs the library kiwipiepy", "ko"),
    "ray": ({"a.txt": GOOD}, ["--ray", "auto"], "--ray needs the library Ray", "ray"),
}


@pytest.mark.parametrize("package", EXTRAS)
def test_a_missing_extra_is_named_with_the_line_that_installs_it(
    unmask: Command, place: Path, tokenizer: Path, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    files, options, message, extra = EXTRAS[package]
    write_files(files)
    before = tree_of(place)
    monkeypatch.setitem(sys.modules, package, None)
    done = unmask("prepare", *files, "--tokenizer", tokenizer, "--out", "made", "--workers", 1, *options)
    assert (done.code, done.output) == (2, "")
    told = done.errors.splitlines()[-1]
    assert told.startswith(f"error: {message}")
    assert f"pip install 'unmask[{extra}]'" in told
    assert "Traceback" not in done.errors
    assert tree_of(place) == before


@pytest.mark.parametrize("kind", ["word", "wordpiece", "bpe"])
def test_a_text_too_small_for_a_tokenizer_is_named(unmask: Callable[..., Any], tmp_path: Path, kind: str) -> None:
    file = write_rows(tmp_path / "one.jsonl", {"text": "one two"})
    code, _, errors = unmask("tokenizer", "train", file, "--kind", kind, "--out", tmp_path / "made")
    assert code == 2
    assert "one.jsonl: " in errors
    assert "text to train on" in errors
