"""The text passages of an article in wikitext: no lists, tables and headers (BERT, section 3.1), nor templates,
references, files, categories, galleries, formulas and comments.

A scan and a few patterns remove nearly all marks of nearly all articles, some ten times as fast as a full parser.
Paragraphs in which any are left go to `mwparserfromhell`.
"""

from __future__ import annotations

import html
import re
from collections.abc import Collection

FILES_AND_CATEGORIES = frozenset({"file", "image", "media", "category"})
"""Namespaces whose links show no text; every wiki accepts these names besides its own."""

_LEFT_OUT = (
    "ce|chem|dl|gallery|graph|hiero|imagemap|indicator|inputbox|mapframe|maplink|math|nowiki|ol|pre|ref|references|score"
    "|section|source|syntaxhighlight|table|templatedata|templatestyles|timeline|ul"
)  # tags that are removed with their content
_TAG_END = {name: re.compile(rf"</{name}\s*>", re.IGNORECASE) for name in _LEFT_OUT.split("|")}
_TAG = re.compile(rf"<({_LEFT_OUT})(?=[\s/>])[^<>]*?(/)?>", re.IGNORECASE)
_BLOCK_MARK = re.compile(r"<!--|<[A-Za-z]|\{\{|\}\}|\{\||\|\}")
_CLOSED_BY = {"}}": "{{", "|}": "{|"}
_EXTERNAL_LINK = re.compile(r"(?<!\[)\[(?:[a-z]+:)?//[^\s\[\]<>]+(?:[ \t]++([^\[\]\n]*))?\]")
_INNERMOST_LINK = re.compile(r"\[\[([^\[\]]*)\]\]")
_LANGUAGE = re.compile(r"[a-z]{2,3}(-[a-z]+)*|simple")
_APOSTROPHES = re.compile(r"'{2,}")
_MAGIC_WORD = re.compile(r"__[^\W\d_a-z]{3,}__")
_BLOCK_TAG = re.compile(r"</?(?i:blockquote|center|div|p|poem|hr)(?:\s[^<>]*)?/?>")
_LINE_BREAK = re.compile(r"<(?i:br)\s*/?>")
_INLINE_TAG = re.compile(
    r"</?(?i:abbr|b|bdi|big|cite|code|del|dfn|em|font|i|includeonly|ins|kbd|noinclude|onlyinclude|q|s|samp|small|span"
    r"|strong|sub|sup|tt|u|var|wbr)(?:\s[^<>]*)?/?>"
)
_MARK_LEFT = re.compile(r"\[\[|\]\]|\{\{|\}\}|<[A-Za-z/!]")
_LOOSE_MARK = re.compile(r"\[\[|\]\]|\{\{+|\}\}+|</?[A-Za-z][^<>]*>")

_MOST_STEPS = 100_000
"""Characters of a paragraph that is parsed, times the marks in it: the parser begins anew after one that nothing
closes."""
_MOST_NESTED = 20
"""Links within links that are looked at."""
_LINE_BEGIN = 64
"""Characters at the beginning of a line in which the mark of a table may be, after blanks and colons."""

_NO_PASSAGE = re.compile(r"[*#:;|]|=.*=$|!.*(?:!!|\|)|----|\{\|")  # how lines of lists, headers and tables begin
_ENTITY = re.compile(r"&#?\w{1,32};")
_GAPS = {
    " )": re.compile(r"(?<![ ,;:])[ ,;:]++(?=\))"),
    "( ": re.compile(r"(?<=\() (?:[,;:] ?)*"),
    "(;": re.compile(r"(?<=\()[,;:][,;: ]*"),
    "(,": re.compile(r"(?<=\()[,;:][,;: ]*"),
    "()": re.compile(r" ?\(\)"),
    " ,": re.compile(r"(?<=\w) (?=, |,$)"),
    " .": re.compile(r"(?<=\w) (?=\. |\.$)"),
}
"""Signs of a gap where a mark was, and the characters to remove for each."""

_WORD = re.compile(r"\w")


def extract_passages(text: str, namespaces: Collection[str] = FILES_AND_CATEGORIES) -> str:
    """The paragraphs of an article, one a line.

    Of links and emphasis the text stays. Text that a template would have inserted into a sentence is missing;
    parentheses that held nothing else are removed.

    Args:
        namespaces: lower-case names of the namespaces whose links show no text.

    Raises:
        mwparserfromhell.parser.ParserError: the parser fails on this text.
    """
    text = _without_blocks(text)
    text = _EXTERNAL_LINK.sub(lambda match: match[1] or "", text)
    text = _without_links(text, namespaces)
    text = _APOSTROPHES.sub(_apostrophes, text)
    text = _MAGIC_WORD.sub("", text)
    if "<" in text:
        text = _INLINE_TAG.sub("", _LINE_BREAK.sub(" ", _BLOCK_TAG.sub("\n\n", text)))
    paragraphs = (_parse(each, namespaces) if _MARK_LEFT.search(each) else each for each in _paragraphs(text))
    return "\n".join(filter(_WORD.search, map(_tidy, paragraphs)))


