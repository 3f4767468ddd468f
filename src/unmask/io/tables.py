"""The reader of tables, for corpora, tasks and splitting: `.csv`, `.tsv`, `.jsonl`, `.json` and `.parquet`.

`.csv` is RFC 4180: quotes protect separators and line breaks. `.tsv` is GLUE's: a quotation mark is a character like
any other. Both begin with a header. `TableSettings` says otherwise. All but `.json` are streamed, and every row has its
place.
"""

from __future__ import annotations

import csv
import json
import logging
import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice

from unmask.errors import InputError
from unmask.io.encodings import NumberedLines
from unmask.io.input_files import NEEDS_NAME, STANDARD_INPUT, DataPath, InputFiles, files_of
from unmask.io.json_files import begins_as_list, load_json, no_object
from unmask.io.parquet import open_parquet, refusing_damage
from unmask.io.reading import COMPRESSIONS, open_input
from unmask.io.rows import Refuse, Row, RowFaults, Table, cut_short, is_sound_header, stop
from unmask.io.settings import TableSettings

logger = logging.getLogger("unmask")

FIELD_CHARACTERS = 2**27
"""The longest cell between quotes. Python's default limit, 128 KiB, is too short for some texts; without a limit, one
quote that is never closed would take the rest of a file into memory."""

LINE_FORMATS = (".tsv", ".csv", ".jsonl")
ROW_SUFFIXES = (*LINE_FORMATS, ".json", ".parquet")

_DECLARED = re.compile("sep=(.)")
"""The line before the header by which a `.csv` names to Excel what separates its cells."""


def read_rows(
    path: DataPath,
    txt_format: str | None = None,
    *,
    header: Sequence[str] = (),
    short_rows: list[str] | None = None,
    faults: RowFaults | None = None,
) -> Iterator[Row]:
    """Streams the rows of files.

    Args:
        path: `.tsv`, `.csv`, `.jsonl` or `.json`, plain or compressed, or `.parquet`.
        txt_format: the format of a file called `.txt`; None refuses it, unless the settings name a separator.
        header: the columns of a `.tsv` without a header. Its first line is still taken for a header unless it has this
            many fields, and none of them is one of these names.
        short_rows: rows with too few fields are left out and their sources added here; None refuses them.
        faults: records that hold no row are added here, and reading continues; None refuses them, the first few
            together, after the file has been read.

    Raises:
        InputError: a file is missing, of another kind, damaged, empty, not in its encoding, or a row does not fit; file
            and line are named. Or `pyarrow` is not installed.
    """
    for file in files_of(path):
        found = RowFaults() if faults is None else faults
        empty = True
        for row in _rows_of(file, txt_format, header, short_rows, found):
            empty = False
            if faults is not None or not found.count:
                yield row
        if faults is None:
            found.raise_any()
        if empty and not found.count:
            raise InputError(f"{file}: there is not a single row in it: expected examples")


def _rows_of(
    file: InputFiles, txt_format: str | None, header: Sequence[str], short_rows: list[str] | None, faults: RowFaults
) -> Iterator[Row]:
    suffix, compression = file.suffixes
    form = txt_format if suffix == ".txt" and txt_format else suffix
    if form not in ROW_SUFFIXES and file.settings.separator is not None:
        form = ".tsv" if file.settings.separator == "\t" else ".csv"
    if form == ".parquet" and not compression:
        with open_input(file.path) as stream, refusing_damage(str(file), stop):
            yield from open_parquet(stream, str(file), stop).rows
    elif form == ".json":
        yield from _read_json(list(file.lines()), str(file), faults.refuse)
    elif form in LINE_FORMATS:
        yield from read_line_format(form, file.lines(), str(file), file.settings, faults.refuse, header, short_rows)
    elif file.path == STANDARD_INPUT:
        raise InputError(f"{file}: {NEEDS_NAME}")
    else:
        known = ", ".join([*(end + packed for end in ROW_SUFFIXES[:-1] for packed in COMPRESSIONS), ".parquet"])
        raise InputError(
            f"{file}: unknown kind of file: {txt_advice(file) or f'expected {known}; '}"
            "convert or rename it (of a workbook save the sheet as .csv)"
        )


def txt_advice(file: InputFiles) -> str:
    """For a message about a file of an unknown kind, what a `.txt` is for; nothing of another."""
    if file.suffixes[0] != ".txt":
        return ""
    return (
        "a .txt has texts without labels, for `unmask predict` and `unmask score --method acceptability`, and is read "
        f"as a table with {file.settings.option('separator', 'tab')}; "
    )


