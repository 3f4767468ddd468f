"""What counting alone reaches on minimal pairs: lengths, and sequences of three characters.

    python samples/pairs/shortcuts.py [PAIRS] [--text FILE]

Prints, for each paradigm, in what share of pairs the right sentence is the shorter (an equal length counts half), and
in what share it is the likelier by a character trigram model (Witten and Bell 1991 smoothing) of the text.
"""

from __future__ import annotations

import argparse
import json
import math
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from unmask.tasks.minimal_pairs.reading import read_paradigms

HERE = Path(__file__).parent
_ALPHABET = 12_000
"""Characters that might come, where nothing is known: Hangul syllables and a few more."""


class Trigrams:
    """Probabilities of a character given the two before it, backing off to one and none.

    Args:
        lines: of text; each is read by itself.
    """

    def __init__(self, lines: Iterator[str]) -> None:
        self._counts: Counter[str] = Counter()
        self._contexts: Counter[str] = Counter()
        self._kinds: Counter[str] = Counter()
        for line in lines:
            text = f"\n\n{line}\n"
            for end in range(2, len(text)):
                for start in (end - 2, end - 1, end):
                    context, gram = text[start:end], text[start : end + 1]
                    self._contexts[context] += 1
                    self._kinds[context] += gram not in self._counts
                    self._counts[gram] += 1

    def log_probability(self, sentence: str) -> float:
        """Natural logarithm of the probability of the sentence and its end."""
        text = f"\n\n{sentence}\n"
        return sum(math.log(self._probability(text[end - 2 : end + 1])) for end in range(2, len(text)))

    def _probability(self, gram: str) -> float:
        if not gram:
            return 1 / _ALPHABET
        context = gram[:-1]
        shorter = self._probability(gram[1:]) if context else 1 / _ALPHABET
        seen, kinds = self._contexts[context], self._kinds[context]
        return (self._counts[gram] + kinds * shorter) / (seen + kinds) if seen else shorter


def read_lines(path: Path) -> Iterator[str]:
    """The lines of the documents of a `.jsonl` with a `text` field, or of a plain text."""
    with path.open(encoding="utf-8") as file:
        for row in file:
            yield from (json.loads(row)["text"] if path.suffix == ".jsonl" else row).splitlines()


def main() -> None:
    """The program."""
    parser = argparse.ArgumentParser(description="What counting alone reaches on minimal pairs.")
    parser.add_argument("pairs", nargs="?", type=Path, default=HERE / "ko")
    parser.add_argument("--text", type=Path, default=HERE.parent / "text" / "ko-wiki.jsonl")
    options = parser.parse_args()
    model = Trigrams(read_lines(options.text))
    shares = []
    print(f"{'paradigm':24} {'pairs':>6} {'shorter':>8} {'trigrams':>9}")
    for paradigm in read_paradigms(options.pairs):
        shorter = [_share(len(pair.bad) - len(pair.good)) for pair in paradigm.pairs]
        likelier = [
            _share(model.log_probability(pair.good) - model.log_probability(pair.bad)) for pair in paradigm.pairs
        ]
        shares.append((sum(shorter) / len(shorter), sum(likelier) / len(likelier)))
        print(f"{paradigm.name:24} {len(paradigm.pairs):6} {shares[-1][0]:8.2f} {shares[-1][1]:9.2f}")
    print(f"{'mean':24} {'':6} {sum(each[0] for each in shares) / len(shares):8.2f}", end=" ")
    print(f"{sum(each[1] for each in shares) / len(shares):9.2f}")


def _share(difference: float) -> float:
    return 1.0 if difference > 0 else 0.5 if difference == 0 else 0.0


if __name__ == "__main__":
    main()
