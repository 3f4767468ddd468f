"""A diagnosis as one HTML page that needs nothing from the network, in the style of a run's report.

Samples and tables are HTML in the reader's own fonts, so that every script can be shown; pictures are drawn with CSS.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from importlib.resources import files
from pathlib import Path

from unmask.doctor.findings import Diagnosis, Finding, Histogram, Sample, SampleToken, Table
from unmask.io.writing import write_text
from unmask.reports.run_page import PAGE, STYLE

DOCTOR_STYLE = "page.css"

SEGMENTS = 'segments <span class="token a">A</span> and <span class="token b">B</span>'
SPECIAL = '<span class="token control">special tokens</span>'
TARGETS = 'targets: <ruby class="token target">what is shown<rt>what is to be predicted</rt></ruby>'


def write_page(diagnosis: Diagnosis, path: Path) -> None:
    """Writes the page.

    Raises:
        OutputError: the place cannot be written.
    """
    write_text(path, make_page(diagnosis).encode("utf-8", errors="replace").decode())


def make_page(diagnosis: Diagnosis) -> str:
    """The page as HTML."""
    sections = [
        _headline(diagnosis),
        _section("Findings", _findings(diagnosis.findings)),
        *(_section(table.title, _table(table)) for table in diagnosis.tables),
        *(_section(title, f"<pre>{escape(text)}</pre>") for title, text in diagnosis.listings),
        _section("Lengths", "".join(map(_histogram, diagnosis.histograms))),
        _section("Sequences as the model sees them", _samples(diagnosis.samples)),
    ]
    sheets = (files("unmask.reports").joinpath(STYLE), files("unmask.doctor").joinpath(DOCTOR_STYLE))
    style = "".join(sheet.read_text(encoding="utf-8") for sheet in sheets)
    return PAGE.format(title=escape(f"{diagnosis.target}: doctor"), style=style, body="\n".join(filter(None, sections)))


def _section(title: str, content: str) -> str:
    return f"<section><h2>{escape(title)}</h2>{content}</section>" if content else ""


def _headline(diagnosis: Diagnosis) -> str:
    cells = "".join(f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>" for name, value in diagnosis.headline)
    tiles = f"<dl>{cells}</dl>" if cells else ""
    return f"<header><p>a {diagnosis.kind}, examined</p><h1>{escape(diagnosis.target)}</h1>{tiles}</header>"


def _findings(findings: Iterable[Finding]) -> str:
    rows = "".join(
        f'<tr><td><span class="level {finding.level}">{finding.level}</span></td>'
        f"<td><b>{escape(finding.name.replace('-', ' '))}</b>{escape(finding.message)}"
        + (f"<small>→ {escape(finding.advice)}</small>" if finding.advice else "")
        + "</td></tr>"
        for finding in findings
    )
    return f'<table class="findings"><tbody>{rows}</tbody></table>'


def _table(table: Table) -> str:
    head = "".join(f"<th>{escape(name)}</th>" for name in table.columns) if any(table.columns) else ""
    body = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in table.rows)
    kind = (
        "plain" if not table.columns else "cells" if not head else "figures" if _holds_figures(table.rows) else "list"
    )
    note = f'<p class="under">{escape(table.note)}</p>' if table.note else ""
    top = f"<thead><tr>{head}</tr></thead>" if head else ""
    return f'<table class="{kind}">{top}<tbody>{body}</tbody></table>{note}'


def _cell(cell: str) -> str:
    """A cell whose parts, separated by two spaces, are isolated in case one is written from right to left."""
    return f"<td>{' '.join(f'<bdi>{escape(part)}</bdi>' for part in cell.split('  '))}</td>"


def _holds_figures(rows: Sequence[Sequence[str]]) -> bool:
    return all(cell.replace(",", "").replace(".", "").isdigit() for row in rows for cell in row[1:])


def _histogram(histogram: Histogram) -> str:
    most, total = max(1, *histogram.counts), max(1, sum(histogram.counts))
    bars = "".join(
        f'<span>{escape(histogram.label(place))}</span><i style="{_bar(count / most)}"></i>'
        f"<span>{count:,} · {count / total:.1%}</span>"
        for place, count in enumerate(histogram.counts)
    )
    caption = f"<b>{escape(histogram.title)}</b><span>{escape(histogram.counted)} by {escape(histogram.unit)}</span>"
    return f'<figure><figcaption>{caption}</figcaption><div class="bars">{bars}</div></figure>'


def _bar(share: float) -> str:
    return f"width:{share:.2%}" if share else "width:0;min-width:0"


def _samples(samples: Sequence[Sample]) -> str:
    tokens = [token for sample in samples for token in sample.tokens]
    has_segments = any(token.segment for token in tokens)
    keys = [SEGMENTS] if has_segments else []
    keys += [SPECIAL] if any(token.special for token in tokens) else []
    keys += [TARGETS] if any(token.label is not None for token in tokens) else []
    legend = f'<p class="note">{", ".join(keys)}</p>' if keys else ""
    drawn = (_sample(number, sample, has_segments) for number, sample in enumerate(samples, start=1))
    return legend + "".join(drawn)


def _sample(number: int, sample: Sample, has_segments: bool) -> str:
    facts = [f"{len(sample.tokens)} tokens", f"{sample.num_targets} targets", *filter(None, [sample.sequence_label])]
    tokens = " ".join(_token(token, has_segments) for token in sample.tokens)
    title = f"sequence {number} <span>{escape(', '.join(facts))}</span>"
    return f'<article class="sequence"><h3>{title}</h3><p>{tokens}</p></article>'


def _token(token: SampleToken, has_segments: bool) -> str:
    kind = f"token{' ' + 'ab'[token.segment] if has_segments else ''}{' control' if token.special else ''}"
    shown = f"<bdi>{escape(token.shown)}</bdi>"
    if token.label is None:
        return f'<span class="{kind}">{shown}</span>'
    return f'<ruby class="{kind} target">{shown}<rt><bdi>{escape(token.label)}</bdi></rt></ruby>'
