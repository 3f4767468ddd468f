"""Wikipedia dumps: the text passages of articles and nothing else, in constant memory, from damaged dumps too."""

from __future__ import annotations

import bz2
import random
import re
import tracemalloc
from itertools import pairwise
from pathlib import Path
from xml.sax.saxutils import escape

import mwparserfromhell
import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.corpora import SKIP, read, refused
from support.files import write
from unmask.corpus.documents import Amount, CorpusCounts, Document
from unmask.corpus.formats import wikitext
from unmask.corpus.formats.wikitext import extract_passages
from unmask.corpus.reading import read_files

FIXTURE = Path(__file__).parent / "fixtures" / "wiki-pages-articles.xml"  # the layout of export-0.11

WREN = """\
The wren (Troglodytes troglodytes) is a bird of the family wrens. It weighs, and its tail is short. It nests in \
crevices – and sings loudly & long.
The song is much louder than the bird would let one think. Recordings are kept in an archive.
It takes steps, or H2O. A second line.
A quotation stands alone.
Between templates the sentence goes on."""
GULTTUKSAE = """\
굴뚝새는 참새목 굴뚝새과의 조류이다. 몸길이는 10cm쯤이다.
한국에서는 텃새로, 겨울에는 마을로 내려온다."""


def page(title: str, text: str) -> str:
    revision = f"<model>wikitext</model><text bytes='1'>{escape(text)}</text>"
    return f"<page><title>{title}</title><ns>0</ns><id>1</id><revision>{revision}</revision></page>\n"


def write_dump(path: Path, pages: str) -> Path:
    return write(path, f"<mediawiki><siteinfo></siteinfo>\n{pages}</mediawiki>\n")


# ---- dumps


@pytest.mark.parametrize("streams", [0, 1, 3])
def test_articles_come_as_their_text_passages(tmp_path: Path, streams: int) -> None:
    path = FIXTURE
    if streams:  # a multistream dump is cut between pages; here anywhere
        path = tmp_path / "kowiki-20240501-pages-articles-multistream1.xml-p1p4.bz2"
        content = FIXTURE.read_bytes()
        cuts = [len(content) * cut // streams for cut in range(streams + 1)]
        path.write_bytes(b"".join(bz2.compress(content[a:b]) for a, b in pairwise(cuts)))
    documents, counts = read(path)
    assert documents == [Document(WREN, f"{path}:20"), Document(GULTTUKSAE, f"{path}:{line_of('굴뚝새')}")]
    assert counts == CorpusCounts(
        files=1,
        file_bytes=path.stat().st_size,
        documents_read=2,  # and those handed on, which their consumer counts
        dropped={"redirect page": Amount(1, 0), "not an article": Amount(1, 0)},
    )


def line_of(title: str) -> int:
    return FIXTURE.read_text("utf-8").split("\n").index(f"    <title>{title}</title>")


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("in_page", [1, 120])
def test_a_dump_cut_in_the_middle_names_the_last_complete_page(tmp_path: Path, packed: bool, in_page: int) -> None:
    prose = random.Random(0)
    pages = [page(f"Page {n}", " ".join(f"{prose.random()}" for _ in range(1_000))) for n in range(200)]
    path = write_dump(tmp_path / "a.xml", "".join(pages))
    whole = path.read_bytes()
    if packed:  # one stream for each page and its fringe, as in a multistream dump
        starts = [0, *(match.start() for match in re.finditer(b"<page>", whole)), len(whole)]
        streams = [bz2.compress(whole[a:b]) for a, b in pairwise(starts)]
        path = tmp_path / "a.xml.bz2"
        path.write_bytes(b"".join(streams[: in_page + 1]) + streams[in_page + 1][:1_000])
    else:
        path.write_bytes(whole[: whole.index(f"<title>Page {in_page}<".encode()) + 5_000])
    message = refused(path)
    place = f"after the page 'Page {in_page - 1}', which begins on line {in_page + 1}"
    assert message.startswith(f"{path}: the dump is damaged or cut short {place} (")
    assert message.endswith(
        "): fetch it again; or pass over what cannot be read with --on-error skip (in a recipe reading.on_error=skip)"
    )
    documents, counts = read(path, SKIP)
    assert len(documents) == in_page
    assert counts.skipped == {"damaged file": 1}


def test_a_dump_damaged_in_the_first_page_says_so(tmp_path: Path) -> None:
    path = write(tmp_path / "a.xml", "<mediawiki><page><title>A</title></pag")
    assert "the dump is damaged or cut short before the first page was complete (" in refused(path)


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ('<!DOCTYPE m [<!ENTITY a "aaaa"><!ENTITY b "&a;&a;">]><mediawiki>&b;</mediawiki>', "document type"),
        ('<!DOCTYPE m [<!ENTITY x SYSTEM "secret.txt">]><mediawiki>&x;</mediawiki>', "document type"),
        ('<!DOCTYPE mediawiki SYSTEM "http://example.org/m.dtd"><mediawiki></mediawiki>', "document type"),
        ("<TEI><text>words</text></TEI>", "its outermost element is <TEI>"),
    ],
)
def test_other_xml_is_refused_and_its_entities_are_not_followed(tmp_path: Path, content: str, told: str) -> None:
    path = write(tmp_path / "a.xml", content)
    expected = rf"{re.escape(str(path))}: not a Wikipedia dump: .*{told}.*: expected pages-articles"
    assert re.match(expected, refused(path))
    assert read(path, SKIP)[1].skipped == {"not a Wikipedia dump": 1}


