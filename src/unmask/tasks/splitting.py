"""A file of labelled examples split into train, dev and test, each in the file's layout.

What belongs together stays together: an article's questions, a premise's hypotheses, a document's sentences. Such
groups are ordered by the SHA-256 of their title or id, or else their text; the first 80 % are for training, the first
half of the rest is dev, and the other half test. So a split depends only on the data, and is the same for everybody.
Titles and texts that differ in case, blanks and composition (NFC, NFD) alone are one group; values of a column that is
asked for in composition alone.
"""

from __future__ import annotations

import codecs
import json
import logging
import re
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import Any

from unmask.errors import InputError
from unmask.io.encodings import normalized
from unmask.io.input_files import NEEDS_NAME, STANDARD_INPUT, DataPath, InputFiles, as_files
from unmask.io.progress import Progress
from unmask.io.reading import open_input
from unmask.io.rows import Row, stop
from unmask.io.tables import LINE_FORMATS, open_table, read_jsonl, read_rows, txt_advice
from unmask.io.writing import refuse_existing, refuse_foreign, refuse_inputs_inside, writing, writing_directory
from unmask.tasks.choice.layouts import CODAH_COLUMNS
from unmask.tasks.kinds import FACTS
from unmask.tasks.qa.mrqa import without_header
from unmask.tasks.rows import list_in_cell
from unmask.tasks.settings import ColumnSettings, TaskSettings, kind_of
from unmask.tasks.splits import SPLITS, SplitName, Unsplittable, one_spelling, split_of_groups, warn_of_splits
from unmask.tasks.table import check_name, open_task
from unmask.tasks.tagging import files as tagging
from unmask.tasks.tagging.conll import begins_document, begins_document_of_conllu, read_columns, read_conllu
from unmask.tasks.tagging.files import TAGGING_READERS, has_published_layout
from unmask.tasks.text.data_sets import DATA_SETS

logger = logging.getLogger("unmask")

USUAL_NAMES = ColumnSettings()

_BETWEEN_LABELS = re.compile(r"[|;,]")


@dataclass(frozen=True)
class _Columns:
    """Where a row has its group and its labels, of each the first column that exists; and what is no label."""

    group: Sequence[str]
    label: Sequence[str]
    unlabelled: Set[str]


Writer = Callable[[Iterable[Any]], Iterable[bytes]]
"""Gives the content of a file of some of the parts, piece by piece."""


def split_file(
    path: DataPath,
    task: str,
    out: Path,
    *,
    group: str | None = None,
    named: ColumnSettings = USUAL_NAMES,
    overwrite: bool = False,
) -> dict[Path, int]:
    """Writes `train`, `dev` and `test`, with the suffix of the file, into a new directory.

    Args:
        path: `.json` in SQuAD's layout (by article), or a list of objects (by a column); `.tsv`, `.csv`, `.jsonl` or
            `.parquet` (by a column); for tagging also files of one word a line, such as `.conll`, `.txt`, `.testa`,
            `.conllu` (by document where `-DOCSTART-` or `# newdoc` marks them, else by sentence); a data set's own
            `.txt` that is a table; plain or compressed. The parts of text are in UTF-8, whatever the encoding of the
            file; those of a table begin with a byte order mark if the file does, or is a `.csv` that is not in UTF-8.
        task: a kind of task, or a data set.
        out: a directory that does not exist or is empty.
        group: the column by which rows belong together; None takes the column of a data set's first text, or the first
            of the kind's `group_columns`, that exists.
        named: the user's names of columns, in place of the usual ones of the kind.
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
    refuse_foreign(out, [f"{name}.*" for name in SPLITS], "a split")
    refuse_existing(out, overwrite)
    file = as_files(path)
    refuse_inputs_inside(out, file.paths)
    suffix = file.suffixes[0]
    form = DATA_SETS[task].files.txt_format if suffix == ".txt" and task in DATA_SETS else suffix
    if len(file.paths) > 1 and suffix != ".parquet":
        raise InputError(f"{file}: expected one file to split, or shards in .parquet; make one of them first")
    checked = named.model_copy(update={"labels": None})  # which would need another setting
    open_task(TaskSettings.model_validate({"name": task}), checked)  # refuses columns that the task does not read
    own = [layout.texts[0] for layout in DATA_SETS[task].files.layouts] if task in DATA_SETS else []
    usual = [getattr(named, name, None) or name for name in FACTS[kind].group_columns]
    texts = named.texts[:1] if kind != "tagging" and named.texts else (*own, *usual)
    columns = _Columns(
        texts if group is None else (group,),
        *(_label_columns(task, named) if kind == "classification" else ((), frozenset())),
    )
    own_file = task in tagging.DATA_SETS and has_published_layout(file)
    has_words = own_file or TAGGING_READERS.get(suffix) in (read_columns, read_conllu)
    if suffix == ".parquet":
        parts, write = _parquet(file, columns)
    elif suffix == ".json":
        parts, write = _records(file, columns)
    elif kind == "tagging" and has_words:
        is_conllu = not own_file and suffix == ".conllu"
        parts, write = list(_documents([line for _, line in file.lines()], is_conllu)), _encoded
    elif form in LINE_FORMATS or file.settings.separator is not None:
        of_form = form if form in LINE_FORMATS else ".csv"
        parts, write = _lines(file, columns, of_form, _own_header(task))
    elif file.path == STANDARD_INPUT:
        raise InputError(f"{file}: {NEEDS_NAME}")
    else:
        raise InputError(
            f"{file}: unknown kind of file for {task}: {txt_advice(file)}expected .json, .jsonl, .tsv, .csv or "
            ".parquet, or for tagging one word a line in .conll, .txt, .bio, .iob, .train, .testa, .testb or .conllu; "
            "rename or convert it"
        )
    groups = [part.group or f"\0{number}" for number, part in enumerate(parts)]
    groups = one_spelling(groups) if group is None else [normalized("NFC", name) for name in groups]
    splits = _splits(parts, groups, file)
    counts: dict[Path, int] = {}
    with writing_directory(out, overwrite) as directory:
        for name in SPLITS:
            chosen = [part.content for part, its in zip(parts, splits, strict=True) if its == name]
            with writing(directory / f"{name}{suffix}") as written:
                written.writelines(write(chosen))
            counts[out / f"{name}{suffix}"] = len(chosen)
    warn_of_splits(file, parts, splits, columns.label)
    return counts


def _label_columns(task: str, named: ColumnSettings) -> tuple[Sequence[str], Set[str]]:
    """The columns of labels, and the values in them that mean none."""
    if task not in DATA_SETS or "label" in named.model_fields_set:
        return [named.label], DATA_SETS[task].unlabelled if task in DATA_SETS else frozenset()
    return [layout.label for layout in DATA_SETS[task].files.layouts], DATA_SETS[task].unlabelled


def _own_header(task: str) -> tuple[str, ...]:
    """The columns of a data set's tables that have no header."""
    if task == "codah":
        return CODAH_COLUMNS
    return DATA_SETS[task].files.header if task in DATA_SETS else ()


