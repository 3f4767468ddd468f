"""The statistics of a corpus as a table: what came in, what was dropped or removed and why, what went out.

Every column adds up from top to bottom, with the signs as printed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from unmask.corpus.cleaning.cleaning import COMPOSED
from unmask.corpus.documents import CorpusCounts
from unmask.io.progress import counted, human_bytes

_HEADER = ("", "documents", "count", "bytes", "share")
_MOST_NAME_CHARACTERS = 44


def format_statistics(statistics: Mapping[str, Any], written: Mapping[str, int] | None = None) -> str:
    """A table of at most 100 columns, for a terminal.

    Args:
        statistics: `CorpusCounts.as_dict`, as a store's manifest has it under `text`.
        written: what was made of the corpus, by name: `{"sentences": 12, "tokens": 345}`.

    Returns:
        Lines without a newline at the end.
    """
    lines = [*_describe_input(statistics), *_align([_HEADER, *_rows(statistics)])]
    if written:
        amounts = [f"{count:,} {_name_of(name, count)}" for name, count in written.items()]
        lines.append(f"wrote {', '.join(amounts)}")
    return "\n".join(lines)


def describe_losses(counts: CorpusCounts | Mapping[str, Any]) -> str:
    """What was lost, in brackets, for a message: ` (3 records passed over: not JSON; ...)`; empty if nothing was."""
    if isinstance(counts, CorpusCounts):  # in the order in which they were met, which a manifest does not keep
        skipped, dropped = counts.skipped, {reason: lost.count for reason, lost in counts.dropped.items()}
    else:
        skipped, dropped = counts["skipped"], {reason: lost["count"] for reason, lost in counts["dropped"].items()}
    losses = [f"{counted(count, 'record')} passed over: {reason}" for reason, count in skipped.items()]
    losses += [f"{counted(count, 'document')} dropped: {reason}" for reason, count in dropped.items()]
    return f" ({'; '.join(losses)})" if losses else ""


def _describe_input(statistics: Mapping[str, Any]) -> Iterator[str]:
    """The files, and what is not in the table because it never was a document."""
    empty = f", {statistics['empty_files']:,} without a document" if statistics["empty_files"] else ""
    yield f"read {counted(statistics['files'], 'file')}{empty}: {human_bytes(statistics['file_bytes'])}"
    for reason, count in statistics["skipped"].items():
        yield f"passed over {counted(count, 'record')}: {reason}"
    if statistics["long_lines"]:
        yield f"met {counted(statistics['long_lines'], 'line')} of more than a megabyte"


def _rows(statistics: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    total = statistics["bytes_read"]

    def bytes_and_share(num_bytes: int, is_taken: bool) -> tuple[str, str]:
        share = f"{round(100 * num_bytes / total, 2) + 0.0:.2f} %" if total else ""  # + 0.0: no "-0.00"
        return _taken(num_bytes) if is_taken else f"{num_bytes:,}", share

    yield ("came in", f"{statistics['documents_read']:,}", "", *bytes_and_share(total, False))
    for reason, amount in statistics["dropped"].items():
        yield (f"  dropped: {reason}", _taken(amount["count"]), "", *bytes_and_share(amount["utf8_bytes"], True))
    for what, amount in statistics["removed"].items():
        done = "rewritten" if what == COMPOSED else "removed"
        yield (f"  {done}: {what}", "", f"{amount['count']:,}", *bytes_and_share(amount["utf8_bytes"], True))
    yield ("went out", f"{statistics['documents']:,}", "", *bytes_and_share(statistics["utf8_bytes"], False))


def _taken(amount: int) -> str:
    """What was taken away, with the sign that makes its column add up; NFC can add bytes."""
    return f"{-amount:+,}" if amount else "0"


def _align(table: Sequence[Sequence[str]]) -> Iterator[str]:
    most = _MOST_NAME_CHARACTERS
    shortened = [[name if len(name) <= most else f"{name[: most - 1]}…", *numbers] for name, *numbers in table]
    widths = [max(map(len, column)) for column in zip(*shortened, strict=True)]
    for name, *numbers in shortened:
        aligned = (number.rjust(width) for number, width in zip(numbers, widths[1:], strict=True))
        yield "  ".join([name.ljust(widths[0]), *aligned]).rstrip()


def _name_of(name: str, count: int) -> str:
    """`documents_without_tokens` in words, of one its first plural in the singular."""
    words = name.replace("_", " ")
    return re.sub(r"s\b", "", words, count=1) if count == 1 else words