def test_an_unknown_entity_or_text_that_is_not_utf8_is_damage(tmp_path: Path) -> None:
    for content in (b"<mediawiki>&unknown;</mediawiki>", b"<mediawiki>\xff</mediawiki>", b"no XML", b""):
        assert "damaged or cut short" in refused(write(tmp_path / "a.xml", content))


def test_pages_of_other_models_are_no_articles(tmp_path: Path) -> None:
    other = page("A", "{}").replace("wikitext", "json")
    documents, counts = read(write_dump(tmp_path / "a.xml", other + page("B", "Text.")))
    assert [document.text for document in documents] == ["Text."]
    assert counts.dropped == {"not an article": Amount(1, 0)}


def test_a_page_that_the_parser_fails_on_is_passed_over_by_title(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(text: str, **options: object) -> None:
        raise mwparserfromhell.parser.ParserError("a bug")  # type: ignore[no-untyped-call]

    monkeypatch.setattr(mwparserfromhell, "parse", fail)
    path = write_dump(tmp_path / "a.xml", page("A", "Fine.") + page("B", "Bad {{.") + page("C", "Fine too."))
    listed: list[tuple[str, str]] = []
    counts = CorpusCounts(on_skip=lambda source, reason: listed.append((source, reason)))
    assert [document.text for document in read_files([path], counts)] == ["Fine.", "Fine too."]
    assert listed == [(f"{path}:3 (B)", "wikitext not understood")]


def test_memory_does_not_grow_with_the_dump(tmp_path: Path) -> None:
    path = write_dump(tmp_path / "a.xml", page("A", "A page of text. " * 2_000) * 500)  # 16 MB
    tracemalloc.start()
    assert sum(1 for _ in read_files([path], CorpusCounts())) == 500
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 5e6


# ---- wikitext


@pytest.mark.parametrize(
    ("marked", "passages"),
    [
        ("One\nline.\n\nAnother.", "One line.\nAnother."),
        ("== H ==\nText\n===H===<!-- x -->\nMore", "Text\nMore"),
        ("Text\n* a\n# b\n: c\n; d\n----\nMore", "Text\nMore"),
        ("[[A]] [[A|b]] [[A|b]]s [[:Category:C]] [[:fr:D|e]] [[#f|g]] [[C++]]", "A b bs Category:C e g C++"),
        ("[[File:a.jpg|thumb|x [[b|c [[d]]]] y]]e [[Image:f.png]][[category:g]] [[fr:H]]", "e"),
        ("[http://x.y a b] [http://x.y] [//x.y c] http://z.w [sic]", "a b c http://z.w [sic]"),
        ("'''''a'' b''' ''c'' l''''homme'' d's", "a b c l'homme d's"),
        ("a{{b|{{c|x={{{d}}}}}|\n}}e {{f", "ae f"),
        ("{|\n| a\n{|\n| b\n|}\n|}\ntext {{a|}} {{b\n|}} more", "text more"),
        ("a\n{| class='x'\n|+ {{b|\n|}}\n|}\nc", "a\nc"),
        ("a<ref>b [[c]]</ref><ref name=d /><REF name='e'>f</REF>g<references/>", "ag"),
        ("a<ref>never closed\n\nb", "anever closed\nb"),
        ("a<!-- b\n\n{{ -->c<!-- never closed", "ac"),
        ("<math>x < y</math>a<gallery>\nFile:a|b\n</gallery><nowiki>[[b]]</nowiki>c<nowiki/>d", "acd"),
        ("x<sub>2</sub> <span style='a'>b</span><br />c <u>d</u><unknown>e</unknown> 1 < 2", "x2 b c de 1 < 2"),
        ("a<p>b</p><blockquote>c</blockquote>", "a\nb\nc"),
        ("__NOTOC__a __목차숨김__ __init__", "a __init__"),
        ("a&nbsp;&ndash;&nbsp;b &lt;ref> AT&T &amp;amp; &copy 1", "a – b <ref> AT&T &amp; &copy 1"),
        ("a ({{b}}) c ({{d}}; 1900) e (f, {{g}}) h {{i}}, j {{k}}.", "a c (1900) e (f) h, j."),
        ("[[File:a.jpg|thumb|see [1] and [[b]]]] c [[d|e [sic] f]] g", "c e [sic] f g"),
        ("!Kung people\n\n! a !! b\n| c\n|-\n}}", "!Kung people"),
        ("{{a}}\n\n[[Category:b]]\n.", ""),
    ],
)
def test_passages_of_wikitext(marked: str, passages: str) -> None:
    assert extract_passages(marked) == passages


PAIRS = "{{ }} [[ ]] {| |} <ref> </ref> <!-- --> ''"
MARKS = st.sampled_from([*"{}[]|'<>/!-=*#:;&\n a한", "\n{|", *PAIRS.split()])


@given(st.lists(MARKS, max_size=60).map("".join))
def test_any_marks_leave_one_paragraph_a_line(text: str) -> None:
    passages = extract_passages(text)
    assert all(line and line == line.strip() for line in passages.split("\n") if passages)
    assert "{{" not in passages
    assert "<!--" not in passages


@given(st.lists(st.text("abc가é,.", min_size=1).filter(lambda word: re.search(r"\w", word)), min_size=1))
def test_plain_text_stays_as_it_is(words: list[str]) -> None:
    assert extract_passages("\n\n".join(words)) == "\n".join(words)


LINK = st.builds("[[{}|{}]]".format, st.text("abc 가", min_size=1), st.text("def 나", min_size=1))
SENTENCE = st.recursive(
    st.one_of(st.text("abcé가 ", min_size=1), LINK, st.just("<ref>x</ref>"), st.just(" ''i'' ")),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3).map(lambda parts: "{{t|" + "|".join(parts) + "}}"),
        st.lists(inner, min_size=1, max_size=3).map("".join),
    ),
    max_leaves=12,
)