def _splits(parts: Sequence[Unsplittable], groups: Sequence[str], path: DataPath) -> list[SplitName]:
    """The split of each part, by the name of its group."""
    if not parts:
        raise InputError(f"{path}: there is nothing in it: expected examples, in a table below a header")
    try:
        split_of = split_of_groups(groups)
    except InputError as error:
        raise InputError(f"{path}: {error}") from error
    if nameless := sum(not part.group for part in parts):
        logger.warning(
            "%s: %s of %s rows have nothing in the column by which they are grouped: each is a group by itself",
            path,
            f"{nameless:,}",
            f"{len(parts):,}",
        )
    return [split_of[group] for group in groups]


def _records(file: InputFiles, columns: _Columns) -> tuple[list[Unsplittable], Writer]:
    """Articles of a file in SQuAD's layout, by their title, or else by their text; of a list the objects in it, as
    rows."""
    try:
        whole = json.loads("".join(line for _, line in file.lines()))
    except (ValueError, RecursionError) as error:
        raise InputError(f"{file}: not JSON ({error}): repair it, or fetch it again") from error
    if isinstance(whole, list):
        rows = list(read_rows(file))
        objects = [_part(row, columns, value) for row, value in zip(rows, whole, strict=True)]
        return objects, lambda chosen: _encoded([json.dumps(list(chosen), ensure_ascii=False), "\n"])
    articles = whole.get("data") if isinstance(whole, dict) else None
    if not isinstance(articles, list) or not all(isinstance(article, dict) for article in articles):
        raise InputError(f"{file}: expected an object with articles under 'data', as SQuAD has them, or a list of rows")
    parts = [
        Unsplittable(str(article.get("title") or json.dumps(article.get("paragraphs"), ensure_ascii=False)), article)
        for article in articles
    ]

    def write(chosen: Iterable[Any]) -> Iterable[bytes]:
        return _encoded([json.dumps({**whole, "data": list(chosen)}, ensure_ascii=False), "\n"])

    return parts, write


def _lines(
    file: InputFiles, columns: _Columns, form: str, own_header: Sequence[str]
) -> tuple[list[Unsplittable], Writer]:
    """Rows with their lines unchanged, below a header if there is one."""
    held: list[str] = []  # the lines from the one on which the last row begins

    def lines() -> Iterator[tuple[int, str]]:
        for number, line in file.lines():
            held.append(line)
            yield number, line

    table = None if form == ".jsonl" else open_table(form, lines(), str(file), file.settings, stop, own_header)
    rows: Iterable[Row] = () if table is None else table.rows
    if form == ".jsonl":
        rows = without_header(read_jsonl(lines(), str(file)))  # each part keeps that of MRQA, as of a table
    with Progress("reading", unit="rows") as progress:
        pieces = _with_lines(progress.counting(rows), held)
        _, header = next(pieces)
        if table is not None:
            _column(columns.group, Row(dict.fromkeys(table.names), table.place))
        parts = [_part(row, columns, text) for row, text in pieces]
    is_foreign = file.settings.encoding != "utf-8" and file.suffixes[0] == ".csv"
    mark = "\ufeff" if table is not None and (is_foreign or _has_mark(file)) else ""
    return parts, lambda chosen: _encoded(chain([mark, header], chosen))


