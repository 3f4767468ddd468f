"""From rows to examples of one text or a pair: which columns are read, how labels are read, and the token ids."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

from unmask.errors import InputError
from unmask.io.input_files import DataPath
from unmask.io.progress import listed
from unmask.io.rows import Row, RowFaults
from unmask.io.tables import read_rows
from unmask.tasks.base import ExampleCounts
from unmask.tasks.encoded import Columns, EncodedExamples, window_bounds
from unmask.tasks.rows import checked_text, choose_layout, naming, same_column
from unmask.tasks.settings import ColumnSettings, TaskSettings
from unmask.tokenization.opening import Tokenizer
from unmask.tokenization.tokenizer import assemble

LabelT = TypeVar("LabelT")

USUAL_COLUMNS = (ColumnSettings(text="text"), ColumnSettings(text_a="text_a", text_b="text_b"))
"""The columns looked for by default."""


@dataclass(frozen=True)
class TextExample(Generic[LabelT]):
    """A row as a task reads it.

    Attributes:
        text_a: the one text, or the first of a pair.
        text_b: the second of a pair.
        label: None if it has none.
        fields: the whole row.
        source: where it is, as `path:line`.
    """

    text_a: str
    text_b: str | None
    label: LabelT | None
    fields: Mapping[str, Any]
    source: str

    @property
    def texts(self) -> tuple[str, ...]:
        """See `Example`."""
        return (self.text_a,) if self.text_b is None else (self.text_a, self.text_b)


@dataclass(frozen=True)
class TextFiles:
    """How a task's files are read.

    Attributes:
        layouts: the sets of columns to look for; the first that a row has is used. Once a file was seen, all are for
            one text, or all for two.
        txt_format: the format of files called `.txt`; None refuses them.
        header: the columns of a `.tsv` without a header.
        has_broken_rows: True if the published files have rows with too few fields: they are left out and counted.
    """

    layouts: tuple[ColumnSettings, ...] = USUAL_COLUMNS
    txt_format: str | None = None
    header: tuple[str, ...] = ()
    has_broken_rows: bool = False

    @property
    def columns(self) -> ColumnSettings:
        """The columns that are looked for first."""
        return self.layouts[0]

    @property
    def is_pair(self) -> bool:
        """True if only pairs are accepted."""
        return all(len(columns.texts) == 2 for columns in self.layouts)

    def rows(
        self, path: DataPath, short_rows: list[str] | None = None, faults: RowFaults | None = None
    ) -> Iterator[Row]:
        """Streams the rows of a file; see `read_rows`."""
        return read_rows(path, self.txt_format, header=self.header, short_rows=short_rows, faults=faults)

    def with_columns(self, columns: ColumnSettings, lenient: bool) -> TextFiles:
        """The same with the user's settings of the columns.

        Args:
            columns: the user's; unset fields keep their defaults; `label` alone takes the place of `labels`.
            lenient: True also tries these layouts' columns and the usual ones, after the user's.
        """
        given = columns.model_dump(include=columns.model_fields_set & {"label", "labels", "id"})
        if "label" in given:
            given.setdefault("labels")
        own = [layout.model_copy(update=given) for layout in self.layouts]
        wanted = [columns] if columns.texts else own
        if lenient:
            lengths = {len(layout.texts) for layout in wanted}
            usual = [layout.model_copy(update=given) for layout in USUAL_COLUMNS]
            others = [layout for layout in (*self.layouts, *usual) if len(layout.texts) in lengths]
            wanted = list(dict.fromkeys((*wanted, *others)))
        return replace(self, layouts=tuple(wanted))

    def fit_to(self, path: DataPath) -> TextFiles:
        """The same with the file's layout first, followed by those of the others that have as many texts.

        Raises:
            InputError: the file cannot be read, has none of the layouts, or a text is its own label.
        """
        row = next(self.rows(path, [] if self.has_broken_rows else None))
        found = choose_columns(self.layouts, row)
        for setting in ("text", "text_a", "text_b"):
            if (name := getattr(found, setting)) in found.targets:
                label_setting = "label" if found.labels is None else "labels"
                raise same_column(row.source, name, "texts", setting, "labels", label_setting)
        alike = [layout for layout in self.layouts if len(layout.texts) == len(found.texts)]
        return replace(self, layouts=tuple(dict.fromkeys((found, *alike))))

    def load(
        self, path: DataPath, counts: ExampleCounts, read_label: Callable[[Row, str], LabelT | None], unlabelled: bool
    ) -> Iterator[TextExample[LabelT]]:
        """Streams the examples of a file.

        Args:
            counts: records what is left out.
            read_label: returns the label in a column of a row, or None for a value that means no label.
            unlabelled: True also yields the examples for which `read_label` returns None, and those of rows that lack
                the column. What an empty one means is for `read_label` to say.

        Raises:
            InputError: see `Task.load`; the first few faulty rows are reported together, after the file has been read.
        """
        short_rows: list[str] | None = [] if self.has_broken_rows else None
        found_one, faults = unlabelled, RowFaults()
        for row in self.rows(path, short_rows, faults):
            try:
                columns = choose_columns(self.layouts, row)
                lacks_it = unlabelled and not all(name in row for name in columns.targets)
                label = None if lacks_it else read_label(row, columns.label)
                is_kept = label is not None or unlabelled
                example = _example(row, columns, label) if is_kept else None
            except InputError as fault:
                faults.add(fault)
                continue
            if example is None:
                counts.unlabelled += 1
            elif not faults.count:
                found_one = True
                yield example
        faults.raise_any()
        if short_rows:
            what = f"rows of too few fields left out, as the published file has them ({listed(short_rows, 5)})"
            counts.note(what, len(short_rows))
        if not found_one:
            raise InputError(f"{path}: not a single example has a label: nothing to learn or to measure")

    def read(self, row: Row) -> TextExample[Any]:
        """A row as an example without label.

        Raises:
            InputError: it has none of the layouts, or a text is not a string.
        """
        return _example(row, choose_columns(self.layouts, row), None)

    def shown(self, example: TextExample[Any]) -> dict[str, str]:
        """The texts of an example, by the names of their columns, for the report."""
        texts = [text for text in (example.text_a, example.text_b) if text is not None]
        return dict(zip(self.columns.texts, texts, strict=True))


def choose_columns(layouts: Sequence[ColumnSettings], row: Row) -> ColumnSettings:
    """The first layout whose texts the row has; layouts whose label it also has take precedence.

    Raises:
        InputError: none fits; names the missing columns and those there are.
    """
    labelled = [columns for columns in layouts if all(name in row for name in (*columns.texts, *columns.targets))]
    names = ("text",) if len(layouts[0].texts) == 1 else ("text_a", "text_b")
    return choose_layout([*labelled, *layouts], row, lambda columns: columns.texts, naming(*names))


def _example(row: Row, columns: ColumnSettings, label: LabelT | None) -> TextExample[LabelT]:
    texts = [checked_text(row[name], name, row.source) for name in columns.texts]
    return TextExample(texts[0], texts[1] if len(texts) == 2 else None, label, row.fields, row.source)


def encode_texts(
    examples: Sequence[TextExample[Any]],
    tokenizer: Tokenizer,
    counts: ExampleCounts,
    num_segments: int,
    settings: TaskSettings,
    unit_columns: Columns,
) -> EncodedExamples:
    """Encodes texts and pairs; each is a unit of one row, of two if both orders of a pair are read, or of its windows
    if long texts are read so; see `Task.encode`.

    Raises:
        InputError: an example is longer than `settings.max_length` and may not be cut, has no token at all, or is not a
            pair though both orders are to be read, or a pair though texts are to be read in windows.
    """
    if settings.long_text == "windows":
        return _encode_windows(examples, tokenizer, counts, settings, unit_columns)
    limit = settings.max_length if settings.truncation else None
    inputs = tokenizer.encode_inputs([(example.text_a, example.text_b) for example in examples], limit)
    two_orders = settings.reads_both_orders(num_segments)
    if two_orders:
        swapped = iter(tokenizer.encode_inputs([_swapped(example) for example in examples], limit))
    for example, encoded_input in zip(examples, inputs, strict=True):
        if len(encoded_input.input_ids) > settings.max_length:
            raise InputError(
                f"{example.source}: {len(encoded_input.input_ids)} tokens, over task.max_length {settings.max_length}, "
                "and task.truncation is false: shorten the text, raise task.max_length, or allow truncation"
            )
        if not encoded_input.input_ids:
            raise InputError(
                f"{example.source}: the text holds no token, and the model's tokenizer puts none around it: take the "
                "row out"
            )
    template = tokenizer.template
    single, pair = (sum(len(piece.ids) for piece in pieces) for pieces in (template.single, template.pair))
    counts.examples += len(examples)
    counts.truncated += sum(encoded_input.truncated for encoded_input in inputs)
    counts.num_cut += sum(encoded_input.num_cut for encoded_input in inputs)
    counts.empty += sum(
        len(encoded_input.input_ids) == (single if example.text_b is None else pair)
        for example, encoded_input in zip(examples, inputs, strict=True)
    )
    rows = [row for one in inputs for row in (one, next(swapped))] if two_orders else inputs
    return EncodedExamples.from_lists(
        [row.input_ids for row in rows],
        [row.token_type_ids.count(0) if num_segments > 1 else len(row.input_ids) for row in rows],
        rows_of_units=[2] * len(inputs) if two_orders else None,
        unit_columns=unit_columns,
    )


def _encode_windows(
    examples: Sequence[TextExample[Any]],
    tokenizer: Tokenizer,
    counts: ExampleCounts,
    settings: TaskSettings,
    unit_columns: Columns,
) -> EncodedExamples:
    """Every text in as many rows as it takes, special tokens around each; nothing is cut."""
    num_special = sum(len(piece.ids) for piece in tokenizer.template.single)
    texts = tokenizer.encode_batch([example.text_a for example in examples], specials_in_text=True)
    rows: list[list[int]] = []
    sizes = []
    for example, ids in zip(examples, texts, strict=True):
        if example.text_b is not None:
            raise InputError(
                f"{example.source}: a pair, and task.long_text=windows reads single texts: leave it out, so that the "
                "end of the longer text is cut"
            )
        if not ids and not num_special:
            raise InputError(f"{example.source}: the text holds no token: take the row out")
        bounds = window_bounds(len(ids), settings.max_length - num_special, settings.doc_stride)
        rows += [assemble(tokenizer.template, ids[start:end], None, None).input_ids for start, end in bounds]
        sizes.append(len(bounds))
        counts.empty += not ids
    counts.examples += len(examples)
    return EncodedExamples.from_lists(rows, [len(row) for row in rows], rows_of_units=sizes, unit_columns=unit_columns)


def _swapped(example: TextExample[Any]) -> tuple[str, str]:
    if example.text_b is None:
        raise InputError(
            f"{example.source}: one text, and task.two_orders reads pairs in both orders: name the columns of two with "
            f"{naming('text_a', 'text_b')}, or leave out task.two_orders"
        )
    return example.text_b, example.text_a