def read_line_format(
    form: str,
    lines: NumberedLines,
    name: str,
    settings: TableSettings,
    refuse: Refuse,
    header: Sequence[str] = (),
    short_rows: list[str] | None = None,
) -> Iterator[Row]:
    """Rows of lines in one of `LINE_FORMATS`; see `read_rows`."""
    if form == ".jsonl":
        yield from read_jsonl(lines, name, refuse)
    elif table := open_table(form, lines, name, settings, refuse, header, short_rows):
        yield from table.rows


# ---- Lines of cells


Record = tuple[int, list[str]]
"""The number of the line on which a row begins, and its cells."""


def open_table(
    form: str,
    lines: NumberedLines,
    name: str,
    settings: TableSettings,
    refuse: Refuse,
    header: Sequence[str] = (),
    short_rows: list[str] | None = None,
) -> Table | None:
    """A `.csv` or `.tsv` after its header was read; None if there is none. Empty lines are skipped."""
    csv.field_size_limit(FIELD_CHARACTERS)
    quoted = form == ".csv" if settings.quoted is None else settings.quoted
    numbered = iter(lines)
    first = next((each for each in numbered if each[1].strip("\r\n")), None)
    declared = _DECLARED.fullmatch(first[1].rstrip("\r\n")) if first and form == ".csv" else None
    if declared is not None:  # Excel's own line before the header
        first = next(numbered, None)
    if first is None:
        return None
    separator = (
        settings.separator
        or (declared and declared[1])
        or ("\t" if form == ".tsv" else _separator_of(first[1], settings))
    )
    above, all_lines = first[0] - 1, chain([first], numbered)
    records = (
        _quoted_records(all_lines, name, above, separator, refuse) if quoted else _plain_records(all_lines, separator)
    )
    number, cells = next(records, (0, []))
    if not number:
        return None
    names, place, without = cells, f"{name}:{number}", settings.header == "none"
    if without or (header and len(cells) == len(header) and not set(header) & set(cells)):
        names = list(header) if len(header) == len(cells) else [str(place) for place in range(1, len(cells) + 1)]
        records = chain([(number, cells)], records)
    elif not is_sound_header(cells, place, settings, refuse):
        return None
    what = "the first row" if without else "the header"
    advice = (
        "in a .csv a text with commas or line breaks is between quotes"
        if quoted
        else "in a .tsv nothing is quoted: a text holds no tab and no line break; if yours are between quotes, give "
        f"{settings.option('quoted', 'true')}"
    )
    expected = f"{what} has {len(names)} ({', '.join(cut_short(names))})"
    rows = _fitted(records, names, name, expected, advice, refuse, short_rows)
    return Table(names, place, rows, separator=separator)


def _separator_of(header: str, settings: TableSettings) -> str:
    """A comma, unless the header of a `.csv` is one column with another separator in it, as Excel writes it in Korea
    and in much of Europe."""
    if "\r" in header.rstrip("\r\n"):
        return ","  # which the check of the header reports
    try:
        cells = next(csv.reader([header]), [""])
    except csv.Error:
        return ","  # `_quoted_records` reports the row
    marks = (mark for mark in ";\t|" if len(cells) == 1 and mark in cells[0])
    return next(marks, ",") if settings.header == "first_row" else ","


def _plain_records(lines: NumberedLines, separator: str) -> Iterator[Record]:
    for number, line in lines:
        yield number, line.removesuffix("\n").removesuffix("\r").split(separator)


def _quoted_records(lines: NumberedLines, name: str, above: int, separator: str, refuse: Refuse) -> Iterator[Record]:
    """Rows between quotes; `above` lines come before them."""
    reader = csv.reader((line for _, line in lines), strict=True, delimiter=separator)
    while True:
        number = above + reader.line_num + 1
        try:
            cells = next(reader, None)
        except csv.Error as error:
            what = str(error).partition(" - ")[0]  # the rest is advice to programmers
            wrong = (
                f"not CSV in the row that begins here ({what}): expected cells with separators, quotes or line breaks "
                'in them to be between quotes, and a quote in them to be doubled ("")'
            )
            if what.startswith("new-line character"):
                wrong = (
                    "a CR alone in the row that begins here: expected lines to end in LF or CRLF (old Macs ended them "
                    "so: save the file anew), and line breaks in cells to be between quotes"
                )
            last = above + reader.line_num
            lines_lost = f"{number}" if last <= number else f"{number}-{last}"
            refuse(f"{name}:{lines_lost}", "not CSV", wrong)
            continue
        if cells is None:
            return
        yield number, cells or [""]


