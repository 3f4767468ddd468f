"""Project Gutenberg books: what is the book stays, the licence goes, and not a byte is unaccounted for."""

from __future__ import annotations

import tempfile
import textwrap
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.corpora import read
from support.files import write
from unmask.corpus.documents import CorpusCounts, Document
from unmask.corpus.settings import ReadingSettings
from unmask.errors import InputError

FIXTURE = Path(__file__).parent / "fixtures" / "pg99999.txt"  # the layout of 2024, its licence shortened
WHAT = "Gutenberg licence lines"

TITLE = "THE WREN'S TALE"
BOOK = """\
THE WREN'S TALE

by Nobody




CHAPTER I.

The Hedge


There was once a wren that lived in a hedge behind the mill, and sang so loudly that the miller—who was not a patient \
man—could not sleep past four.

“Be quiet!” he said.

    But still she sang,
      and still the hedge
    Was green.

_To the Miller_,
  The Mill.

CHAPTER II.

Nothing more is known of either, although a good deal was said at the time."""


def check_account(documents: list[Document], counts: CorpusCounts, path: Path) -> None:
    handed_on = sum(len(document.text.encode()) for document in documents)
    in_file = len(path.read_text("utf-8-sig").encode())  # no byte order mark, line ends count as one
    assert handed_on + counts.bytes_read == in_file
    assert counts.bytes_read == sum(amount.utf8_bytes for amount in counts.removed.values())


def test_a_book_is_found_by_its_mark_and_stripped_of_its_licence() -> None:
    lines = FIXTURE.read_text("utf-8-sig").splitlines()
    documents, counts = read(FIXTURE)
    assert documents == [Document(BOOK, f"{FIXTURE}:{1 + lines.index(TITLE)}")]
    check_account(documents, counts, FIXTURE)
    num_book_lines = BOOK.count("\n") + 1 + 3  # three line breaks became spaces
    assert counts.removed[WHAT].count == len(lines) - num_book_lines
    assert counts.file_bytes == FIXTURE.stat().st_size


def test_as_txt_it_stays_as_it_is() -> None:
    documents, counts = read(FIXTURE, ReadingSettings(format="txt"))
    assert documents[0].text == "The Project Gutenberg eBook of The Wren's Tale"
    assert not counts.removed


OLD_MARKS = {
    "2005": (
        "The Project Gutenberg EBook of A, by B\n\n***START OF THE PROJECT GUTENBERG EBOOK A***\n\n\n"
        "E-text prepared by C\n",
        "End of the Project Gutenberg EBook of A, by B\n\n***END OF THE PROJECT GUTENBERG EBOOK A***\n",
    ),
    "2010": (
        "\n*** START OF THIS PROJECT GUTENBERG EBOOK A ***\n\n\n\n\nProduced by C and\nD\n",
        "End of Project Gutenberg's A, by B\n\n*** END OF THIS PROJECT GUTENBERG EBOOK A ***\n\nlicence\n",
    ),
    "1995": (
        "**The Project Gutenberg Etext of A**\n\n***START**THE SMALL PRINT!**FOR PUBLIC DOMAIN ETEXTS**START***\n"
        "Why is this here?\n*END*THE SMALL PRINT! FOR PUBLIC DOMAIN ETEXTS*Ver.04.29.93*END*\n",
        "End of The Project Gutenberg Etext of A, by B\n",
    ),
    "no end": ("*** START OF THE PROJECT GUTENBERG EBOOK A ***\n", ""),
    "small print within": (
        "*** START OF THE PROJECT GUTENBERG EBOOK A ***\n\nsmall print\n"
        "*END THE SMALL PRINT! FOR EBOOKS*Ver.02/11/02*END*\n",
        "*** END OF THE PROJECT GUTENBERG EBOOK A ***",
    ),
}


@pytest.mark.parametrize("marks", OLD_MARKS.values(), ids=OLD_MARKS.keys())
def test_marks_of_all_years_are_known(tmp_path: Path, marks: tuple[str, str]) -> None:
    path = write(tmp_path / "a.txt", f"{marks[0]}\n\nCHAPTER I\n\nThe book.\n\n{marks[1]}")
    documents, counts = read(path)
    assert [document.text for document in documents] == ["CHAPTER I\n\nThe book."]
    check_account(documents, counts, path)


def test_several_books_in_a_file_are_several_documents(tmp_path: Path) -> None:
    start, end = OLD_MARKS["2010"]
    cut = "header\n*** START OF THE PROJECT GUTENBERG EBOOK A ***\nThe book without an end.\n"
    path = write(tmp_path / "a.txt", f"{start}\nOne.\n{end}{cut}{start}\nThree.\n\n\n{end}")
    documents, counts = read(path)
    assert [document.text.split("\n")[0] for document in documents] == ["One.", "The book without an end.", "Three."]
    check_account(documents, counts, path)


def test_a_book_without_a_word_is_all_licence(tmp_path: Path) -> None:
    path = write(tmp_path / "a.txt", "".join(OLD_MARKS["2010"]))
    documents, counts = read(path)
    assert (documents, counts.empty_files) == ([], 1)
    check_account(documents, counts, path)


def test_a_text_that_only_speaks_of_it_far_in_is_a_text(tmp_path: Path) -> None:
    path = write(tmp_path / "a.txt", "words\n" * 20_000 + "*** START OF THE PROJECT GUTENBERG EBOOK A ***\n")
    assert read(path)[0][0].source == f"{path}:1"


def test_a_file_without_a_book_is_told(tmp_path: Path) -> None:
    path = write(tmp_path / "a.txt", "just text\n")
    with pytest.raises(InputError, match=r"a\.txt: no line that begins with '\*\*\* START OF THE PROJECT"):
        read(path, ReadingSettings(format="gutenberg"))
    documents, counts = read(path, ReadingSettings(format="gutenberg", on_error="skip"))
    assert (documents, counts.skipped, counts.bytes_read) == ([], {"no Gutenberg book": 1}, 0)


def test_a_book_that_is_not_utf8_is_passed_over_whole(tmp_path: Path) -> None:
    start, end = OLD_MARKS["2010"]
    path = write(tmp_path / "a.txt", f"{start}\nA café.\n\nMore.\n{end}".encode("latin-1"))
    with pytest.raises(InputError, match=r"a\.txt:10: not UTF-8 at byte"):
        read(path)
    documents, counts = read(path, ReadingSettings(on_error="skip"))
    assert (documents, counts.skipped) == ([], {"not UTF-8": 1})
    assert counts.bytes_read == counts.removed[WHAT].utf8_bytes


WORDS = st.lists(st.text("abcdéf가.,", min_size=1, max_size=12), min_size=1, max_size=60).map(" ".join)


@given(st.lists(WORDS, min_size=1), st.integers(50, 80))
def test_paragraphs_that_were_wrapped_are_lines_again(paragraphs: list[str], width: int) -> None:
    wrapped = "\n\n".join(textwrap.fill(p, width, break_on_hyphens=False, break_long_words=False) for p in paragraphs)
    with tempfile.TemporaryDirectory() as folder:
        path = write(Path(folder, "a.txt"), f"*** START OF THE PROJECT GUTENBERG EBOOK A ***\n\n{wrapped}\n")
        documents, counts = read(path)
        check_account(documents, counts, path)
    # a line of at least `width` - 12 characters is full: longer than 45 unless the width is at its least
    if width >= 45 + 12:
        assert [document.text for document in documents] == ["\n\n".join(paragraphs)]
    assert documents[0].text.split() == " ".join(paragraphs).split()
