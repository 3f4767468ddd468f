"""A file of labelled examples split into train, dev and test (`unmask.tasks.splits`), each in the file's layout."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from unmask.errors import InputError
from unmask.io.reading import open_input, read_utf8_lines, split_suffixes
from unmask.io.writing import refuse_existing, refuse_foreign, writing, writing_directory
from unmask.tasks.settings import TaskKind, kind_of
from unmask.tasks.splits import SPLITS, split_of_groups
from unmask.tasks.table import check_name

GROUP_COLUMNS: dict[TaskKind, tuple[str, ...]] = {
    "classification": ("premise", "sentence1", "text_a", "sentence", "document", "text"),
    "regression": ("sentence1", "text_a", "sentence", "text"),
    "qa": ("title", "context"),
    "choice": ("article", "context"),
    "tagging": ("document", "tokens", "text"),
}
"""Columns of a table by which rows belong together; the first that exists is used."""

DOCUMENT_MARK = "-DOCSTART-"
"""Begins a document in CoNLL's files."""


@dataclass(frozen=True)
class Part:
    """What cannot be divided: an article, the lines of a row or of a document.

    Attributes:
        group: the name of the group that it belongs to.
        content: an article as it was parsed, or text exactly as in the file.
    """

    group: str
    content: Any


@dataclass(frozen=True)
class Parts:
    """A file in parts.

    Attributes:
        parts: in the order of the file.
        write: gives the content of a file of some of the parts.
    """

    parts: Sequence[Part]
    write: Callable[[Iterable[Any]], str]


def split_file(
    path: Path, task: str, out: Path, *, group: str | None = None, overwrite: bool = False
) -> dict[Path, int]:
    """Writes `train`, `dev` and `test`, with the suffix of the file, into a new directory.

    Args:
        path: `.json` in SQuAD's layout (by article); `.tsv` and `.csv` with a header, or `.jsonl` (by a column); for
            tagging also `.conll`, `.bio`, `.iob`, `.txt`, `.train` (by document where `-DOCSTART-` marks them, else by
            sentence); plain or compressed.
        task: a kind of task, or a data set.
        out: a directory that does not exist or is empty.
        group: the column by which rows belong together; None takes the first of `GROUP_COLUMNS` that exists.
        overwrite: True replaces an earlier split in `out`.

    Returns:
        How many articles, rows, documents or sentences each file has.

    Raises:
        SettingsError: there is no such task.
        InputError: the file cannot be read, has no such column, or fewer than three groups.
        OutputError: `out` holds something, or cannot be written.
    """
    check_name(task)
    kind = kind_of(task)  # type: ignore[arg-type]  # just checked
    refuse_existing(out, overwrite)
    refuse_foreign(out, [f"{name}.*" for name in SPLITS], "a split")
    suffix = split_suffixes(path)[0]
    with open_input(path) as file:
        lines = [line for _, line in read_utf8_lines(file, path)]
    columns = GROUP_COLUMNS[kind] if group is None else (group,)
    if suffix == ".json":
        whole = _articles(lines, path)
    elif suffix == ".jsonl":
        whole = Parts(list(_json_rows(lines, columns, path)), "".join)
    elif suffix in (".tsv", ".csv") and task != "klue-ner":
        whole = _table(lines, columns, path, quoted=suffix == ".csv")
    elif kind == "tagging" and suffix in (".conll", ".bio", ".iob", ".txt", ".train", ".tsv"):
        whole = Parts(list(_documents(lines)), "".join)
    else:
        raise InputError(f"{path}: unknown kind of file for {task}: expected .json, .jsonl, .tsv or .csv; convert it")
    return _write(whole, out, suffix, path, overwrite)


def _write(whole: Parts, out: Path, suffix: str, path: Path, overwrite: bool) -> dict[Path, int]:
    if not whole.parts:
        raise InputError(f"{path}: there is nothing in it: expected examples")
    try:
        split_of = split_of_groups(part.group for part in whole.parts)
    except InputError as error:
        raise InputError(f"{path}: {error}") from error
    counts: dict[Path, int] = {}
    with writing_directory(out, overwrite) as directory:
        for name in SPLITS:
            chosen = [part.content for part in whole.parts if split_of[part.group] == name]
            with writing(directory / f"{name}{suffix}") as file:
                file.write(whole.write(chosen).encode("utf-8"))
            counts[out / f"{name}{suffix}"] = len(chosen)
    return counts


