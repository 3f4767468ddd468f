"""Files of one word a line, in each published layout: what is a word, what a mark, and what is refused where."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from support.files import write
from unmask.errors import InputError
from unmask.io.rows import Row
from unmask.tasks.base import ExampleCounts
from unmask.tasks.tagging.conll import (
    Reader,
    SentenceRow,
    read_columns,
    read_conllu,
    read_gold_conll,
    read_klue_ner,
    read_morphemes,
    read_props,
    read_single_sentences,
    read_wikiann,
)

Read = Callable[..., list[Row]]


@pytest.fixture
def read(tmp_path: Path) -> Read:
    """Reads a text with a reader, from the file `a`."""
    return lambda reader, text, note=lambda what, count: None: list(reader(write(tmp_path / "a", text), note))


def lines_of(rows: list[Row]) -> list[tuple[int, ...]]:
    return [row.lines for row in rows if isinstance(row, SentenceRow)]


def test_columns_with_tabs_or_blanks(read: Read, tmp_path: Path) -> None:
    rows = read(read_columns, "Ada\tB-person\nwrites\tO\n\nin O\nLondon  B-location\n")
    assert [row.fields for row in rows] == [
        {"tokens": ["Ada", "writes"], "tags": ["B-person", "O"]},
        {"tokens": ["in", "London"], "tags": ["O", "B-location"]},
    ]
    assert [row.source for row in rows] == [f"{tmp_path / 'a'}:1", f"{tmp_path / 'a'}:4"]
    assert lines_of(rows) == [(1, 2), (4, 5)]


def test_columns_between_the_first_and_the_last_are_passed_over(read: Read) -> None:
    (row,) = read(read_columns, "-DOCSTART- -X- -X- O\n\nAda NNP I-NP I-PER\nwrites VBZ I-VP O\n")
    assert row.fields == {"tokens": ["Ada", "writes"], "tags": ["I-PER", "O"], "document": 1}


def test_documents_begin_and_lie_between_sentences(read: Read) -> None:
    rows = read(read_columns, "a O\n\nb O\n\n-DOCSTART- O\n\nc O\n-DOCSTART- O\nd O\n\n-DOCSTART- O\n\n")
    found = [(row.fields["tokens"], row.fields["document"]) for row in rows]
    assert found == [(["a"], 0), (["b"], 0), (["c"], 1), (["d"], 2)]


def test_files_without_marks_tell_no_documents(read: Read) -> None:
    assert "document" not in read(read_columns, "a O\n\nb -DOCSTART-\n")[0].fields
    assert "document" not in read(read_conllu, CONLLU.replace("newdoc", "newpar"))[0].fields
    assert "document" not in read(read_gold_conll, GOLD.replace("#begin document", "#end document"))[0].fields
    assert "document" not in read(read_props, PROPS)[0].fields
    assert "document" not in read(read_morphemes, "나는\t나/NP+는/JX\n")[0].fields


def test_whatever_is_no_mark_of_the_format_is_part_of_a_word(read: Read) -> None:
    odd = ["#", "#tag", '"', '""', "'", "a\u00a0b", "\u2028", "a\u2028b", "\ufeff", "\u200b", "\x0b", "|"]
    for separator, end in (("\t", "\n"), (" ", "\n"), ("\t", "\r\n"), (" ", "\r\n")):
        text = end.join(f"{token}{separator}O" for token in ["first", *odd])
        (row,) = read(read_columns, text)
        assert row.fields["tokens"] == ["first", *odd]
    (row,) = read(read_columns, "New York\tB-LOC\nCity\tI-LOC")  # a blank in a word, and no last line end
    assert row.fields["tokens"] == ["New York", "City"]


def test_lines_of_nothing_but_separators_end_sentences(read: Read) -> None:
    rows = read(read_single_sentences, "a\tO\n\t\nb\tO\n \nc\tO\n\n\n\t\t\n\n")
    assert [row.fields for row in rows] == [{"tokens": [token], "tags": ["O"]} for token in "abc"]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("a O\nb\n", r"a:2: 'b' has 1 columns: expected at least 2"),
        ("a\tO\nb\t\n", r"a:2: 'b\\t' has 1 columns"),
        ("a\tO\n\tO\n", r"a:2: '\\tO' has 1 columns"),
        ("a O\n\nNew York O\n", r"a:3: 3 columns, and the lines before have 2"),
        ("", r"a: the file is empty"),
    ],
)
def test_ragged_columns_are_refused(read: Read, text: str, told: str) -> None:
    with pytest.raises(InputError, match=told):
        read(read_columns, text)


def test_wikiann_with_and_without_the_language(read: Read) -> None:
    rows = read(read_wikiann, "en:Ada\tB-PER\nen::\tO\n\nen:re:x\tO\nOslo\tB-LOC\n")
    assert [row.fields["tokens"] for row in rows] == [["Ada", ":"], ["re:x", "Oslo"]]
    rows = read(read_wikiann, "re:x\tO\nAda\tB-PER\n\nen:Ada\tO\n")
    assert [row.fields["tokens"] for row in rows] == [["re:x", "Ada"], ["en:Ada"]]


KLUE = """\
## 토큰, 레이블 구분자 : \\t
## 주석 : ##
## klue-ner-v1_dev_00000-made\t<가나:PS>는 #1
가\tB-PS
나\tI-PS
는\tO
 \tO
