"""The comparison of tokenizers as one HTML page with bars, in the style of a run's report."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from html import escape
from importlib.resources import files
from pathlib import Path

from unmask.io.writing import refuse_existing, write_text
from unmask.reports.run_page import PAGE, STYLE
from unmask.tokenization.comparison.report import MOST_PIECES, CutWord, TokenizerFigures, TokenizersReport
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
    """A figure with one bar per tokenizer.

    Args:
        title: what is compared.
        note: how to read it.
        length: the length of a bar.
        told: how its number is written.
    """

    title: str
    note: str
    length: Callable[[TokenizerFigures], float]
    told: str


BARS = (
    Bars("Tokens per word", "fewer: shorter sequences", lambda its: its.tokens_per_word, "{:.3f}"),
    Bars("Bytes per token", "more: shorter sequences", lambda its: its.bytes_per_token, "{:.2f}"),
    Bars("Unknown words in 10,000", "lost to the model", lambda its: 1e4 * its.unknown_word_share, "{:,.2f}"),
    Bars("Entries that occur", "of the vocabulary", lambda its: its.num_entries_used, "{:,}"),
)


def write_page(report: TokenizersReport, path: Path, *, overwrite: bool = False) -> None:
    """Writes the comparison as one HTML file that needs nothing else.

    Raises:
        OutputError: `path` exists and `overwrite` is False, the disk is full, or the place cannot be written.
    """
    refuse_existing(path, overwrite)
    sections = [
        f"<header><p>{escape(describe_text(report))}</p><h1>{escape(_title(report))}</h1></header>",
        _section("How words are cut", _cuts(report)),
        _section("Side by side", _bars(report)),
        f'<p class="note">{escape(misled(report))}</p>',
        _section("On this text", _table(FIGURES, report.tokenizers)),
        _section("Letters lost in unknown tokens, by script", _scripts(report)),
        _section("Vocabularies", _table(VOCABULARY, report.tokenizers) + _specials(report)),
        _section("Words", "".join(_words(its) for its in report.tokenizers)),
    ]
    style = files("unmask.reports").joinpath(STYLE).read_text(encoding="utf-8") + BAR_STYLE
    page = PAGE.format(title=escape(_title(report)), style=style, body="\n".join(sections))
    write_text(path, page)


def _title(report: TokenizersReport) -> str:
    number = len(report.tokenizers)
    return f"{number} tokenizers on the same text" if number > 1 else f"The tokenizer {report.tokenizers[0].name}"


def _section(title: str, content: str) -> str:
    return f"<section><h2>{escape(title)}</h2>{content}</section>"


def _table(columns: Sequence[Column], tokenizers: Iterable[TokenizerFigures]) -> str:
    head = "".join(f"<th>{escape(name)}</th>" for name in ("tokenizer", *(name for name, _ in columns)))
    body = "".join(
        f"<tr><td>{escape(its.name)}</td>{''.join(f'<td>{escape(cell(its))}</td>' for _, cell in columns)}</tr>"
        for its in tokenizers
    )
    return f'<table class="figures"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>'


def _cuts(report: TokenizersReport) -> str:
    """A bar per tokenizer: its words by the number of their pieces, and the unknown ones."""
    names = ["1 piece", *(f"{number} pieces" for number in range(2, MOST_PIECES)), f"{MOST_PIECES} and more"]
    kinds = [(f"cut cut-{number}", name) for number, name in enumerate(names, start=1)] + [("cut unknown", "unknown")]
    keys = "".join(f'<span class="key {kind}">{name}</span>' for kind, name in kinds)
    rows = []
    for its in report.tokenizers:
        counts = (*its.words_by_pieces, its.num_unknown_words)
        shares = [count / report.text.num_words for count in counts]
        parts = "".join(
            f'<i class="{kind}" style="width:{100 * part:.3f}%" title="{name}: {share(part)}"></i>'
            for (kind, name), part in zip(kinds, shares, strict=True)
            if part
        )
        rows.append(_bar(its.name, parts, f"{share(its.whole_word_share)} whole"))
    return f'<figure class="wide"><figcaption><b>Share of the words</b>{keys}</figcaption>{"".join(rows)}</figure>'


def _bars(report: TokenizersReport) -> str:
    """Figures whose lengths can be compared."""
    return "".join(_bar_figure(bars, report.tokenizers) for bars in BARS)


def _bar_figure(bars: Bars, tokenizers: Sequence[TokenizerFigures]) -> str:
    longest = max(map(bars.length, tokenizers)) or 1
    rows = "".join(
        _bar(
            its.name,
            f'<i class="cut cut-1" style="width:{100 * bars.length(its) / longest:.3f}%"></i>',
            bars.told.format(bars.length(its)),
        )
        for its in tokenizers
    )
    return f"<figure><figcaption><b>{bars.title}</b><span>{bars.note}</span></figcaption>{rows}</figure>"


def _bar(name: str, parts: str, value: str) -> str:
    return f'<div class="bar"><span>{escape(name)}</span><span class="line">{parts}</span><b>{escape(value)}</b></div>'


def _scripts(report: TokenizersReport) -> str:
    letters = report.text.letters
    total = max(1, sum(letters.values()))
    said = ", ".join(f"{script} {share(count / total)}" for script, count in letters.items())
    note = f'<p class="note">Letters of the text: {escape(said)}.</p>'
    return _table(script_columns(report), report.tokenizers) + note


def _specials(report: TokenizersReport) -> str:
    return "".join(
        f'<p class="note">{escape(its.name)}: {escape(" ".join(its.special_tokens) or "no special tokens")}</p>'
        for its in report.tokenizers
    )


def _words(its: TokenizerFigures) -> str:
    lists = [f"<div><h3>{listed.title}</h3><table>{_word_rows(listed.words_of(its))}</table></div>" for listed in WORDS]
    return f'<h3>{escape(its.name)}</h3><div class="words">{"".join(lists)}</div>'


def _word_rows(words: Iterable[CutWord]) -> str:
    rows = []
    for word in words:
        pieces = " ".join(f"<s>{escape(piece)}</s>" for piece in word.pieces[:MOST_PIECES_SHOWN])
        rows.append(f"<tr><td>{escape(shown(word.word))}</td><td>{pieces}</td><td>{word.count:,}</td></tr>")
    return "".join(rows) or "<tr><td>none</td></tr>"


BAR_STYLE = """
.bar { display: grid; grid-template-columns: 29% 1fr 64px; gap: 12px; align-items: center; margin: 6px 0;
  font-size: 13px; line-height: 1.3; }
