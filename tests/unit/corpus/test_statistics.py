"""The table that a preparation ends with: it says everything that was booked, and it adds up."""

from __future__ import annotations

import json
import re

from hypothesis import given
from hypothesis import strategies as st

from unmask.corpus.documents import Amount, CorpusCounts
from unmask.corpus.statistics import describe_losses, format_statistics

COUNTS = CorpusCounts(
    files=3,
    empty_files=1,
    file_bytes=5 << 20,
    long_lines=1,
    documents_read=1_200,
    bytes_read=10_000_000,
    skipped={"not JSON": 2},
    removed={"control characters": Amount(7, 7), "documents composed (NFC)": Amount(3, -9)},
    dropped={"duplicate": Amount(150, 2_500_000), "empty": Amount(50, 40)},
    documents=1_000,
    characters=7_000_000,
    utf8_bytes=7_499_962,
)


def test_the_table_says_what_came_in_what_went_and_what_is_left() -> None:
    assert format_statistics(COUNTS.as_dict(), {"sentences": 60_000, "documents_without_tokens": 2}).splitlines() == [
        "read 3 files, 1 without a document: 5 MiB",
        "passed over 2 records: not JSON",
        "met 1 line of more than a megabyte",
        "                                       documents  count       bytes     share",
        "came in                                    1,200         10,000,000  100.00 %",
        "  dropped: duplicate                        -150         -2,500,000   25.00 %",
        "  dropped: empty                             -50                -40    0.00 %",
        "  removed: control characters                         7          -7    0.00 %",
        "  rewritten: documents composed (NFC)                 3          +9    0.00 %",
        "went out                                   1,000          7,499,962   75.00 %",
        "wrote 60,000 sentences, 2 documents without tokens",
    ]


def test_one_of_a_thing_is_told_in_the_singular() -> None:
    written = {"documents": 1, "tokens": 12, "unknown_tokens": 1, "documents_without_tokens": 1}
    last = format_statistics(COUNTS.as_dict(), written).splitlines()[-1]
    assert last == "wrote 1 document, 12 tokens, 1 unknown token, 1 document without tokens"


def test_nothing_read_is_told_as_well() -> None:
    assert format_statistics(CorpusCounts().as_dict()).splitlines() == [
        "read 0 files: 0 B",
        "          documents  count  bytes  share",
        "came in           0             0",
        "went out          0             0",
    ]


NAMES = st.text(st.characters(codec="utf-8", categories=["L"]), min_size=1, max_size=60)
AMOUNTS = st.dictionaries(NAMES, st.builds(Amount, st.integers(0, 10**9), st.integers(-(10**6), 10**13)), max_size=5)


COUNTED = st.builds(
    CorpusCounts, dropped=AMOUNTS, removed=AMOUNTS, documents=st.integers(0, 10**10), utf8_bytes=st.integers(0, 10**14)
)


@given(COUNTED)
def test_columns_add_up_within_100_columns(counts: CorpusCounts) -> None:
    dropped, removed = counts.dropped.values(), counts.removed.values()
    counts.documents_read = counts.documents + sum(amount.count for amount in dropped)
    counts.bytes_read = counts.utf8_bytes + sum(amount.utf8_bytes for amount in [*dropped, *removed])
    lines = format_statistics(counts.as_dict()).splitlines()
    assert all(len(line) <= 100 for line in lines)
    header = next(line for line in lines if line.endswith("share"))
    ends = {name: header.index(name) + len(name) for name in ("documents", "bytes")}
    for end in ends.values():
        column = [_number_ending_at(line, end) for line in lines[lines.index(header) + 1 :]]
        assert sum(column[:-1]) == column[-1]


def _number_ending_at(line: str, end: int) -> int:
    match = re.search(r"[-+]?[\d,]+$", line[:end])
    return int(match.group().replace(",", "")) if match else 0


def test_losses_in_an_error() -> None:
    counts = CorpusCounts()
    assert describe_losses(counts) == ""
    counts.skip("a:1", "not JSON")
    counts.drop("too short", 5)
    counts.drop("too short", 7)
    assert describe_losses(counts) == " (1 record passed over: not JSON; 2 documents dropped: too short)"
    assert describe_losses(json.loads(json.dumps(counts.as_dict()))) == describe_losses(counts)
    counts.skip("a:2", "a bad date")
    assert "not JSON; 1 record passed over: a bad date" in describe_losses(counts), "in the order of the text"
