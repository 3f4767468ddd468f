"""Bad text through the real commands: handled and counted, or refused in one message, with nothing left behind."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from support.commands import Command, check_refused, tree_of, write_files
from support.corpora import Files

GOOD = "The quick brown fox jumps over the lazy dog. It barks.\n\nA second document is here. Fine.\n" * 20


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tokenizer")
    (folder / "good.txt").write_text(GOOD)
    words = [sys.executable, "-m", "unmask", "tokenizer", "train", folder / "good.txt", "--vocab-size", "100"]
    subprocess.run([*words, "--out", folder / "made"], check=True, capture_output=True)
    return folder / "made"


# ------------------------------------------------------------------------------------------------------------- refused

BROKEN_UTF8 = b"A good line.\nAnother.\n\ncaf\xe9 au lait.\n"

BAD_TEXT = {
    "only empty files": ({"a.txt": "", "b.jsonl": "\n"}, ["a.txt", "b.jsonl"], "a.txt and 1 more file(s): no text"),
    "only spaces and control characters": ({"a.txt": " \n \x07\x08\t\n\u200b\ufeff \n"}, ["a.txt"], "a.txt: no text"),
    "a missing path": ({}, ["nowhere.txt"], "nowhere.txt: no such file or folder: expected one, or a glob, of .txt"),
    "broken UTF-8 behind good files": (
        {"a.txt": GOOD, "b.txt": BROKEN_UTF8},
        ["a.txt", "b.txt"],
        "b.txt:4: not UTF-8 at byte 26 of the file (0xe9): expected text in UTF-8; convert the file",
    ),
}
"""Of each sort one; others are in `runs/prepare/test_bad_corpora.py`, and below the command in `unit/corpus`."""


@pytest.mark.parametrize("command", ["prepare", "tokenizer train"])
@pytest.mark.parametrize(("files", "text", "message"), BAD_TEXT.values(), ids=BAD_TEXT)
def test_bad_text_is_refused(
    unmask: Command, place: Path, tokenizer: Path, command: str, files: Files, text: list[str], message: str
) -> None:
    write_files(files)
    before = tree_of(place)
    with_tokenizer = ["--tokenizer", tokenizer, "--workers", 1] if command == "prepare" else []
    check_refused(unmask(*command.split(), *text, "--out", "made", *with_tokenizer), message)
    assert tree_of(place) == before


def test_text_of_characters_that_are_no_tokens_is_refused(unmask: Command, place: Path, tokenizer: Path) -> None:
    write_files({"a.txt": "\ufffd\n\n\ufffd\n"})
    code, _, errors = unmask("prepare", "a.txt", "--tokenizer", tokenizer, "--out", "made", "--workers", 1)
    assert (code, errors) == (2, "error: a.txt: no text with a sentence in it: give text to prepare\n")
    assert tree_of(place).keys() == {"a.txt"}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("nowhere", "nowhere does not exist: expected a directory with tokenizer.json or vocab.txt"),
        ("folder", "folder holds no tokenizer: expected tokenizer.json or vocab.txt in it"),
        ("broken", "broken/tokenizer.json: not JSON ("),
    ],
)
def test_a_bad_tokenizer_is_refused(unmask: Command, place: Path, given: str, message: str) -> None:
    write_files({"a.txt": GOOD, "folder/a.txt": GOOD, "broken/tokenizer.json": "{"})
    before = tree_of(place)
    check_refused(unmask("prepare", "a.txt", "--tokenizer", given, "--out", "made", "--workers", 1), message)
    assert tree_of(place) == before


NO_TOKENIZER = " does not exist: expected a directory with tokenizer.json or vocab.txt"


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("info {}", ": no such file or directory"),
        ("tokenizer report {} --text a.txt", NO_TOKENIZER),
        ("tokenizer extend {} --words a.txt --out made", NO_TOKENIZER),
        ("prepare a.txt --tokenizer {} --out made", NO_TOKENIZER),
        ("evaluate {} --data a.txt", ": no such directory: expected a model's, or that of the run that made it"),
        ("tokenizer train {} --out made", ": no such file or folder: expected one, or a glob, of .txt, .md, .jsonl, "),
        ("split {}.csv --task classification --out made", ".csv: cannot be read: No such file or directory"),
    ],
)
def test_whoever_has_no_samples_reads_where_they_are(unmask: Command, place: Path, command: str, message: str) -> None:
    write_files({"a.txt": GOOD})
    where = "; the samples are in the project's repository and not in an installation: run this there\n"
    result = unmask(*command.format("samples/models/fr").split())
    check_refused(result, f"samples/models/fr{message}")
    assert result.errors.endswith(where)
    assert tree_of(place).keys() == {"a.txt"}


MODEL: Files = {"made/tokenizer.json": "{}", "made/model.safetensors": "x"}
IN_THE_WAY: dict[str, tuple[Files, str, list[str], str]] = {
    "other things": ({"made/a": "x"}, "made", [], "made holds a, which is no part of a "),
    "other things to overwrite": ({"made/a": "x"}, "made", ["--overwrite"], "made holds a, which is no part of a "),
    "a model": (MODEL, "made", ["--overwrite"], "made holds model.safe"),
    "a file": ({"made": "x"}, "made", [], "cannot write made: Not a directory"),
    "a file to overwrite": ({"made": "x"}, "made", ["--overwrite"], "cannot write made: Not a directory"),
    "under a file": ({"file": "x"}, "file/made", [], "cannot write file/made: Not a directory"),
    "a name too long": ({}, "x" * 300, [], f"cannot write {'x' * 300}: File name too long"),
}  # fmt: skip


@pytest.mark.parametrize("command", ["prepare", "tokenizer train"])
@pytest.mark.parametrize(("there", "out", "options", "message"), IN_THE_WAY.values(), ids=IN_THE_WAY)
def test_what_is_in_the_way_is_left_alone(
    unmask: Command,
    place: Path,
    tokenizer: Path,
    command: str,
    there: Files,
    out: str,
    options: list[str],
    message: str,
) -> None:
    write_files({"a.txt": GOOD, **there})
    before = tree_of(place)
    with_tokenizer = ["--tokenizer", tokenizer, "--workers", 1] if command == "prepare" else []
    check_refused(unmask(*command.split(), "a.txt", "--out", out, *with_tokenizer, *options), message)
    assert tree_of(place) == before


def test_in_a_process_of_its_own_there_is_no_traceback_either(place: Path, tokenizer: Path) -> None:
    """And broken text that workers were reading ahead of ends them all."""
    write_files({"a.txt": GOOD.encode() + BROKEN_UTF8})
    words = ["prepare", "a.txt", "--tokenizer", str(tokenizer), "--out", "made", "--workers", "2"]
    done = subprocess.run([sys.executable, "-m", "unmask", *words], capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stdout == ""
    told = done.stderr.splitlines()[-1]  # after any lines of progress
    assert told.startswith("error: a.txt:")
    assert "not UTF-8 at byte" in told
    assert "Traceback" not in done.stderr
    assert tree_of(place).keys() == {"a.txt"}


# ----------------------------------------------------------------------------------------------------------- damaged


def test_verify_tells_a_sound_store_from_a_damaged_one(unmask: Command, place: Path, tokenizer: Path) -> None:
    write_files({"a.txt": GOOD})
    assert unmask("prepare", "a.txt", "--tokenizer", tokenizer, "--out", "made", "--workers", 1).code == 0
    sound = unmask("verify", "made")
    assert (sound.code, sound.errors) == (0, "")
    assert sound.output.startswith("made: sound; 21 documents, ")
    for name in ("tokens-00000.bin", "sentences-00000.bin", "documents-00000.bin", "tokenizer/vocab.txt"):
        path = place / "made" / name
        content = path.read_bytes()
        path.write_bytes(content[:-1] + bytes([content[-1] ^ 4]))
        check_refused(unmask("verify", "made"), f"made/{name}: its checksum is not the manifest's")
        path.write_bytes(content)
    (place / "made" / "tokens-00000.bin").unlink()
    assert unmask("verify", "made").errors.startswith("error: made/tokens-00000.bin: missing: the store is damaged")
    told = "nowhere: no such store: make one with `unmask prepare TEXT --tokenizer DIR --out nowhere`\n"
    assert unmask("verify", "nowhere") == (2, "", f"error: {told}")


# ------------------------------------------------------------------------------------------------------------- handled


def test_odd_text_is_read_counted_and_told(unmask: Command, place: Path, tokenizer: Path) -> None:
    write_files({"a.txt": "A quick\u200b fox\x07 is he\u00adre.\n\n" + "the lazy dog " * 230_770 + "\n\n\u200b\x00\n"})
    write_files({"b.txt": "", "c.txt": b"\xef\xbb\xbfIt barks.\r\nFine.\r\n"})
    code, output, errors = unmask("prepare", "*.txt", "--tokenizer", tokenizer, "--out", "made", "--workers", 1)
    assert code == 0, errors
    manifest = json.loads((place / "made" / "manifest.json").read_text())
    assert manifest["documents"] == 3
    text = manifest["text"]
    assert (text["files"], text["empty_files"], text["documents"], text["long_lines"]) == (3, 1, 3, 1)
    removed = {name: amount["count"] for name, amount in text["removed"].items()}
    assert removed == {"control characters": 1, "zero-width characters": 2}  # those of a dropped document went with it
    assert text["dropped"]["empty"]["count"] == 1
    for told in (*removed, "1 without a document", "dropped: empty", "1 line of more"):
        assert told in output


def test_the_tokenizer_tells_what_it_was_trained_on(unmask: Command, place: Path) -> None:
    write_files({"a.txt": GOOD + "A quick\u200b fox\x07.\n\n" + "the lazy dog " * 230_770, "b.txt": ""})
    code, _, errors = unmask("tokenizer", "train", ".", "--out", "made", "--vocab-size", 100)
    assert code == 0, errors
    report = json.loads((place / "made" / "training.json").read_text())
    text = report["text"]
    assert (text["files"], text["empty_files"], text["long_lines"]) == (2, 1, 1)
    removed = {name: amount["count"] for name, amount in text["removed"].items()}
    assert removed == {"control characters": 1, "zero-width characters": 1}
    assert [source["file"] for source in report["sources"]] == ["a.txt", "b.txt"]