def _fitted(
    records: Iterable[Record],
    names: Sequence[str],
    name: str,
    expected: str,
    advice: str,
    refuse: Refuse,
    short_rows: list[str] | None,
) -> Iterator[Row]:
    """Rows of as many cells as there are columns. An empty line is one only if there is a single column."""
    for number, cells in records:
        place = f"{name}:{number}"
        if len(cells) == len(names):
            if any("\0" in cell for cell in cells):
                refuse(place, "NUL byte", "a NUL byte, which is no character of a text: take it out")
            else:
                yield Row(dict(zip(names, cells, strict=True)), place)
        elif short_rows is not None and len(cells) < len(names):
            if cells != [""]:
                short_rows.append(place)
        elif cells != [""]:
            refuse(place, "ragged row", f"{len(cells)} fields where {expected}: fix the row ({advice})")


# ---- JSON


def read_jsonl(lines: NumberedLines, name: str, refuse: Refuse = stop) -> Iterator[Row]:
    """One JSON object a line; blank lines are skipped."""
    for number, line in lines:
        try:
            value = json.loads(line)
        except (ValueError, RecursionError) as error:
            if not line.isspace():
                problem = f"not JSON ({error}): expected one object a line; fix that line"
                refuse(f"{name}:{number}", "not JSON", problem)
            continue
        if type(value) is dict:
            yield Row(value, f"{name}:{number}")
        else:
            refuse(f"{name}:{number}", "not a JSON object", no_object(value))


def _read_json(lines: list[tuple[int, str]], name: str, refuse: Refuse) -> Iterator[Row]:
    """The objects of a list; one object; or one a line, since some JSON Lines files are called `.json`."""
    try:
        value = load_json(lines, name)
    except InputError:
        if begins_as_list(lines):
            raise
        yield from read_jsonl(lines, name, refuse)
        return
    for number, item in enumerate(value if isinstance(value, list) else [value], start=1):
        if type(item) is dict:
            yield Row(item, f"{name}: item {number}")
        else:
            refuse(f"{name}: item {number}", "not a JSON object", no_object(item))


# ---- Tables that seem to be written otherwise than they are read


LOOKED_AT = 1_000
"""Rows of a `.tsv` that are looked at."""

_IN_QUOTES = re.compile(r'"(?:[^"]|"")*"')


def warn_of_notation(files: InputFiles) -> None:
    """Warns of a `.csv` whose header is split at commas and has more of another mark, and of a `.tsv` that seems to be
    written with quotes, which are not read where `quoted` does not say so."""
    for file in files_of(files):
        if file.suffixes[0] == ".csv" and file.settings.separator is None and file.path.is_file():
            _warn_of_separator(file)
        if file.suffixes[0] != ".tsv" or file.settings.quoted is not None or not file.path.is_file():
            continue
        try:
            rows = list(islice(read_rows(file), LOOKED_AT))
        except InputError:
            continue  # reading it will say so
        if (found := _column_in_quotes(rows)) is not None:
            logger.warning(
                "%s: %s of %s cells of the column %r are in quotation marks, which belong to the text in a "
                ".tsv: give %s if they are quotes around it, or %s for no warning",
                file,
                f"{found[1]:,}",
                f"{len(rows):,}",
                found[0],
                file.settings.option("quoted", "true"),
                file.settings.option("quoted", "false"),
            )


def _warn_of_separator(file: InputFiles) -> None:
    try:
        table = open_table(".csv", file.lines(), str(file), file.settings, stop)
    except InputError:
        return  # reading it will say so
    if table is None or table.separator != "," or file.settings.header == "none":
        return
    for mark, given in {";": "';'", "\t": "tab", "|": "'|'"}.items():
        if "".join(table.names).count(mark) >= len(table.names):
            logger.warning(
                "%s: the header is split at its commas into %s column(s), and %r would make more: give %s if that is "
                "what separates the cells",
                file,
                len(table.names),
                mark,
                file.settings.option("separator", given),
            )


def _column_in_quotes(rows: Sequence[Row]) -> tuple[str, int] | None:
    """The first column of which many cells are in balanced quotes, and how many: at least three, and
    half of all; or three that hold doubled quotes, as programs write them that quote only where they must."""
    for name in rows[0].fields if rows else ():
        cells = [str(row.fields.get(name)) for row in rows]
        found = [cell for cell in cells if len(cell) > 2 and _IN_QUOTES.fullmatch(cell)]
        doubled = sum('""' in cell[1:-1] for cell in found)
        if doubled >= 3 or (len(found) >= 3 and 2 * len(found) >= len(cells)):
            return name, len(found)
    return None
