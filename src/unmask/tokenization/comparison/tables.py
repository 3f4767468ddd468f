"""The comparison of tokenizers as tables for a terminal; the columns are those of the page too."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from unmask.io.progress import human_bytes
from unmask.tokenization.comparison.report import CutWord, TokenizerFigures, TokenizersReport

WIDTH = 100
_NARROW = 90
"""On a terminal of fewer columns than this a table has a row for each figure, not for each tokenizer."""
LONGEST_SHOWN = 60
MOST_UNKNOWN = 0.05
"""From this share of unknown words on, lengths flatter too much to be compared."""
UNREADABLE = ("\ufffd", "<unk>")
"""In pieces that say nothing: part of a character, and an unknown character of `bpe`."""
MOST_SCRIPTS = 5

Column = tuple[str, Callable[[TokenizerFigures], str]]
"""A heading, on two lines if it is long, and the function for the cells under it."""


def share(value: float) -> str:
    """A share as a percentage; one that rounds to nothing is shown differently from zero."""
    return "<0.01 %" if 0 < value < 0.00005 else f"{value:.2%}".replace("%", " %")


FIGURES: tuple[Column, ...] = (
    ("tokens\nper word", lambda its: f"{its.tokens_per_word:.3f}"),
    ("words kept\nwhole", lambda its: share(its.whole_word_share)),
    ("unknown\nwords", lambda its: share(its.unknown_word_share)),
    ("unknown\ntokens", lambda its: share(its.unknown_token_share)),
    ("tokens per\ncharacter", lambda its: f"{its.tokens_per_character:.3f}"),
    ("bytes\nper token", lambda its: f"{its.bytes_per_token:.2f}"),
)
VOCABULARY: tuple[Column, ...] = (
    ("kind", lambda its: its.kind),
    ("case", lambda its: "uncased" if its.lowercase else "cased"),
    ("segmenter", lambda its: its.segmenter),
    ("entries", lambda its: f"{its.vocab_size:,}"),
    ("used\nhere", lambda its: f"{its.num_entries_used:,}"),
    ("unused\nslots", lambda its: f"{its.num_unused_slots:,}"),
    ("special\ntokens", lambda its: f"{len(its.special_tokens)}"),
)


def shown(text: str) -> str:
    """A word that fits a line."""
    return text if len(text) <= LONGEST_SHOWN else f"{text[: LONGEST_SHOWN - 1]}…"


def readable(word: CutWord) -> str:
    """A word's pieces; the word itself, with their number, where they say nothing."""
    pieces = "·".join(word.pieces)
    return f"{word.word} ({len(word.pieces)})" if any(sign in pieces for sign in UNREADABLE) else pieces


@dataclass(frozen=True)
class WordList:
    """One of the lists of words."""

    title: str  # what the words have in common
    words_of: Callable[[TokenizerFigures], tuple[CutWord, ...]]  # takes them from a tokenizer's figures
    as_text: Callable[[CutWord], str]  # writes a word for a line of text, with the figure that put it there


WORDS = (
    WordList("Most pieces", lambda its: its.longest_words, lambda word: f"{shown(word.word)} {len(word.pieces)}"),
    WordList(
        "Most tokens beyond one a word",
        lambda its: its.costliest_words,
        lambda word: f"{shown(readable(word))} ×{word.count:,}",
    ),
    WordList("Unknown most often", lambda its: its.unknown_words, lambda word: f"{shown(word.word)} ×{word.count:,}"),
)


def script_columns(report: TokenizersReport) -> tuple[Column, ...]:
    """The shares of letters that unknown tokens stand for, for the most frequent scripts, with the script's share."""

    def lost_of(script: str) -> Callable[[TokenizerFigures], str]:
        return lambda its: share(its.lost_letter_shares[script])

    letters = report.text.letters
    total = sum(letters.values())
    return tuple(
        (f"{script}\n{share(count / total)}", lost_of(script)) for script, count in list(letters.items())[:MOST_SCRIPTS]
    )


def describe_text(report: TokenizersReport) -> str:
    """A line on what the tokenizers were compared on."""
    text = report.text
    sources = text.sources[0] if len(text.sources) == 1 else f"{text.sources[0]} and {len(text.sources) - 1} more"
    sampled = "all" if text.num_bytes == text.num_bytes_read else "an even sample"
    return (
        f"{sources}: {human_bytes(text.num_bytes)}, {sampled} of {human_bytes(text.num_bytes_read)}; "
        f"{text.num_words:,} words, {text.num_distinct_words:,} distinct"
    )


def misled(report: TokenizersReport) -> str:
    """A warning if lengths cannot be compared. (`bpe` makes a token of each unknown character, so they can be.)"""
    names = [its.name for its in report.tokenizers if its.kind == "wordpiece" and its.unknown_word_share > MOST_UNKNOWN]
    if not names:
        return ""
    return f"An unknown word is a single token, so the lengths of {', '.join(names)} say nothing."


def format_report(report: TokenizersReport) -> str:
    """The comparison as text of at most `WIDTH` columns, and no more than the terminal has, if it goes to one."""
    from rich.console import Console
    from rich.padding import Padding

    written = io.StringIO()
    width = min(WIDTH, Console().width) if sys.stdout.isatty() else WIDTH
    console = Console(file=written, width=width, highlight=False, markup=False, emoji=False)
    console.print(describe_text(report))
    for title, columns in (
        ("On this text", FIGURES),
        ("Letters lost in unknown tokens, by script", script_columns(report)),
        ("Vocabularies", VOCABULARY),
    ):
        console.print(f"\n{title}")
        console.print(_terminal_table(columns, report.tokenizers, width < _NARROW))
    if warning := misled(report):
        console.print(warning)
    for its in report.tokenizers:
        console.print(f"\n{its.name}")
        for listed in WORDS:
            as_text = ", ".join(map(listed.as_text, listed.words_of(its))) or "none"
            console.print(Padding(f"{listed.title}: {as_text}", (0, 0, 0, 2)), overflow="fold")
    lines = (line.rstrip() for line in written.getvalue().splitlines())
    return "\n".join(lines)


def _terminal_table(columns: Sequence[Column], tokenizers: Sequence[TokenizerFigures], by_figure: bool) -> object:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    if by_figure:
        table.add_column("", no_wrap=True)
        for its in tokenizers:
            table.add_column(its.name, justify="right", overflow="fold")
        for name, cell in columns:
            table.add_row(name.replace("\n", " "), *map(cell, tokenizers))
        return table
    table.add_column("tokenizer", overflow="fold")
    for name, _ in columns:
        table.add_column(name, justify="right", no_wrap=True)
    for its in tokenizers:
        table.add_row(its.name, *(cell(its) for _, cell in columns))
    return table
