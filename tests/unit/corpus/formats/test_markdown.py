"""Markdown: the words stay, the marks go."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.corpora import read
from support.files import write
from unmask.corpus.documents import Document
from unmask.corpus.formats.markdown import strip_markdown


@pytest.mark.parametrize(
    ("marked", "words"),
    [
        ("# Title\n\nText\nwrapped.", "Title\nText wrapped."),
        ("Title #1 ##\n===\nText\n\n## C# ##", "Title #1 ##\nText\nC#"),
        ("---\ntitle: x\ntags: [a]\n---\nText", "Text"),
        ("---\n\nText: a\n\n---\nMore", "Text: a\nMore"),
        ("a\n\n```python\n# no heading\n~~~\n```\nb\n~~~~\nx\n~~~\n~~~~\nc", "a\nb\nc"),
        ("a\n```\nnever closed", "a"),
        ("a <!-- gone\ntoo --> b <b>bold</b><br/> <https://x.y>", "a  b bold"),
        ("[a](http://x/(y)) [b][id] ![c](d.png \"e\") [![f](g)](h)\n\n[id]: http://z", "a b"),
        ("*a* **b** ***c*** ~~d~~ _e_ __f__", "a b c d e f"),
        ("snake_case_name 2 * 3 * 4 \\*g\\*", "snake_case_name 2 * 3 * 4 *g*"),
        ("**서울**은 _수도_ 이다", "서울은 수도 이다"),
        ("**use `a*b*c` now** ``d`` `<x>`", "use a*b*c now d <x>"),
        ("> quote\n> > deeper\ngoes on", "quote\ndeeper goes on"),
        ("- one\n* two\n  goes on\n+ [x] three\n1. four\n2) five", "one\ntwo goes on\nthree\nfour\nfive"),
        ("Text\n\n| a | b |\n|---|:-:|\n| 1 | 2 |\n\nMore | or less", "Text\nMore | or less"),
        ("a | b\n--|--\n1 | 2\nlast\n\nafter", "after"),
        ("a\n\n***\n\nb\n- - -\nc", "a\nb\nc"),
        ("AT&amp;T &copy; &copy 5 < 6", "AT&T © &copy 5 < 6"),
        ("\0 0 \0 `a`", "\ufffd 0 \ufffd a"),
        ("<div>\nText *a*\n\n<!-- gone\n\ntoo --> *b* &lt;\n</div>\n\n`<!--` c", "Text a\nb <\n<!-- c"),
        ("a\n\n    two  lines\n      of *code*\n\nb", "a\ntwo lines of *code*\nb"),
        ("[*a* `]`](x 'b [c]') <a href='>'>d</a>\\\ne", "a ] d e"),
        ("- a\n\n  b\n  - c\n\n    ```\n    gone\n    ```\n- [ ] d\n\n[ ] e\n# [x] f", "a\nb\nc\nd\n[ ] e\n[x] f"),
        ("a[^1] b\n\n[^1]: a note", "a b\na note"),
    ],
)  # fmt: skip
def test_words_stay_and_marks_go(marked: str, words: str) -> None:
    assert strip_markdown(marked) == words


@given(st.lists(st.lists(st.text("abc가é,.", min_size=1), min_size=1).map(" ".join), min_size=1))
def test_plain_paragraphs_stay_as_they_are(paragraphs: list[str]) -> None:
    assert strip_markdown("\n\n".join(paragraphs)) == "\n".join(paragraphs)


@pytest.mark.parametrize("mark", ["*", "_", "`", "[", "](", "<", "![", "&", "\\", "|", "- ", "> ", "---\n", "<!--"])
def test_many_marks_that_nothing_closes(mark: str) -> None:
    """Code and comments go to the end of the text, and what is nested as deep as this is left out."""
    stripped = strip_markdown(mark * 8_000 + "x")
    assert stripped.endswith("x") or (mark in ("`", "<!--", "- ", "> ") and stripped == "")


def test_a_long_word_that_begins_no_front_matter() -> None:
    word = "a" * 500_000
    assert strip_markdown(f"---\n{word}\n") == word


@pytest.mark.parametrize(
    ("opened", "closed", "stays"),
    [("![", "](a)", 0), ("[", "](a)", 1000), ("[![", "](a)](b)", 0), ("> ", "", 99), ("*a ", "*", 1000)],
)
@pytest.mark.parametrize("depth", [45, 90, 99, 1000])
def test_marks_within_marks(opened: str, closed: str, stays: int, depth: int) -> None:
    """A text in an image goes with it, and what is nested too deep; any other stays, up to the depth `stays`."""
    assert ("x" in strip_markdown(opened * depth + "x" + closed * depth)) == (depth <= stays)


def test_a_file_is_a_document(tmp_path: Path) -> None:
    path = write(tmp_path / "a.md", b"# One\r\n\r\ntwo\r\nthree\r\n")
    documents, _ = read(path)
    assert documents == [Document("One\ntwo three", f"{path}:1")]
