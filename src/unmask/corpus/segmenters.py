"""Segmenters: text to the same text with spaces between its morphemes, for WordPiece over Korean.

A Korean word is a stem with its particles and endings; separated, they are learned once rather than with every stem
(Park et al. 2020, "An Empirical Study of Tokenization Strategies for Various Korean NLP Tasks"). The text stays plain
text, with plain spaces, so that the vocabulary is ordinary WordPiece and `AutoTokenizer` encodes segmented text the
same. Which spaces the writer set is lost, while that paper marks them: the model does not see it, and decoding gives
spaced morphemes.

Only surface forms are cut: morphemes that share a syllable stay together (`했다` is `했 다`, though it is `하 었 다`).
The library's model decides where to cut: another version may differ, so a tokenizer should name its own.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from itertools import pairwise
from typing import Any

from unmask.errors import SettingsError
from unmask.io.encodings import normalized

_HANGUL = re.compile("[ㄱ-ㆎ가-힣]")
_LONGEST_PIECE = 5_000
"""Most characters that Kiwi analyses at once: its time grows with their square."""
_PIECE = re.compile(rf".{{1,{_LONGEST_PIECE}}}(?!\S)|.{{1,{_LONGEST_PIECE}}}", re.DOTALL)


def load_kiwi(*, names_of_several_words: bool = True) -> Any:
    """Loads Kiwi, a morphological analyser of Korean; takes about a second, and 0.4 to 0.6 GiB of memory.

    Args:
        names_of_several_words: True also loads its dictionary of multi-word names, each of which is then one morpheme.

    Returns:
        A `kiwipiepy.Kiwi` that works on the calling thread, ready for use.

    Raises:
        SettingsError: the library is not installed.
    """
    try:
        from kiwipiepy import Kiwi
    except ImportError as error:
        raise SettingsError(
            "kiwi needs the library kiwipiepy, which is not installed: run pip install 'unmask[ko]'"
        ) from error
    kiwi = Kiwi(num_workers=1, load_multi_dict=names_of_several_words)
    kiwi.tokenize("")  # builds its tables, which the first call does
    return kiwi


@cache
def _load_kiwi_segmenter() -> Callable[[str], str]:
    # One for all tokenizers of a process, since it takes half a gigabyte. A name of several words would be one uncut
    # morpheme, though its words are cut everywhere else.
    kiwi = load_kiwi(names_of_several_words=False)

    def segment_piece(piece: str) -> str:
        if not _HANGUL.search(piece):
            return piece
        morphemes = [(token.start, token.end) for token in kiwi.tokenize(piece)]
        cuts = _find_cuts(piece, morphemes)
        return " ".join(piece[start:end] for start, end in pairwise([0, *cuts, len(piece)]))

    def segment(text: str) -> str:
        lines = normalized("NFC", text).splitlines(keepends=True)  # Kiwi knows no decomposed Hangul
        return "".join(segment_piece(piece) for line in lines for piece in _PIECE.findall(line))

    return segment


def _find_cuts(piece: str, morphemes: list[tuple[int, int]]) -> list[int]:
    """Where to insert spaces into a piece of text: before morphemes, within words, between two Hangul characters.

    Args:
        morphemes: their half-open character offsets; they may overlap where they share a syllable.

    Returns:
        Offsets, ascending, neither 0 nor the piece's length.
    """
    cuts: list[int] = []
    reached = 0
    for start, end in sorted(morphemes):
        if (
            0 < start < len(piece)
            and reached <= start
            and piece[start - 1].isalnum()
            and piece[start].isalnum()
            and _HANGUL.search(piece, start - 1, start + 1)
            and start not in cuts[-1:]
        ):
            cuts.append(start)
        reached = max(reached, end)
    return cuts


SEGMENTERS: dict[str, Callable[[], Callable[[str], str]]] = {"kiwi": _load_kiwi_segmenter}
"""Name -> a function that loads the segmenter, which composes a text (NFC), inserts spaces, and changes nothing else.

It inserts none into lines without Hangul, and its result for a text does not depend on earlier texts.
"""
