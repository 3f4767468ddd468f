"""Draws the text that the sample encoders were trained on from the corpora of docs/data.md.

    python samples/models/draw.py CORPORA FOLDER      writes FOLDER/en.jsonl and FOLDER/ko.jsonl

English: articles of Wikipedia and books in an order by chance, 90 million characters of each; then, of those that are
left, the paragraphs that ask something or hold words such as *know what*, 21 million. Of the articles every odd number
divisible by 9 is left out, to measure on. Korean: all articles but 400.
"""

from __future__ import annotations

import io
import json
import random
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import zstandard

CHARACTERS = 90_000_000
LEFT_OUT = 400
ASKING = re.compile(
    r"\?|\b(know|knows|knew|known|wonder\w*|ask\w*|see|saw|seen|remember\w*|understand|understood|discover\w*|learn\w*"
    r"|guess\w*|tell|told|say|said|show\w*|find|found|decid\w*)"
    r" (what|who|whom|whose|which|why|how|where|when|whether)\b"
)


def read(path: Path) -> list[str]:
    """The lines of a compressed file."""
    if not path.is_file():
        raise SystemExit(f"{path}: no such file: give the folder of the corpora of docs/data.md")
    with path.open("rb") as file:
        return list(io.TextIOWrapper(zstandard.ZstdDecompressor().stream_reader(file), "utf-8", newline="\n"))


def take(lines: Iterable[str], characters: int) -> Iterator[str]:
    """As many of the first documents as hold so many characters, the last one whole."""
    taken = 0
    for line in lines:
        if taken >= characters:
            return
        taken += len(json.loads(line)["text"])
        yield line


def asking(lines: Iterable[str]) -> Iterator[str]:
    """Each document's paragraphs that match `ASKING`."""
    for line in lines:
        document = json.loads(line)
        text = "\n".join(filter(ASKING.search, document["text"].split("\n")))
        if text:
            yield json.dumps({"title": document["title"], "text": text}, ensure_ascii=False) + "\n"


def draw_english(corpora: Path) -> list[str]:
    chance = random.Random(0)
    numbered = enumerate(read(corpora / "enwiki-2015-core.jsonl.zst"), 1)
    articles = [line for number, line in numbered if not (number % 2 and number % 9 == 0)]
    books = read(corpora / "en-classic-books.jsonl.zst")
    chance.shuffle(articles)
    chance.shuffle(books)
    some, others = list(take(articles, CHARACTERS)), list(take(books, CHARACTERS))
    left = [*books[len(others) :], *articles[len(some) :]]
    return [*some, *others, *asking(left)]


def draw_korean(corpora: Path) -> list[str]:
    articles = read(corpora / "kowiki-2022.jsonl.zst")
    random.Random(0).shuffle(articles)
    return articles[:-LEFT_OUT]


if __name__ == "__main__":
    if len(sys.argv) != 3:
        raise SystemExit(__doc__)
    corpora, folder = map(Path, sys.argv[1:])
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "en.jsonl").write_text("".join(draw_english(corpora)), encoding="utf-8")
    (folder / "ko.jsonl").write_text("".join(draw_korean(corpora)), encoding="utf-8")
