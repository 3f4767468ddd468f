"""Corpus files: which are found under what is named, in which order, and what is refused."""

from __future__ import annotations

import os
import sys
import unicodedata
from pathlib import Path

import pytest

from support.files import write
from unmask.corpus.files import FORMAT_OF_SUFFIX, find_files, format_of
from unmask.errors import InputError


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name in ("b.txt", "a.jsonl.zst", "sub/c.TXT.gz", "sub/deep/d.jsonl", "notes.pdf"):
        write(tmp_path / name)
    for name in (".hidden.txt", ".unfinished-store/e.txt", ".unfinished-f.txt"):
        write(tmp_path / name)
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


def test_standard_input_comes_where_it_is_named_and_once(tree: Path) -> None:
    assert find_files([tree / "b.txt", "-", Path("-")]) == [tree / "b.txt", Path("-")]


def test_links_that_lead_in_circles_end(tree: Path) -> None:
    os.symlink(tree, tree / "sub" / "loop")
    os.symlink(tree / "b.txt", tree / "sub" / "again.txt")
    assert names(find_files([tree]), tree) == ["a.jsonl.zst", "b.txt", "sub/c.TXT.gz", "sub/deep/d.jsonl"]


def test_a_file_whose_name_looks_like_a_pattern_is_a_file(tmp_path: Path) -> None:
    path = write(tmp_path / "part[1].txt")
    assert find_files([path]) == [path]


def test_with_a_format_a_named_file_may_have_any_suffix(tree: Path) -> None:
    assert names(find_files([tree / "notes.pdf", f"{tree}/not*"], "txt"), tree) == ["notes.pdf"]
    assert names(find_files([tree], "jsonl"), tree) == ["a.jsonl.zst", "sub/deep/d.jsonl"]
    assert names(find_files([tree], "gutenberg"), tree) == ["b.txt", "sub/c.TXT.gz"]
    with pytest.raises(InputError, match=r"no file in this folder can be read as csv: expected \.txt, "):
        find_files([tree], "csv")


@pytest.mark.parametrize(
    ("name", "form"),
    [
        ("kowiki-20240501-pages-articles.xml.bz2", "wikipedia"),
        ("enwiki-20240501-pages-articles1.xml-p1p41242.bz2", "wikipedia"),
        ("a.xml-notes", None),
        ("a.zst", None),
        ("a.md", "md"),
    ],
)
def test_the_format_a_name_tells(name: str, form: str | None) -> None:
    assert format_of(Path(name)) == form


def test_what_cannot_be_found_is_refused_saying_what_is_expected(tree: Path) -> None:
    (tree / "empty").mkdir()
    wrong = {
        tree / "missing.txt": "no such file or folder",
        tree / "*.csv": "matches no file",
        tree / "empty": "no file in this folder",
        tree / "notes.pdf": "unknown kind of file",
    }
    for path, reason in wrong.items():
        with pytest.raises(InputError) as error:
            find_files([tree / "b.txt", path])
        message = str(error.value)
        assert message.startswith(f"{path}: ")
        assert reason in message
        assert all(suffix in message for suffix in (*FORMAT_OF_SUFFIX, ".gz", ".bz2", ".xz or .zst"))
    with pytest.raises(InputError, match="no corpus was named"):
        find_files([])


def test_a_store_is_not_taken_for_text(tmp_path: Path) -> None:
    for name in ("manifest.json", "documents-00000.bin", "vocab.txt"):
        (tmp_path / name).touch()
    with pytest.raises(InputError, match="is a token store, not text: a recipe takes it as store="):
        find_files([tmp_path])


def test_a_name_that_is_written_decomposed_is_told(tmp_path: Path) -> None:
    decomposed = unicodedata.normalize("NFD", "영화.txt")
    (tmp_path / decomposed).write_text("text", encoding="utf-8")
    with pytest.raises(InputError, match=r"folder \(there is .*, which looks the same: name it by a glob"):
        find_files([tmp_path / "영화.txt"])
    with pytest.raises(InputError, match="no such file or folder: expected"):
        find_files([tmp_path / "음악.txt"])


@pytest.mark.parametrize(("name", "library"), [("z.parquet", "pyarrow"), ("z.xml-p1p9.bz2", "mwparserfromhell")])
def test_a_file_whose_library_is_missing_is_named_before_any_is_read(
    tree: Path, name: str, library: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tree / name)
    find_files([tree])
    monkeypatch.setitem(sys.modules, library, None)
    extra = format_of(tree / name)
    told = rf"{name}: reading \S+.* needs {library}: pip install 'unmask\[{extra}\]'"
    with pytest.raises(InputError, match=told):
        find_files([tree])
    with pytest.raises(InputError, match=f"needs {library}"):
        find_files(["-"], format=str(extra))
