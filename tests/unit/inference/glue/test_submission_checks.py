"""Submissions to GLUE checked line by line."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from support.glue_runs import write_all_finetuned, write_test_files
from unmask.errors import InputError, SettingsError
from unmask.inference.glue.submission import submit, validate


@pytest.fixture
def sound(tmp_path: Path, small: dict[str, int]) -> Path:
    out = tmp_path / "glue.zip"
    submit(write_all_finetuned(tmp_path), out, data=write_test_files(tmp_path, small))
    return out


def test_without_a_run_there_is_no_submission(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="no run for any task of GLUE"):
        submit([], tmp_path / "glue.zip", allow_missing=True)
    assert not (tmp_path / "glue.zip").exists()


def rewrite(path: Path, change: Callable[[dict[str, bytes]], None]) -> Path:
    with zipfile.ZipFile(path) as archive:
        files = {name: archive.read(name) for name in archive.namelist()}
    change(files)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return path


def lines_of(content: bytes) -> list[bytes]:
    return content.splitlines(keepends=True)


FAULTS: dict[str, tuple[str, Callable[[bytes], bytes], str]] = {
    "header": ("CoLA.tsv", lambda file: file.replace(b"index\tprediction", b"id\tlabel"), "CoLA.tsv:1: found 'id"),
    "empty": ("CoLA.tsv", lambda file: b"", "CoLA.tsv:1: empty; expected the header"),
    "a row less": ("CoLA.tsv", lambda file: b"".join(lines_of(file)[:-1]), "CoLA.tsv:5: the file ends after 3 rows; "),
    "a row more": ("CoLA.tsv", lambda file: file + b"4\t0\n", "CoLA.tsv:6: a row more than the 4 of the test file"),
    "rows swapped": (
        "RTE.tsv",
        lambda file: b"".join(lines_of(file)[place] for place in (0, 1, 3, 2, *range(4, 13))),
        "RTE.tsv:3: found '2\\tentailment'; expected 1, a tab, and entailment or not_entailment, ended by a line feed",
    ),
    "padded index": ("WNLI.tsv", lambda file: file.replace(b"\n0\t", b"\n00\t"), "WNLI.tsv:2: found '00\\t"),
    "label": (
        "RTE.tsv",
        lambda file: file.replace(b"not_entailment", b"contradiction"),
        "RTE.tsv:3: found '1\\tcontradiction'; ",
    ),
    "over 5": ("STS-B.tsv", lambda file: file.replace(b"2.500000", b"5.000001"), "STS-B.tsv:4: found '2\\t5.000001'; "),
    "below 0": (
        "STS-B.tsv",
        lambda file: file.replace(b"2.500000", b"-0.1"),
        "STS-B.tsv:4: found '2\\t-0.1'; expected 2, ",
    ),
    "nan": (
        "STS-B.tsv",
        lambda file: file.replace(b"2.500000", b"nan"),
        "STS-B.tsv:4: found '2\\tnan'; expected 2, a tab, and a number from 0 to 5, ",
    ),
    "huge": (
        "STS-B.tsv",
        lambda file: file.replace(b"2.500000", b"1e999"),
        "STS-B.tsv:4: found '2\\t1e999'; expected 2, ",
    ),
    "Arabic digits": (
        "STS-B.tsv",
        lambda file: file.replace(b"2.500000", "٣".encode()),
        "STS-B.tsv:4: found '2\\t٣'; ",
    ),
    "CRLF": ("AX.tsv", lambda file: file.replace(b"\n", b"\r\n"), "AX.tsv:1: found 'index\\tprediction\\r'"),
    "not UTF-8": (
        "AX.tsv",
        lambda file: file.replace(b"neutral", b"neutr\xe4l"),
        "AX.tsv:4: found '2\\tneutr\\\\xe4l'",
    ),
    "byte order mark": ("AX.tsv", lambda file: b"\xef\xbb\xbf" + file, "AX.tsv:1: found '\\ufeff"),
    "one endless line": ("AX.tsv", lambda file: b"0" * 5_000_000, "AX.tsv:1: found '000"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_told_by_file_and_line(sound: Path, fault: str) -> None:
    name, damage, message = FAULTS[fault]
    rewrite(sound, lambda files: files.update({name: damage(files[name])}))
    with pytest.raises(InputError) as refused:
        validate(sound)
    first, *faults = str(refused.value).splitlines()
    assert first == f"{sound}: GLUE's server would refuse it:"
    assert len(faults) == 1
    assert faults[0].startswith(f"  {message}")


def test_a_last_line_without_its_end_is_none_the_less_a_row(sound: Path) -> None:
    rewrite(sound, lambda files: files.update({"AX.tsv": files["AX.tsv"][:-1]}))
    assert len(validate(sound).predictions) == 11


def test_what_must_and_must_not_be_in_the_archive(sound: Path) -> None:
    def change(files: dict[str, bytes]) -> None:
        files["glue/RTE.tsv"] = files.pop("RTE.tsv")
        files["__MACOSX/"] = b""
        files["notes.txt"] = b""
        files["WNLI.tsv"] = b""

    with pytest.raises(InputError) as refused:
        validate(rewrite(sound, change))
    faults = [line.partition(";")[0].strip() for line in str(refused.value).splitlines()[1:]]
    assert faults == [
        "glue/RTE.tsv: in a folder",
        "__MACOSX/: in a folder",
        "notes.txt: none of the eleven",
        "RTE.tsv: missing",
        "WNLI.tsv:1: empty",
    ]


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_a_file_twice_in_the_archive(sound: Path) -> None:
    with zipfile.ZipFile(sound, "a") as archive:
        archive.writestr("RTE.tsv", archive.read("RTE.tsv"))
    with pytest.raises(InputError, match=r"RTE.tsv: 2 times in the archive; expected once"):
        validate(sound)


def test_archives_that_cannot_be_read(sound: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"cannot be read \(No such file"):
        validate(tmp_path / "missing.zip")
    whole = sound.read_bytes()
    middle = whole.index(b"QQP.tsv") + 12
    damaged = whole[:middle] + bytes(byte ^ 0x55 for byte in whole[middle : middle + 20]) + whole[middle + 20 :]
    for content in (b"", b"no archive", whole[:-30], damaged):
        sound.write_bytes(content)
        with pytest.raises(InputError, match=r"glue.zip: not a .zip that can be read"):
            validate(sound)
    buffer = io.BytesIO(whole)
    encrypted = bytearray(buffer.getvalue())
    for magic, flags in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        encrypted[encrypted.index(magic) + flags] |= 1
    sound.write_bytes(encrypted)
    with pytest.raises(InputError, match=r"not a .zip that can be read \(.*encrypted"):
        validate(sound)