def _without_blocks(text: str) -> str:
    """Text without comments, templates, tables, and tags that are removed with their content; unclosed marks stay."""
    opened: list[tuple[str, int]] = []  # templates and tables open at this place: mark and beginning
    num_opened = {"{{": 0, "{|": 0}
    removed: list[tuple[int, int]] = []
    unclosed: set[str] = set()  # tags that are not closed anywhere from here on
    position = 0
    while found := _BLOCK_MARK.search(text, position):
        mark = found[0]
        begin, position = found.span()
        if mark == "<!--":
            end = text.find("-->", position)
            position = len(text) if end < 0 else end + 3
        elif mark[0] == "<":
            end = _end_of_tag(text, begin, unclosed)
            if end < 0:
                continue
            position = end
        elif mark in num_opened:
            if mark == "{{" or _begins_line(text, begin):
                opened.append((mark, begin))
                num_opened[mark] += 1
            continue
        else:
            if mark == "|}" and (_closes_template(text, begin) or not _begins_line(text, begin)):
                position = begin + 1
                continue
            if not num_opened[_CLOSED_BY[mark]]:
                continue
            closed = ""
            while closed != _CLOSED_BY[mark]:  # unclosed marks inside it end here too
                closed, begin = opened.pop()
                num_opened[closed] -= 1
        while removed and removed[-1][0] > begin:
            removed.pop()
        removed.append((begin, position))
    kept = zip([0, *(end for _, end in removed)], [*(begin for begin, _ in removed), len(text)], strict=True)
    return "".join(text[begin:end] for begin, end in kept)


def _end_of_tag(text: str, begin: int, unclosed: set[str]) -> int:
    """Where a tag that is removed with its content ends; -1 if it is another tag, or is not closed."""
    tag = _TAG.match(text, begin)
    if not tag:
        return -1
    if tag[2]:
        return tag.end()
    name = tag[1].lower()
    end = None if name in unclosed else _TAG_END[name].search(text, tag.end())
    if not end:
        unclosed.add(name)
        return -1
    return end.end()


def _closes_template(text: str, begin: int) -> bool:
    """True for the bar of `|}}`, an empty last parameter; `|}}}` is the end of a table, and of a template around it."""
    return text[begin + 2 : begin + 3] == "}" and text[begin + 3 : begin + 4] != "}"


def _begins_line(text: str, position: int) -> bool:
    begin = max(0, position - _LINE_BEGIN)
    _, line_end, line = text[begin:position].rpartition("\n")
    return (begin == 0 or line_end != "") and not line.strip(" \t:")


def _without_links(text: str, namespaces: Collection[str]) -> str:
    """Text with links replaced by their labels, from the inside out: a file's caption may hold links."""

    def label(match: re.Match[str]) -> str:
        target, bar, label = match[1].partition("|")
        prefix, colon, _ = target.partition(":")
        if colon:
            prefix = prefix.strip().lower()
            if prefix in namespaces or (not bar and _LANGUAGE.fullmatch(prefix)):
                return ""
        return label or target.removeprefix(":")

    for _ in range(_MOST_NESTED):
        text, num_links = _INNERMOST_LINK.subn(label, text)
        if not num_links:
            break
    return text


def _apostrophes(match: re.Match[str]) -> str:
    return "'" if len(match[0]) == 4 else ""  # '''' is one apostrophe and the mark of bold


def _parse(paragraph: str, namespaces: Collection[str]) -> str:
    """A paragraph without its marks, by a full parser; any marks still left are unpaired.

    Of one with more marks than articles have, only these are removed.
    """
    import mwparserfromhell

    if len(paragraph) * sum(map(paragraph.count, "<[{")) > _MOST_STEPS:
        return _LOOSE_MARK.sub("", paragraph)
    code = mwparserfromhell.parse(paragraph, skip_style_tags=True)
    for link in code.filter_wikilinks():
        prefix, colon, _ = str(link.title).partition(":")
        if colon and prefix.strip().lower() in namespaces:
            code.remove(link)
    return _LOOSE_MARK.sub("", code.strip_code(normalize=False, collapse=False))


def _paragraphs(text: str) -> list[str]:
    """Runs of lines that are neither blank nor part of a list, a header or a table, each run joined into one line."""
    paragraphs: list[list[str]] = [[]]
    for line in map(str.strip, text.split("\n")):
        if line and not _NO_PASSAGE.match(line):
            paragraphs[-1].append(line)
        elif paragraphs[-1]:
            paragraphs.append([])
    return [" ".join(lines) for lines in paragraphs]


def _tidy(paragraph: str) -> str:
    """A paragraph with its entities as characters and without the gaps where marks were."""
    if "&" in paragraph:
        paragraph = _ENTITY.sub(lambda match: html.unescape(match[0]), paragraph)
    paragraph = paragraph.replace("\t", " ").replace("\u00a0", " ")
    while "  " in paragraph:
        paragraph = paragraph.replace("  ", " ")
    for gap, repaired in _GAPS.items():
        if gap in paragraph:
            paragraph = repaired.sub("", paragraph)
    return paragraph.strip()