#\tO
1\tO

## klue-ner-v1_dev_00001-made\t<다 라:LC>
다\tB-LC
 \tI-LC
라\tI-LC
"""


def test_klue_ner_reads_blanks_and_number_signs_as_characters(read: Read) -> None:
    rows = read(read_klue_ner, KLUE)
    assert [row.fields for row in rows] == [
        {"id": "klue-ner-v1_dev_00000-made", "tokens": [*"가나는 #1"], "tags": ["B-PS", "I-PS", "O", "O", "O", "O"]},
        {"id": "klue-ner-v1_dev_00001-made", "tokens": [*"다 라"], "tags": ["B-LC", "I-LC", "I-LC"]},
    ]
    assert lines_of(rows) == [(4, 5, 6, 7, 8, 9), (12, 13, 14)]
    assert [row.fields for row in read(read_klue_ner, KLUE.replace("\n", "\r\n"))] == [row.fields for row in rows]
    with pytest.raises(InputError, match="a:4: '가 B-PS': expected a character, a tab and its tag"):
        read(read_klue_ner, KLUE.replace("가\tB", "가 B"))


CONLLU = """\
# newdoc id = one
# sent_id = s1
# text = Dámelo #1.
1-3\tDámelo\t_\t_\t_\t_\t_\t_\t_\t_
1\tDa\tdar\tVERB\t_\t_\t0\troot\t_\t_
2\tme\tyo\tPRON\t_\t_\t1\tiobj\t_\t_
3\tlo\tél\tPRON\t_\t_\t1\tobj\t_\t_
3.1\tya\tya\tADV\t_\t_\t_\t_\t_\t_
4\t#\t#\tSYM\t_\t_\t1\tdep\t_\t_

# newdoc
# sent_id = s2
1\tNew York\tNew York\tPROPN\t_\t_\t0\troot\t_\t_
"""


def test_conllu_without_ranges_and_empty_nodes(read: Read) -> None:
    counts = ExampleCounts()
    rows = read(read_conllu, CONLLU, counts.note)
    assert [row.fields for row in rows] == [
        {"id": "s1", "tokens": ["Da", "me", "lo", "#"], "tags": ["VERB", "PRON", "PRON", "SYM"], "document": 1},
        {"id": "s2", "tokens": ["New York"], "tags": ["PROPN"], "document": 2},
    ]
    assert counts.notes == {"multiword ranges and empty nodes left out": 2}
    assert lines_of(rows) == [(5, 6, 7, 9), (13,)]
    with pytest.raises(InputError, match=r"a:5: 9 columns: expected CoNLL-U's ten"):
        read(read_conllu, CONLLU.replace("root\t_\t_\n2", "root\t_\n2"))
    with pytest.raises(InputError, match="a:7: 'lo' has no UPOS"):
        read(read_conllu, CONLLU.replace("él\tPRON", "él\t_"))


def test_morphemes_of_a_word_are_one_tag(read: Read) -> None:
    text = "BTAA-1\t나는\t나/NP+는/JX\nBTAA-2\t갔다.\t가/VV+았/EP+다/EF+./SF\nBTAA-3\t1+1/2\t1/SN++/SW+1/SN+//SP+2/SN\n"
    (row,) = read(read_morphemes, text)
    assert row.fields["tokens"] == ["나는", "갔다.", "1+1/2"]
    assert row.fields["tags"] == ["NP+JX", "VV+EP+EF+SF", "SN+SW+SN+SP+SN"]
    assert read(read_morphemes, "나는\t나/NP+는/JX\n")[0].fields["tags"] == ["NP+JX"]
    for wrong in ("나/NP+는", "나/NP+", "나", "나/np", "/A" * 10**6 + "b"):  # the last takes linear time
        with pytest.raises(InputError, match=r"a:2: .*expected morphemes with their tags"):
            read(read_morphemes, f"나는\t나/NP+는/JX\n나는\t{wrong}\n")


PROPS = """\
Ada     NNP  (S(NP*)   -      (A0*)    (A0*
says    VBZ  (VP*      say    (V*)     *)
she     PRP  *         -      (A1*     *
wrote   VBD  *         write  *        (V*)
#       #    *         -      *        (A1*)
1       CD   *))       -      *)       *

