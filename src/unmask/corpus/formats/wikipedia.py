"""Wikipedia dumps (`pages-articles.xml`): the articles' text passages, one document per article.

The XML is read by expat as a stream. A document type, and with it every custom entity, is refused: dumps have none,
and attacks through XML use them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO
from xml.parsers import expat

from unmask.corpus.documents import Document
from unmask.corpus.formats.wikitext import FILES_AND_CATEGORIES, extract_passages
from unmask.corpus.source import CorpusFile
from unmask.io.reading import DamagedData

CHUNK_BYTES = 64 * 1024

_FILE_AND_CATEGORY_KEYS = ("-2", "6", "14")
_FIELDS = {"title": "title", "ns": "namespace", "model": "model", "text": "text"}
"""The elements of a page, and the fields of `Page` that hold them."""


@dataclass
class Page:
    """A page of a dump."""

    line: int  # of the file, on which it begins
    title: str = ""  # with its namespace
    namespace: str = "0"  # 0 is that of articles
    model: str = "wikitext"  # the format of its text: `wikitext`, `json` ..
    redirects: bool = False  # True if it only redirects to another page
    text: str = ""  # of its last revision


class NotADump(Exception):  # noqa: N818  what is wrong, in the words of the message
    """The XML is not that of a dump."""


class DumpParser:
    """Parses a dump piece by piece.

    Attributes:
        pages: those completed since the list was last emptied.
        namespaces: lower-case names of the namespaces of files and categories, including the wiki's own names.
    """

    def __init__(self) -> None:
        self.pages: list[Page] = []
        self.namespaces = set(FILES_AND_CATEGORIES)
        self._parser = expat.ParserCreate()
        self._parser.buffer_text = True
        self._parser.buffer_size = CHUNK_BYTES
        self._parser.StartDoctypeDeclHandler = self._refuse_doctype
        self._parser.StartElementHandler = self._start_root
        self._parser.EndElementHandler = self._end
        self._page = Page(0)
        self._namespace_key = ""
        self._pieces: list[str] = []

    def feed(self, chunk: bytes) -> None:
        """Parses the next bytes; an empty chunk means the end.

        Raises:
            ExpatError: this is not XML, or it is cut short.
            NotADump: it has a document type, or is XML of another kind.
        """
        self._parser.Parse(chunk, not chunk)

    def _refuse_doctype(self, *_: object) -> None:
        raise NotADump("it has a document type, which no dump has")

    def _start_root(self, name: str, attributes: dict[str, str]) -> None:
        if name != "mediawiki":
            raise NotADump(f"its outermost element is <{name}>")
        self._parser.StartElementHandler = self._start

    def _start(self, name: str, attributes: dict[str, str]) -> None:
        if name in _FIELDS or name == "namespace":
            self._pieces = []
            self._parser.CharacterDataHandler = self._pieces.append
            self._namespace_key = attributes.get("key", "")
        elif name == "page":
            self._page = Page(self._parser.CurrentLineNumber)
        elif name == "redirect":
            self._page.redirects = True

    def _end(self, name: str) -> None:
        if name == "page":
            self.pages.append(self._page)
        if name not in _FIELDS and name != "namespace":
            return
        self._parser.CharacterDataHandler = None
        content = "".join(self._pieces)
        if name in _FIELDS:
            setattr(self._page, _FIELDS[name], content)
        elif self._namespace_key in _FILE_AND_CATEGORY_KEYS:
            self.namespaces.add(content.lower())


def read_wikipedia(source: CorpusFile) -> Iterator[Document]:
    """The passages of each article, one paragraph a line. Only these count as read.

    Redirects and pages that are not articles are counted as documents dropped, of 0 bytes. An article on which the
    parser of wikitext fails is skipped, naming its title, whatever `on_error` says: users could not repair it.
    """
    from mwparserfromhell.parser import ParserError

    parser = DumpParser()
    place = "before the first page was complete"
    try:
        for page in _pages(source.stream, parser):
            place = f"after the page {page.title!r}, which begins on line {page.line}"
            if page.redirects or page.namespace != "0" or page.model != "wikitext":
                source.counts.documents_read += 1
                source.counts.drop("redirect page" if page.redirects else "not an article", 0)
                continue
            try:
                text = extract_passages(page.text, parser.namespaces)
            except (ParserError, RecursionError):
                source.counts.skip(f"{source.name}:{page.line} ({page.title})", "wikitext not understood")
                continue
            yield Document(text, f"{source.name}:{page.line}")
    except NotADump as error:
        problem = f"not a Wikipedia dump: {error}: expected pages-articles.xml, with <mediawiki> outermost"
        source.refuse(source.name, "not a Wikipedia dump", problem)
    except (expat.ExpatError, DamagedData) as error:
        problem = f"the dump is damaged or cut short {place} ({error}): fetch it again"
        source.refuse(source.name, "damaged file", problem)


def _pages(stream: IO[bytes], parser: DumpParser) -> Iterator[Page]:
    """The pages of a dump as they are completed, including those before a failure."""
    chunk = b"the first"
    while chunk:
        chunk = stream.read1(CHUNK_BYTES)  # type: ignore[attr-defined]  # unlike read, returns everything before damage
        failure: Exception | None = None
        try:
            parser.feed(chunk)
        except (expat.ExpatError, NotADump) as error:
            failure = error
        yield from parser.pages
        parser.pages.clear()
        if failure:
            raise failure
