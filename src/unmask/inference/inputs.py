"""What a model is to answer: rows of files, of tables and texts on standard input, as its task reads them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from itertools import chain, count, dropwhile, islice
from pathlib import Path
from typing import Any

from unmask.config import nearest
from unmask.errors import InputError, SettingsError
from unmask.io.encodings import NumberedLines
from unmask.io.input_files import STANDARD_INPUT, DataPath, InputFiles, files_of
from unmask.io.rows import Row, cut_short, similar_columns, stop
from unmask.io.tables import LINE_FORMATS, ROW_SUFFIXES, read_jsonl, read_line_format, read_rows
from unmask.tasks.base import Task
from unmask.tasks.kinds import FACTS
from unmask.tasks.tagging.conll import HeldLines
from unmask.tasks.tagging.examples import TaggingColumns
from unmask.tasks.tagging.files import USUAL_COLUMNS, looks_like_columns, read_held
from unmask.tasks.tagging.task import Tagging

INPUT_FORMATS = (*(suffix.removeprefix(".") for suffix in LINE_FORMATS), "txt", "conll")
"""What `--format` may be; `txt` has one text per line, and `conll` one word, with its tag or without."""

_NUM_INSPECTED_LINES = 100
"""How many lines are looked at to see what is in a `.txt`."""

_EXAMPLE = 'such as [{"text": "a fine film"}]'


@dataclass(frozen=True)
class PlainText(Row):
    """A line that is a text and nothing else; its one field is `text`."""


def rows_in_memory(given: Iterable[Mapping[str, Any] | str]) -> Iterator[Row]:
    """The rows that a caller from Python gives, numbered from 1; a string is a `text`.

    Raises:
        InputError: this is no list of rows, which is said at once, or one of them is no row.
    """
    for its, advice in {"iterrows": "to_dict('records')", "to_pylist": "to_pylist()"}.items():  # pandas, pyarrow
        if hasattr(given, its):
            raise InputError(f"the inputs are a {type(given).__name__}: give a list of rows, its .{advice}")
    if isinstance(given, str | Path):
        raise InputError(
            f"the inputs are {str(given)!r}, one text or path: give a list of texts or rows; files are for `unmask "
            "predict`"
        )
    if isinstance(given, Mapping) or not isinstance(given, Iterable):
        raise InputError(f"the inputs are a {type(given).__name__}: give a list of rows, {_EXAMPLE}")
    return map(_row_in_memory, given, count(1))


def _row_in_memory(fields: Mapping[str, Any] | str, number: int) -> Row:
    if isinstance(fields, str):
        return Row({"text": str(fields)}, f"input {number}")
    if not isinstance(fields, Mapping):
        raise InputError(
            f"input {number} is {str(fields)[:60]!r}: expected a list of texts or of rows with named fields, {_EXAMPLE}"
        )
    return Row(fields, f"input {number}")


def having_field(rows: Iterable[Row], name: str) -> Iterator[Row]:
    """The same rows.

    Raises:
        InputError: one lacks the field that the user has named.
    """
    for row in rows:
        if name not in row:
            raise InputError(
                f"{row.source}: no column {name!r}: there is {', '.join(cut_short(row.fields))}."
                f"{similar_columns([name], row.fields)} Name it with --column id=NAME"
            )
        yield row


def read_inputs(
    path: str | DataPath,
    load_rows: Callable[[DataPath], Iterator[Row]] = read_rows,
    is_published_txt: Callable[[Sequence[str]], bool] | None = None,
    format: str | None = None,
    columns: TaggingColumns = USUAL_COLUMNS,
) -> Iterator[Row]:
    """Streams the inputs of files.

    Args:
        path: `.txt` with one text per line (unless a data set is published as `.txt`, or a separator is named), plain
            or compressed, or what `load_rows` reads; `-` is standard input: JSON lines if its first non-blank line
            begins with `{`, else one text per line.
        load_rows: a task's own reader; the default reads tables and JSON lines.
        is_published_txt: finds from the first lines of a `.txt` whether `load_rows` reads it.
        format: one of `INPUT_FORMATS`, for standard input and for files whose suffix does not say.
        columns: of words and tags in the format `conll`.

    Raises:
        InputError: the file is missing, of another kind, damaged, empty, not in its encoding, or a row does not fit.
        SettingsError: there is no such format, or the suffix contradicts it.
    """
    for file in files_of(path):
        suffix, is_stdin = file.suffixes[0], file.path == STANDARD_INPUT
        if format is not None:
            _check_format(format, path, suffix)
        is_table = file.settings.separator is not None
        if format == "conll":
            yield from _not_empty(read_held(HeldLines(str(file), list(file.lines())), columns), file)
        elif format is not None or (is_stdin and is_table):
            yield from _not_empty(_read_as(format or "csv", file), file)
        elif is_stdin:
            yield from _not_empty(_read_stream(file), file)
        elif suffix == ".txt" and not is_table and not (is_published_txt and is_published_txt(_first_lines(file))):
            yield from _not_empty(_read_texts(file.lines(), str(file)), file)
        else:
            yield from load_rows(file)


def read_task_inputs(path: str | DataPath, task: Task[Any], format: str | None = None) -> Iterator[Row]:
    """`read_inputs` as a task reads them.

    Raises:
        InputError: also if plain texts were given to a task for pairs, questions or choices, or a row has none of the
            columns that the task looks for.
    """
    columns = task.layout if isinstance(task, Tagging) else USUAL_COLUMNS
    rows = read_inputs(path, task.load_rows, task.is_published_txt, format, columns)
    return _fitting(rows, task, are_texts=format == "txt")


def _check_format(format: str, path: str | DataPath, suffix: str) -> None:
    if format not in INPUT_FORMATS:
        raise SettingsError(f"no format {format!r}: {nearest(format, INPUT_FORMATS).removeprefix('; ')}")
    is_either = format == "conll" and suffix == ".tsv"
    # Every other suffix leaves no doubt of what is in a file; a `.txt` may hold anything.
    if suffix in ROW_SUFFIXES and suffix != f".{format}" and not is_either:
        raise SettingsError(f"{path} is {suffix} by its name, and the format is to be {format}: leave one out")


def _fitting(rows: Iterator[Row], task: Task[Any], are_texts: bool) -> Iterator[Row]:
    """The rows; refuses plain texts where the task reads something else, or where they are a table's unless they were
    said to be texts, and rows without its columns."""
    needed = wanted = FACTS[task.kind].needed_columns
    if all(len(names) == 2 for names in task.text_columns):
        wanted = wanted or next(iter(task.text_columns), ())
    if not are_texts and not wanted:
        columns = {names[0] for names in task.text_columns} or {"text", "tokens"}
        rows = refusing_header(rows, columns, "--format {format}; if it is a text, --format txt")
        rows = _refusing_tagged_words(rows, task) if isinstance(task, Tagging) else rows
    for row in rows:
        if isinstance(row, PlainText) and wanted:
            names = " and ".join(wanted)
            raise InputError(
                f"{row.source}: a plain text, but this model reads {names if needed else 'pairs'}: "
                f"expected JSON lines, .tsv or .csv with {names}; --format csv or tsv says that it is a table"
            )
        yield row


def refusing_header(
    rows: Iterator[Row],
    names: Set[str],
    advice: str = "--separator {separator}; if it is a text, give it in JSON lines",
) -> Iterator[Row]:
    """The same rows.

    Args:
        advice: what to give, with `{format}` or `{separator}` in it.

    Raises:
        InputError: the first is a plain text that is the header of a table with one of these columns: every line would
            be answered as a text.
    """
    first = list(islice(rows, 2))
    if first and isinstance(first[0], PlainText):
        for separator, format in ((",", "csv"), ("\t", "tsv"), (";", "csv"), ("|", "csv")):
            cells = [cell.strip(' "') for cell in first[0].fields["text"].split(separator)]
            if max(len(cells), len(first)) > 1 and not names.isdisjoint(cells):
                given = advice.format(format=format, separator="tab" if separator == "\t" else f"'{separator}'")
                raise InputError(
                    f"{first[0].source}: read as a text, and it is the header of a table ({', '.join(cells)}): give "
                    f"{given}"
                )
    yield from chain(first, rows)


def _refusing_tagged_words(rows: Iterator[Row], task: Tagging) -> Iterator[Row]:
    """The same rows; refuses plain texts that are lines of one word with its tag."""
    first = list(islice(rows, _NUM_INSPECTED_LINES))
    lines = [row.fields["text"] for row in first if isinstance(row, PlainText)]
    if lines and looks_like_columns(lines, task.layout, task.labels):
        raise InputError(
            f"{first[0].source}: read as a text, and it is a word with its tag, as the lines that follow: give "
            "--format conll; if they are texts, --format txt"
        )
    yield from chain(first, rows)


def _first_lines(file: InputFiles) -> list[str]:
    """The first lines, from the first that is not blank on."""
    lines = (line.rstrip("\r\n") for _, line in file.lines())
    return list(islice(dropwhile(lambda line: not line.strip(), lines), _NUM_INSPECTED_LINES))


def _read_texts(lines: NumberedLines, name: str) -> Iterator[Row]:
    for number, line in lines:
        yield PlainText({"text": line.rstrip("\r\n")}, f"{name}:{number}")


def _read_as(format: str, file: InputFiles) -> Iterator[Row]:
    if format == "txt":
        return _read_texts(file.lines(), str(file))
    return read_line_format(f".{format}", file.lines(), str(file), file.settings, stop)


def _read_stream(file: InputFiles) -> Iterator[Row]:
    blank: list[tuple[int, str]] = []
    lines = file.lines()
    for number, line in lines:
        if not line.isspace():
            read = read_jsonl if line.lstrip().startswith("{") else _read_texts
            yield from read(chain([] if read is read_jsonl else blank, [(number, line)], lines), str(file))
            return
        blank.append((number, line))


def _not_empty(rows: Iterable[Row], file: InputFiles) -> Iterator[Row]:
    empty = True
    for row in rows:
        empty = False
        yield row
    if empty:
        raise InputError(f"{file}: there is nothing in it: expected inputs")
