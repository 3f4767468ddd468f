"""Markdown files: the words, without the marks, one document per file.

Removed with their content: front matter, fenced code, HTML comments and tags, tables, images, link targets and their
definitions. Removed while their text stays: marks of headings, quotes, lists, emphasis and inline code. A paragraph,
heading or list item becomes a line. CommonMark and GitHub's tables are read in a simplified way, line by line: code
that is marked only by indentation stays.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Iterator

from unmask.corpus.documents import Document
from unmask.corpus.source import CorpusFile

_FRONT_MATTER = re.compile(r"---[ \t]*\n(?=[ \t]*[\w\"'#-]+[^\n:]*:|#)(?:.*\n)*?(?:---|\.\.\.)[ \t]*\n")
_COMMENT = re.compile(r"<!--.*?(?:-->|\Z)", re.DOTALL)
_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})")
# These match lines without the white space around them:
_BREAK = re.compile(r"=+|-+|([-*_])(\s*\1){2,}")  # below a heading, or between passages
_TABLE_RULE = re.compile(r"\|?\s*:?-+:?\s*(\|\s*:?-+:?\s*)*\|?")
_DEFINITION = re.compile(r"\[[^\]]+\]:\s")
_HEADING = re.compile(r"#{1,6}(?:\s+(.*)|$)")
_HEADING_END = re.compile(r"(?:^|\s)#+$")
_QUOTE = re.compile(r"(\s*>)+\s*")
_ITEM = re.compile(r"(?:[-*+]|\d{1,9}[.)])\s+(?:\[[ xX]\]\s+)?")

_CODE = re.compile(r"(`{1,2})([^`]+)\1")
_SAVED_CODE = re.compile("\0(\\d+)\0")
_TARGET = r"(?:\([^()]{0,1000}(?:\([^()]{0,1000}\)[^()]{0,1000})?\)|\[[^\[\]]*\])"
_IMAGE = re.compile(r"!\[[^\[\]]*\]" + _TARGET)
_LINK = re.compile(r"\[([^\[\]]*)\]" + _TARGET)
_TAG = re.compile(r"<(?:/?[A-Za-z][^<>]*|[a-z]+://[^<>\s]*)>")
_EMPHASIS = (
    re.compile(r"(?<!\\)(\*{1,3})(?=[^\s*])([^*]*[^\s*\\])\1"),
    re.compile(r"(?<![\w\\])(_{1,3})(?=[^\s_])([^_]*[^\s_\\])\1(?!\w)"),
    re.compile(r"(?<!\\)(~~)(?=[^\s~])([^~]*[^\s~\\])\1"),
)
_ESCAPE = re.compile(r"\\([!-/:-@\[-`{-~])")
_ENTITY = re.compile(r"&#?\w{1,32};")


def read_markdown(source: CorpusFile) -> Iterator[Document]:
    """The words of a file as one document; only these count as read."""
    text = "".join(line.rstrip("\r\n") + "\n" for _, line in source.lines())
    if text:
        yield Document(strip_markdown(text), f"{source.name}:1")


def strip_markdown(text: str) -> str:
    """The words of a text, one line per paragraph, heading or list item."""
    text = _COMMENT.sub("", _FRONT_MATTER.sub("", text, count=1) if text.startswith("---") else text)
    blocks = (_strip_marks(block) for block in _blocks(_without_code(text.split("\n"))))
    return "\n".join(block for block in blocks if block)


def _without_code(lines: Iterable[str]) -> Iterator[str]:
    """Lines outside fences, with a blank line for each block of code."""
    fence = ""
    for line in lines:
        mark = _FENCE.match(line)
        if not fence and mark:
            fence = mark[1]
            yield ""
        elif not fence:
            yield line
        elif mark and mark[1].startswith(fence) and not line.strip().strip(fence[0]):
            fence = ""


def _blocks(lines: Iterable[str]) -> Iterator[str]:
    """Paragraphs, headings and list items, their lines joined."""
    block: list[str] = []
    in_table = False
    for line in map(str.strip, lines):
        if line.startswith(">"):
            line = _QUOTE.sub("", line, count=1)
        if in_table and "|" in line:
            continue
        in_table = "|" in line and _TABLE_RULE.fullmatch(line) is not None
        if in_table:
            block = block[:-1]  # the table's header
        is_break = not line or in_table or _BREAK.fullmatch(line) or _DEFINITION.match(line)
        heading, item = _HEADING.match(line), _ITEM.match(line)
        if is_break or heading or item:
            yield " ".join(block)
            block = []
        if heading:
            yield _HEADING_END.sub("", heading[1] or "")
        elif not is_break:
            block.append(line[item.end() :] if item else line)
    yield " ".join(block)


def _strip_marks(block: str) -> str:
    """The words of a block. Code is set aside meanwhile, since marks in it are plain text."""
    codes: list[str] = []

    def save_code(match: re.Match[str]) -> str:
        codes.append(match[2].strip())
        return f"\0{len(codes) - 1}\0"

    text = _CODE.sub(save_code, block.replace("\0", "\ufffd"))  # U+0000 is replaced as in CommonMark
    text = _TAG.sub("", _LINK.sub(r"\1", _IMAGE.sub("", text)))
    for pattern in _EMPHASIS:
        text = pattern.sub(r"\2", pattern.sub(r"\2", text))
    text = _ENTITY.sub(lambda match: html.unescape(match[0]), _ESCAPE.sub(r"\1", text))
    return _SAVED_CODE.sub(lambda match: codes[int(match[1])], text).strip()