.wide .bar { grid-template-columns: 22% 1fr 116px; }
.bar span:first-child { overflow-wrap: anywhere; }
.bar b { text-align: right; font-variant-numeric: tabular-nums; }
.line { display: flex; height: 18px; border-radius: 4px; overflow: hidden; background: var(--line); }
.wide .line { background: none; }
.cut { --ink-of-cut: var(--training); background: var(--ink-of-cut); }
.cut.unknown { --ink-of-cut: var(--held-out); }
.cut-2 { opacity: .74; } .cut-3 { opacity: .54; } .cut-4 { opacity: .38; } .cut-5 { opacity: .24; }
.key.cut { background: none; opacity: 1; }
.key.cut::before { border-top: 9px solid var(--ink-of-cut); }
.key.cut-2::before { opacity: .74; } .key.cut-3::before { opacity: .54; } .key.cut-4::before { opacity: .38; }
.key.cut-5::before { opacity: .24; }
.figures td:not(:first-child), .figures th:not(:first-child) { text-align: right; }
.note { margin: 10px 0 0; }
.words { display: grid; grid-template-columns: repeat(auto-fit, minmax(300px, 1fr)); gap: 14px; align-items: start; }
.words td:first-child { width: 36%; }
.words td:last-child { width: 1%; white-space: nowrap; text-align: right; color: var(--muted); }
.words s { text-decoration: none; white-space: nowrap; padding: 1px 4px; border-radius: 4px; background: var(--page);
  border: 1px solid var(--line); line-height: 1.9; }
"""
