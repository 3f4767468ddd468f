"""Ways to split a document into sentences: the built-in rules, or Kiwi's morphological analysis of Korean.

Kiwi finds more of the sentence ends that Korean writers leave unmarked, at about a two-hundredth of the speed. Its time
grows with the square of a line's length, so very long lines are split by the rules.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

from unmask.corpus.segmenters import load_kiwi
from unmask.corpus.sentences.rules import split_sentences

_LONGEST_LINE = 20_000
"""Most characters of a line that Kiwi splits, which takes it a second at most."""


def _load_kiwi_splitter() -> Callable[[str], list[tuple[int, int]]]:
    kiwi = load_kiwi()

    def split_line(line: str) -> list[tuple[int, int]]:
        if len(line) > _LONGEST_LINE:
            return split_sentences(line)
        bounds = []
        starts = [sentence.start for sentence in kiwi.split_into_sents(line, return_sub_sents=False)]
        for start, end in pairwise([0, *starts[1:], len(line)]):
            sentence = line[start:end].strip()
            if sentence:
                begin = line.index(sentence, start)
                bounds.append((begin, begin + len(sentence)))
        return bounds

    def split(text: str) -> list[tuple[int, int]]:
        bounds = []
        offset = 0
        for line in text.splitlines(keepends=True):
            bounds += [(offset + start, offset + end) for start, end in split_line(line)]
            offset += len(line)
        return bounds

    return split


SENTENCE_SPLITTERS: dict[str, Callable[[], Callable[[str], list[tuple[int, int]]]]] = {
    "rules": lambda: split_sentences,
    "kiwi": _load_kiwi_splitter,
}
"""Name -> a function that loads the splitter: from a document to the bounds of its sentences, as `split_sentences`.

With every splitter sentences are in order, do not overlap, begin and end with characters that are not white space, and
leave out only white space; every line break ends a sentence; and the same text gives the same bounds.
"""