def _articles(lines: Iterable[str], path: Path) -> Parts:
    """Articles of a file in SQuAD's layout, by their title, or else by their text."""
    try:
        whole = json.loads("".join(lines))
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: not JSON ({error}): repair it, or fetch it again") from error
    articles = whole.get("data") if isinstance(whole, dict) else None
    if not isinstance(articles, list) or not all(isinstance(article, dict) for article in articles):
        raise InputError(f"{path}: expected an object with articles under 'data', as SQuAD has them")
    parts = [
        Part(str(article.get("title") or json.dumps(article.get("paragraphs"), ensure_ascii=False)), article)
        for article in articles
    ]
    return Parts(parts, lambda chosen: json.dumps({**whole, "data": list(chosen)}, ensure_ascii=False) + "\n")


def _json_rows(lines: Iterable[str], columns: Sequence[str], path: Path) -> Iterator[Part]:
    for number, line in enumerate(lines, start=1):
        if line.isspace():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise InputError(f"{path}:{number}: not JSON ({error}): expected one object a line") from error
        if not isinstance(row, dict):
            raise InputError(f"{path}:{number}: expected a JSON object, found {line.strip()[:60]}")
        value = row[_column(columns, list(row), f"{path}:{number}")]
        yield Part(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False), _ended(line))


def _table(lines: Sequence[str], columns: Sequence[str], path: Path, *, quoted: bool) -> Parts:
    """Rows below a header, each with its lines unchanged."""
    rows = _csv_rows(lines, path) if quoted else _tsv_rows(lines)
    first = next(rows, None)
    if first is None:
        raise InputError(f"{path}: there is nothing in it: expected a header and rows")
    number, header, header_text = first
    place = header.index(_column(columns, header, f"{path}:{number}"))
    parts = []
    for number, values, text in rows:
        if len(values) != len(header):
            raise InputError(f"{path}:{number}: {len(values)} fields where the header has {len(header)}: mend the row")
        parts.append(Part(values[place], _ended(text)))
    return Parts(parts, lambda chosen: _ended(header_text) + "".join(chosen))


NumberedRow = tuple[int, list[str], str]
"""The number of its first line, its values, and its text exactly as in the file."""


def _tsv_rows(lines: Iterable[str]) -> Iterator[NumberedRow]:
    for number, line in enumerate(lines, start=1):
        if line.strip("\r\n"):
            yield number, line.rstrip("\r\n").split("\t"), line


def _csv_rows(lines: Sequence[str], path: Path) -> Iterator[NumberedRow]:
    csv.field_size_limit(2**31 - 1)
    reader = csv.reader(lines, strict=True)
    start = 0
    while True:
        try:
            values = next(reader, None)
        except csv.Error as error:
            raise InputError(f"{path}:{start + 1}: not CSV in the row that begins here ({error}): mend it") from error
        if values is None:
            return
        number, text, start = start + 1, "".join(lines[start : reader.line_num]), reader.line_num
        if values:
            yield number, values, text


def _documents(lines: Sequence[str]) -> Iterator[Part]:
    """Documents where they are marked, else sentences, which end at blank lines; named by their text. A piece without a
    token, such as wikigold's last mark, stays with the part before it."""
    marked = any(line.startswith(DOCUMENT_MARK) for line in lines)
    whole: list[str] = []
    for piece in _pieces(lines, marked):
        if any(map(_is_token, whole)) and any(map(_is_token, piece)):
            yield Part("".join(whole), "".join(whole))
            whole = []
        whole += piece
    if whole:
        text = "".join(whole) + ("" if whole[-1].isspace() else "\n")
        yield Part(text, text)


def _pieces(lines: Iterable[str], marked: bool) -> Iterator[list[str]]:
    """Stretches that begin with a mark, or that end with a blank line."""
    piece: list[str] = []
    for line in lines:
        if marked and piece and line.startswith(DOCUMENT_MARK):
            yield piece
            piece = []
        piece.append(_ended(line))
        if not marked and line.isspace():
            yield piece
            piece = []
    if piece:
        yield piece


def _is_token(line: str) -> bool:
    return not line.isspace() and not line.startswith(DOCUMENT_MARK)


def _column(columns: Sequence[str], there: Sequence[str], place: str) -> str:
    for name in columns:
        if name in there:
            return name
    raise InputError(
        f"{place}: no column {' or '.join(map(repr, columns))} by which rows belong together: there is "
        f"{', '.join(there)}; name one of them with --group"
    )


def _ended(text: str) -> str:
    return text if text.endswith(("\n", "\r")) else text + "\n"
