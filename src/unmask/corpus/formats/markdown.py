"""Markdown files: the words, without the marks, one document per file.

Removed with their content: front matter, fenced code, HTML comments, tables, images, bare links, link targets and their
definitions, marks of footnotes. Removed while their text stays: marks of headings, quotes, lists, emphasis and inline
code, and HTML tags. A paragraph, heading or list item becomes a line, and so does code that is marked only by
indentation. Read as CommonMark, with GitHub's tables, crossed-out words and boxes to tick; what is nested over a
hundred levels deep is left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from markdown_it import MarkdownIt
from markdown_it.token import Token

from unmask.corpus.documents import Document
from unmask.corpus.source import CorpusFile

_FRONT_MATTER = re.compile(r"---[ \t]*\n(?=[ \t]*[\w\"'#-][^\n:]*:|#)(?:.*\n)*?(?:---|\.\.\.)[ \t]*\n")
_COMMENT = re.compile(r"<!--.*?(?:-->|\Z)", re.DOTALL)
_FOOTNOTE = re.compile(r"\[\^\w+\]:?")
_BOX = re.compile(r"\[[ xX]\]\s+")

_PARSER = MarkdownIt("commonmark", {"maxNesting": 100}).enable(["table", "strikethrough"])
_IN_HTML = MarkdownIt("commonmark", {"maxNesting": 100}).disable("html_block")


def read_markdown(source: CorpusFile) -> Iterator[Document]:
    """The words of a file as one document; only these count as read."""
    text = "".join(line.rstrip("\r\n") + "\n" for _, line in source.lines())
    if text:
        yield Document(strip_markdown(text), f"{source.name}:1")


def strip_markdown(text: str) -> str:
    """The words of a text, one line per paragraph, heading or list item."""
    text = _FRONT_MATTER.sub("", text, count=1) if text.startswith("---") else text
    return "\n".join(filter(None, _lines(_PARSER, _FOOTNOTE.sub("", text))))


def _lines(parser: MarkdownIt, text: str) -> Iterator[str]:
    in_table = begins_item = False
    for token in parser.parse(text):
        if token.type in ("table_open", "table_close"):
            in_table = token.type == "table_open"
        elif token.type == "html_block":
            yield from _lines(_IN_HTML, _COMMENT.sub("", token.content))
        elif token.type == "code_block":
            yield " ".join(token.content.split())
        elif token.type == "inline" and not in_table:
            words = _words(token)
            yield _BOX.sub("", words, count=1) if begins_item else words
        begins_item = token.type == "list_item_open" or (begins_item and token.type == "paragraph_open")


def _words(inline: Token) -> str:
    words: list[str] = []
    is_bare_link = False
    for child in inline.children or ():
        if child.markup == "autolink":
            is_bare_link = child.type == "link_open"
        elif child.type in ("softbreak", "hardbreak"):
            words.append(" ")
        elif child.type in ("text", "code_inline") and not is_bare_link:
            words.append(child.content)
    return "".join(words).strip()