@given(SENTENCE)
def test_sound_wikitext_reads_as_the_full_parser_reads_it(text: str) -> None:
    """What our scan and patterns make of it is what `mwparserfromhell` makes of all of it."""
    code = mwparserfromhell.parse(text)
    for reference in code.filter_tags(matches=lambda tag: tag.tag == "ref", recursive=False):
        code.remove(reference)
    parsed = code.strip_code(normalize=False, collapse=False)
    assert extract_passages("-" + text).split() == ("-" + parsed).split() or not re.search(r"\w", parsed)


@pytest.mark.parametrize("mark", [*PAIRS.split(), "{|\n", "|}\n", "<ref", "(", "<", "&", "[http://"])
def test_marks_that_nothing_closes_take_no_time(mark: str) -> None:
    assert wikitext._without_links(wikitext._without_blocks(mark * 50_000), set()) is not None


@pytest.mark.parametrize(
    ("marked", "passages"),
    [
        ("x" + "<a " * 20_000, "x" + "<a " * 19_999 + "<a"),
        ("x" + "<a b='" * 20_000, "x" + "<a b='" * 20_000),
        ("x" + "{{a|" * 20_000, "x" + "a|" * 20_000),
        ("x" + '<i a="{{[[' * 20_000, "x" + '<i a="' * 20_000),
        ("x{{" + "[//a " * 20_000, "x" + "[//a " * 19_999 + "[//a"),
        ("[//a" + " " * 200_000 + "x", "[//a x"),
        ("[[" * 20_000 + "a" + "]]" * 20_000, "a"),
        ("a[[File:b|" + "[[c|" * 19 + "d" + "]]" * 20, "a"),
        (":" * 200_000 + "{|" * 100_000 + "\n\na", "a"),
    ],
    ids=["tags", "attributes", "templates", "mixed", "addresses", "blanks", "links", "a caption", "colons"],
)
def test_marks_by_the_thousand(marked: str, passages: str) -> None:
    """What would take minutes for a full parser, or for a pattern that tries every way, is removed by a simple one."""
    assert extract_passages(marked) == passages