def _with_lines(rows: Iterable[Row], held: list[str]) -> Iterator[tuple[Row, str]]:
    """What is above the rows, as one without fields, then each row, with the lines that are taken out of `held`."""
    row, begins = Row({}, ""), 1
    for following in rows:
        start = int(following.source.rpartition(":")[2])
        text = _text(held[: start - begins])
        del held[: start - begins]
        yield row, text
        row, begins = following, start
    yield row, _text(held)


def _has_mark(file: InputFiles) -> bool:
    """Whether a file begins with a byte order mark: without one Excel does not take a table for UTF-8."""
    with open_input(file.path) as raw:
        return raw.read(3).startswith((codecs.BOM_UTF8, codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))


def _text(lines: Sequence[str]) -> str:
    """The text of a row, without empty lines around it."""
    start, end = 0, len(lines)
    while end - start > 1 and not lines[end - 1].strip("\r\n"):
        end -= 1
    while end - start > 1 and not lines[start].strip("\r\n"):
        start += 1
    return _ended("".join(lines[start:end])) if lines else ""


def _parquet(file: InputFiles, columns: _Columns) -> tuple[list[Unsplittable], Writer]:
    with Progress("reading", unit="rows") as progress:
        parts = [_part(row, columns, number) for number, row in enumerate(progress.counting(read_rows(file)))]

    def write(chosen: Iterable[Any]) -> Iterable[bytes]:
        from pyarrow import ArrowException, BufferOutputStream, concat_tables, parquet

        try:
            whole = concat_tables([parquet.read_table(path) for path in file.paths], promote_options="default")
        except ArrowException as error:
            raise InputError(f"{file}: its shards do not have the same columns: {error}") from error
        out = BufferOutputStream()
        parquet.write_table(whole.take(list(chosen)), out)
        return [bytes(out.getvalue())]

    return parts, write


def _part(row: Row, columns: _Columns, content: Any) -> Unsplittable:
    group = row[_column(columns.group, row)]
    if not isinstance(group, str):
        group = "" if group is None else json.dumps(group, ensure_ascii=False)
    return Unsplittable(group, content, _labels(row, columns))


def _labels(row: Row, columns: _Columns) -> tuple[str, ...]:
    """The labels of a row; those of a text with marks between its parts, which may be several labels, are its parts."""
    name = next((name for name in columns.label if name in row), "")
    value = row[name] if name else None
    if isinstance(value, str):
        value = _labels_in(value)
    labels = map(str, value if isinstance(value, list) else [] if value is None else [value])
    return tuple(label for label in labels if label and label not in columns.unlabelled)


@lru_cache  # so that rows with the same label share it
def _labels_in(text: str) -> list[Any]:
    held = list_in_cell(text, "", "", refuses=False)
    return [part.strip() for part in _BETWEEN_LABELS.split(text)] if held is None else held


def _encoded(texts: Iterable[str]) -> Iterator[bytes]:
    return (text.encode("utf-8") for text in texts)


def _documents(lines: Sequence[str], is_conllu: bool) -> Iterator[Unsplittable]:
    """Documents where they are marked, else sentences, which end at blank lines; named by their text. A piece without a
    token, such as wikigold's last mark, stays with the part before it."""
    begins = begins_document_of_conllu if is_conllu else begins_document

    def is_token(line: str) -> bool:
        return not (line.isspace() or begins(line) or (is_conllu and line.startswith("#")))

    whole: list[str] = []
    for piece in _pieces(lines, begins):
        if any(map(is_token, whole)) and any(map(is_token, piece)):
            text = "".join(whole)
            yield Unsplittable(text, text)
            whole = []
        whole += piece
    if whole:
        text = "".join(whole) + ("" if whole[-1].isspace() else "\n")
        yield Unsplittable(text, text)


def _pieces(lines: Sequence[str], begins: Callable[[str], bool]) -> Iterator[list[str]]:
    """Runs of lines that begin with a mark, and the comments before it; or without any mark that end with a blank
    line."""
    marked = any(map(begins, lines))
    piece: list[str] = []
    for line in lines:
        if marked and begins(line):
            first = len(piece)
            while line.startswith("#") and first and piece[first - 1].startswith("#"):
                first -= 1
            if first:
                yield piece[:first]
            piece = piece[first:]
        piece.append(_ended(line))
        if not marked and line.isspace():
            yield piece
            piece = []
    if piece:
        yield piece


def _column(columns: Sequence[str], row: Row) -> str:
    for name in columns:
        if name in row:
            return name
    named = f"--column {columns[-1]}=COLUMN, or " if len(columns) > 1 else ""
    raise InputError(
        f"{row.source}: no column {' or '.join(map(repr, dict.fromkeys(columns)))} by which rows belong together: "
        f"there is {', '.join(row.fields)}; name one of them: {named}--group COLUMN keeps rows with equal COLUMN "
        "together"
    )


def _ended(text: str) -> str:
    return text if text.endswith(("\n", "\r")) else text + "\n"