Nothing NN   (S*)      -
"""


def test_props_give_a_row_for_each_predicate(read: Read) -> None:
    counts = ExampleCounts()
    rows = read(read_props, PROPS, counts.note)
    tokens = ["Ada", "says", "she", "wrote", "#", "1"]
    assert [row.fields["tokens"] for row in rows] == [tokens, tokens]
    assert [row.fields["tags"] for row in rows] == [
        ["B-A0", "B-V", "B-A1", "I-A1", "I-A1", "I-A1"],
        ["B-A0", "I-A0", "O", "B-V", "B-A1", "O"],
    ]
    assert [row.fields["predicate"] for row in rows] == [1, 3]
    assert counts.notes == {"sentences without a predicate left out": 1}


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("-      *)       *\n", "-      *        *\n", "a:6: the role A1 is not closed where its sentence ends"),
        ("*        (A1*)", "*        *)", r"a:5: '\*\)' in a column of roles: expected"),
        ("write  *  ", "write  (A2*", r"a:4: '\(A2\*' in a column of roles: expected"),
        ("(V*)     *)\n", "*        *)\n", "a:1: 0 predicates in a column of roles"),
        ("1       CD   *))       -  ", "1       CD   *))  ", "a:6: 5 columns: expected 6"),
    ],
)
def test_broken_props_are_refused(read: Read, old: str, new: str, told: str) -> None:
    assert old in PROPS
    with pytest.raises(InputError, match=told):
        read(read_props, PROPS.replace(old, new))


GOLD = """\
#begin document (made/up/00); part 000
made/up/00 0 0 Ada NNP (TOP(S(NP*) - - - - (PERSON) (ARG0*) * (3)
made/up/00 0 1 said VBD (VP* say 01 1 - * (V*) (C-ARG1*) -
made/up/00 0 2 it PRP (S* - - - - * (ARG1*) (ARG1*) -
made/up/00 0 3 rained VBD *)))) rain 01 1 - * * (V*) -

made/up/00 0 0 Good UH * - - - - * -

#end document
#begin document (made/up/01); part 000
made/up/01 0 0 Go VB (TOP(S*)) go 01 1 - * (V*) -
#end document
"""


def test_gold_conll_gives_roles_and_documents(read: Read) -> None:
    rows = read(read_gold_conll, GOLD)
    assert [(row.fields["tokens"], row.fields["tags"]) for row in rows] == [
        (["Ada", "said", "it", "rained"], ["B-ARG0", "B-V", "B-ARG1", "O"]),
        (["Ada", "said", "it", "rained"], ["O", "B-C-ARG1", "B-ARG1", "B-V"]),
        (["Go"], ["B-V"]),
    ]
    assert [(row.fields["predicate"], row.fields["document"]) for row in rows] == [(1, 1), (3, 1), (0, 2)]


def test_published_files_are_read_whole(data_dir: Path) -> None:
    readers: list[tuple[Reader, str, int, int]] = [
        (read_single_sentences, "wnut17/train.conll", 3_394, 62_730),
        (read_single_sentences, "wnut17/dev.conll", 1_009, 15_733),
        (read_single_sentences, "wnut17/test.annotated", 1_287, 23_394),
        (read_columns, "wikigold/wikigold.conll.txt", 1_696, 39_007),
        (read_wikiann, "wikiann-en/train.txt", 20_000, 160_394),
        (read_wikiann, "wikiann-en/dev.txt", 10_000, 80_536),
        (read_wikiann, "wikiann-en/test.txt", 10_000, 80_326),
        (read_klue_ner, "klue-ner/klue-ner-v1.1_dev.tsv", 5_000, 285_929),
    ]
    for reader, file, num_sentences, num_tokens in readers:
        rows = list(reader(data_dir / "tasks" / file, lambda what, count: None))
        assert (len(rows), sum(len(row.fields["tokens"]) for row in rows)) == (num_sentences, num_tokens), file
        if file.startswith("wikigold"):
            assert len({row.fields["document"] for row in rows}) == 145
