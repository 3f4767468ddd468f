"""Files of minimal pairs."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.files import write, write_rows
from unmask.errors import InputError
from unmask.io.input_files import InputFiles
from unmask.io.settings import TableSettings
from unmask.tasks.minimal_pairs.reading import MinimalPair, Paradigm, read_paradigms, sample


def blimp(path: Path, *pairs: tuple[str, str], **fields: str) -> Path:
    return write_rows(path, *({"sentence_good": good, "sentence_bad": bad, **fields} for good, bad in pairs))


def test_a_folder_is_its_files_by_name_whatever_their_layout(tmp_path: Path) -> None:
    blimp(tmp_path / "b.jsonl", ("He eats.", "He eat."), UID="agreement", linguistics_term="morphology", field="x")
    (tmp_path / "a.txt").write_text("wrong one\nright one\nwrong two\nright two\n")
    (tmp_path / "c.csv").write_text('sentence_good,sentence_bad\n"Well, yes.",Well yes.\n')
    for name in ("README.md", "README.txt", "LICENSE.txt", ".hidden.txt"):
        (tmp_path / name).write_text("about\nthem\n")
    assert read_paradigms(tmp_path) == [
        Paradigm("a", "", (MinimalPair("right one", "wrong one"), MinimalPair("right two", "wrong two"))),
        Paradigm("agreement", "morphology", (MinimalPair("He eats.", "He eat."),)),
        Paradigm("c", "", (MinimalPair("Well, yes.", "Well yes."),)),
    ]


def test_the_rows_of_a_file_may_name_several_paradigms(tmp_path: Path) -> None:
    rows = "two\tA.\tB.\none\tC.\tD.\ntwo\tE.\tF.\n"
    table = write(tmp_path / "pairs.tsv", f"UID\tsentence_good\tsentence_bad\n{rows}")
    assert [(each.name, len(each.pairs)) for each in read_paradigms(table)] == [("one", 1), ("two", 2)]


def test_a_sample_is_spread_over_each_paradigm(tmp_path: Path) -> None:
    path = blimp(tmp_path / "a.jsonl", *[(f"good {number}", f"bad {number}") for number in range(10)])
    [few] = sample(read_paradigms(path), 3)
    assert [pair.good for pair in few.pairs] == ["good 0", "good 3", "good 6"]
    assert sample(read_paradigms(path), 100) == read_paradigms(path)
    [more] = sample(read_paradigms(path), 6)
    assert [pair.good[-1] for pair in more.pairs] == ["0", "1", "3", "5", "6", "8"]


def test_a_table_of_ones_own(tmp_path: Path) -> None:
    expected = (MinimalPair("He eats.", "He eat."),)
    named = write(tmp_path / "named.csv", "bad,good\nHe eat.,He eats.\n")
    assert read_paradigms(named)[0].pairs == expected
    assert read_paradigms(named)[0].pairs[0].place == f"{named}:2"
    nameless = write(tmp_path / "nameless.tsv", "He eats.\tHe eat.\n")
    assert read_paradigms(InputFiles((nameless,), TableSettings(header="none")))[0].pairs == expected


def test_korean_files_of_windows_are_read_with_their_encoding(tmp_path: Path) -> None:
    path = tmp_path / "pairs.csv"
    path.write_bytes("sentence_good,sentence_bad\n책을 읽는다.,책를 읽는다.\n".encode("cp949"))
    [paradigm] = read_paradigms(InputFiles((path,), TableSettings(encoding="cp949")))
    assert paradigm.pairs == (MinimalPair("책을 읽는다.", "책를 읽는다."),)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.txt", "wrong\nright\nwrong\n", "a.txt: 3 lines: expected pairs"),
        ("a.txt", "", "there is nothing in it"),
        ("a.txt", "wrong\n\n", "a.txt:1: the right sentence is empty"),
        ("a.csv", "sentence_good,sentence_bad\nSame.,Same.\n", "a.csv:2: both sentences are 'Same.'"),
        (
            "a.csv",
            "left,right\nA.,B.\n",
            "a.csv:2: the columns are left, right: expected sentence_good and sentence_bad",
        ),
        ("a.jsonl", '{"sentence_good": "A."}\n', "a.jsonl:1: the columns are sentence_good: expected"),
        ("a.jsonl", '{"sentence_good": 5, "sentence_bad": "B."}\n', "a.jsonl:1: sentence_good is 5: expected a text"),
        ("a.jsonl", '{"sentence_good": "A.", "sentence_bad": "\\ud83d"}\n', "sentence_bad holds half of a surrogate"),
        ("a.pdf", "x", "unknown kind of file"),
    ],
)
def test_what_is_no_pair_is_refused_with_its_place(tmp_path: Path, name: str, text: str, message: str) -> None:
    with pytest.raises(InputError, match=message.replace("(", r"\(")):
        read_paradigms(write(tmp_path / name, text))


def test_a_few_pairs_of_equal_sentences_are_kept_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As in BLiMP's own files: passive_1 has two."""
    path = blimp(tmp_path / "passive_1.jsonl", ("A.", "B."), ("Same.", "Same."))
    [paradigm] = read_paradigms(path)
    assert len(paradigm.pairs) == 2
    assert "passive_1.jsonl:2: both sentences are 'Same.'; pairs of twice the same sentence: 1 of 2" in caplog.text


def test_pairs_in_a_folder_of_a_folder_are_not_passed_over(tmp_path: Path) -> None:
    blimp(tmp_path / "a.jsonl", ("A.", "B."))
    write(tmp_path / ".git" / "c.txt", "no pair")
    write(tmp_path / "figures" / "curve.png", "no pair")
    assert len(read_paradigms(tmp_path)) == 1
    blimp(tmp_path / "more" / "b.jsonl", ("C.", "D."))
    with pytest.raises(InputError, match=r"more: a folder with b\.jsonl in a folder of minimal pairs: expected files"):
        read_paradigms(tmp_path)


def test_a_place_without_pairs_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no file of minimal pairs in it"):
        read_paradigms(tmp_path)
    with pytest.raises(InputError, match="no such file or folder"):
        read_paradigms(tmp_path / "missing")
