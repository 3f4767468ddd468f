"""The comparison of tokenizers as one HTML page with bars, in the style of a run's report."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from unmask.io.progress import human_number
from unmask.reports.layout import write_page as render_page
from unmask.tokenization.comparison.report import MOST_PIECES, TokenizerFigures, TokenizersReport
from unmask.tokenization.comparison.tables import (
    FIGURES,
    VOCABULARY,
    WORDS,
    Column,
    describe_text,
    misled,
    script_columns,
    share,
    shown,
)

MOST_PIECES_SHOWN = 24


@dataclass(frozen=True)
class Bars:
    """A figure with one bar per tokenizer."""

    title: str  # what is compared
    note: str  # how to read it
    length: Callable[[TokenizerFigures], float]  # the length of a bar
    format: Callable[[float], str]  # how its number is written


BARS = (
    Bars("Tokens per word", "fewer: shorter sequences", lambda its: its.tokens_per_word, "{:.3f}".format),
    Bars("Bytes per token", "more: shorter sequences", lambda its: its.bytes_per_token, "{:.2f}".format),
    Bars("Unknown words in 10,000", "lost to the model", lambda its: 1e4 * its.unknown_word_share, human_number),
    Bars("Entries that occur", "of the vocabulary", lambda its: its.num_entries_used, "{:,}".format),
)


def write_page(report: TokenizersReport, path: Path, overwrite: bool) -> None:
    """Writes the comparison as one HTML file that needs nothing else.

    Raises:
        OutputError: as `unmask.reports.layout.write_page`.
    """
    compared, letters = report.tokenizers, report.text.letters
    total = max(1, sum(letters.values()))
    render_page(
        path,
        "tokenizers.html",
        overwrite,
        title=f"{len(compared)} tokenizers on the same text"
        if len(compared) > 1
        else f"The tokenizer {compared[0].name}",
        above=describe_text(report),
        cuts=_cuts(report),
        figures=[{"title": bars.title, "note": bars.note, "rows": _bar_rows(bars, compared)} for bars in BARS],
        misled=misled(report),
        on_this_text=_table(FIGURES, compared),
        scripts=_table(script_columns(report), compared),
        letters=", ".join(f"{script} {share(count / total)}" for script, count in letters.items()),
        vocabularies=_table(VOCABULARY, compared),
        tokenizers=compared,
        word_lists=WORDS,
        shown=shown,
        most_pieces=MOST_PIECES_SHOWN,
    )


def _table(columns: Sequence[Column], tokenizers: Iterable[TokenizerFigures]) -> tuple[list[str], list[list[str]]]:
    """A head, and a row for each tokenizer."""
    head = ["tokenizer", *(name for name, _ in columns)]
    return head, [[its.name, *(cell(its) for _, cell in columns)] for its in tokenizers]


def _cuts(report: TokenizersReport) -> dict[str, object]:
    """A bar per tokenizer: its words by the number of their pieces, and the unknown ones."""
    names = ["1 piece", *(f"{number} pieces" for number in range(2, MOST_PIECES)), f"{MOST_PIECES} and more"]
    kinds = [(f"cut-{number}", name) for number, name in enumerate(names, start=1)] + [("unknown", "unknown")]
    rows = []
    for its in report.tokenizers:
        counts = (*its.words_by_pieces, its.num_unknown_words)
        shares = [count / report.text.num_words for count in counts]
        parts = [
            (kind, part, f"{name}: {share(part)}") for (kind, name), part in zip(kinds, shares, strict=True) if part
        ]
        rows.append((its.name, parts, f"{share(its.whole_word_share)} whole"))
    return {"legend": kinds, "rows": rows}


def _bar_rows(
    bars: Bars, tokenizers: Sequence[TokenizerFigures]
) -> list[tuple[str, list[tuple[str, float, str]], str]]:
    """A bar per tokenizer, whose lengths can be compared."""
    longest = max(map(bars.length, tokenizers)) or 1
    return [
        (its.name, [("cut-1", bars.length(its) / longest, "")], bars.format(bars.length(its))) for its in tokenizers
    ]
