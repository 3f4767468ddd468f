"""Texts to features: the hidden states of a frozen encoder, written once for other models to read.

The choices of layers are those of BERT's feature-based approach (Devlin et al. 2019, section 5.3 and Table 7). The
`weighted-*` choices write the layers themselves, since their mixture is learned with the head that reads them.

Pooling: `none` gives one vector per token, `mean` and `max` combine these vectors, `cls` takes the first token's (for
a causal encoder the last one's, since the first sees no other), without applying the pooler; `mean-with-special` is
the mean that sentence-transformers takes. Only these two use the special tokens around a text. A text longer than the
encoder's training sequences is read in windows and loses nothing, except that these two are of its first window.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np

from unmask.config import build_settings, nearest
from unmask.errors import ModelError, OutputError, SettingsError
from unmask.inference.coverage import Coverage
from unmask.inference.example_sets import in_sets
from unmask.inference.features.batches import (
    FeatureModel,
    InputSet,
    Pool,
    check_pool,
    checked_tokens,
    input_sets,
    pooled_vectors,
    token_vectors,
)
from unmask.inference.features.parquet import check_pyarrow, write_parquet
from unmask.inference.features.rows import (
    FeatureInput,
    describe_tokens,
    feature_layouts,
    layout_names,
    num_characters,
    read_feature_input,
)
from unmask.inference.features.sentence_transformers import find_sentence_model
from unmask.inference.inputs import read_inputs, refusing_header
from unmask.inference.opening import Opened, open_model
from unmask.inference.task_options import NOTHING_SAID, Columns, as_columns
from unmask.io.input_files import DataPath, as_files
from unmask.io.npy import DTYPE, FeatureWriter, map_features, writing_features
from unmask.io.paths import check_writable, free_space
from unmask.io.progress import Progress, human_bytes
from unmask.io.writing import json_line, refuse_foreign, refuse_inputs_inside, writing, writing_directory
from unmask.models.heads.layer_mixture import CHOICES
from unmask.tasks.recorded import recorded_in
from unmask.tasks.settings import ColumnSettings

logger = logging.getLogger("unmask")

Format = Literal["npy", "parquet"]

FEATURES, INDEX, TABLE = "features.npy", "index.jsonl", "features.parquet"


def load_feature_model(
    model: str | Path,
    layers: str = "last",
    *,
    columns: Columns = NOTHING_SAID,
    max_length: int | None = None,
    device: str = "auto",
    precision: str = "fp32",
) -> FeatureModel:
    """Loads the encoder of a model, pre-trained or fine-tuned.

    Args:
        model: its directory, or that of the run that made it.
        layers: a name of `unmask.models.heads.layer_mixture.find_choice`.
        columns: a table's columns for `text`, `text_a` and `text_b`, or `tokens`; and for `id`; such as
            `{"text": "sentence"}`. One that is not named is the one that a fine-tuned model remembers, or has that very
            name.
        max_length: most tokens read at once, special tokens included; None takes as many as it
            was pre-trained on, sentence-transformers has read, or there are positions for.
        device: `auto`, `cpu` or `cuda`.
        precision: `fp32` or `bf16`; features are float32 in any case.

    Raises:
        ModelError: there is no such model, it has no tokenizer, or it does not load.
        SettingsError: no such layers or device, a column that does not apply here, or `max_length` is over the
            encoder's positions or leaves no room.
    """
    opened = open_model(model, device=device, precision=precision, heads=False)
    return feature_model(opened, columns=columns, max_length=max_length).with_layers(layers, mixes=True)


def feature_model(opened: Opened, *, columns: Columns = NOTHING_SAID, max_length: int | None = None) -> FeatureModel:
    """The same of a model that is open, of its last layer."""
    directory, encoder = opened.directory, opened.loaded.encoder
    layouts = feature_layouts(as_columns(columns), _remembered_columns(opened.loaded.config, directory))
    settings = encoder.settings
    saved = find_sentence_model(directory)
    usual = opened.max_length
    if saved is not None and saved.max_length is not None:
        usual = min(saved.max_length, usual)
    longest = usual if max_length is None else max_length
    if longest > settings.num_positions:
        raise SettingsError(f"max_length {longest} is over the {settings.num_positions} positions of {directory}")
    model = FeatureModel(encoder, opened.tokenizer, opened.compute, CHOICES["last"], longest, layouts)
    if saved is not None:
        for remark in saved.remarks:
            logger.warning("%s: %s", directory, remark)
        if saved.lowercases and not (opened.tokenizer.reads_words or opened.tokenizer.lowercases):
            logger.warning("%s: its texts are lower-cased first: give them in lower case", directory)
        model = replace(model, usual_pool=saved.pool)
    if (capacity := model.row_maker("none").capacity(is_pair=True)) < 2:
        raise SettingsError(
            f"max_length {longest} has no room for a pair of texts: give at least {longest + 2 - capacity}"
        )
    return model


def _remembered_columns(config: Mapping[str, Any], directory: Path) -> ColumnSettings:
    """The columns that a fine-tuned model was trained on; none for a model that was only pre-trained."""
    columns = recorded_in(directory, config).get("columns", {})
    try:
        return build_settings(ColumnSettings, columns, "unmask_task.columns")
    except SettingsError as error:
        raise ModelError(f"{directory}/config.json: {error}: get the model again, or take it out") from error


def extract_features(
    model: str | Path,
    input: str | DataPath,
    out: str | Path,
    *,
    layers: str = "last",
    pool: str = "none",
    columns: Columns = NOTHING_SAID,
    input_format: str | None = None,
    max_length: int | None = None,
    device: str = "auto",
    precision: str = "fp32",
    format: str = "npy",
    overwrite: bool = False,
) -> Path:
    """Writes the features of texts, in their order and in constant memory.

    A file is read twice, first to check it and to count what will be written; standard input is read once.

    Args:
        model: a model's directory, or that of the run that made it.
        input: `.txt` with one text per line, `.tsv`, `.csv`, `.jsonl`, `.json` or `.parquet` with `text`, `text_a` and
            `text_b`, or `tokens`, or with the columns that the model was fine-tuned on; `-` is standard input.
        out: a directory: `features.npy`, float32, (rows, width) or, for `weighted-*` layers, (rows, layers, hidden);
            and `index.jsonl`, one line per input: its `id` (its number from 0 where it has none), its first `row`, and
            `num_tokens`. Pooled, an input has one row; with `none` it has `num_tokens` rows, and the line also holds
            `tokens`, `offsets` (characters of the text), `words` (the number of each token's word, where words were
            given) and `num_tokens_a` (for a pair, whose second text's tokens follow the first's).
        layers, columns, max_length, device, precision: see
            `unmask.inference.features.extraction.load_feature_model`.
        input_format: what standard input holds; see `unmask.inference.inputs.read_inputs`.
        pool: `none`, `cls`, `mean`, `max`, or `mean-with-special` as sentence-transformers has it.
        format: `parquet` writes `features.parquet` in place of `features.npy`: `id`, an integer where all ids are
            (of 64 bits), else a string; and `features`.
        overwrite: True replaces features that are in `out`.

    Returns:
        `out`.

    Raises:
        UserError: anything wrong with the model, inputs, settings or output; nothing is left half-written.
    """
    input = as_files(input)
    checked_pool = check_pool(pool)
    if format not in get_args(Format):
        known = nearest(str(format), get_args(Format)).removeprefix("; ")
        raise SettingsError(f"no format {format!r}: {known} (of the input: --input-format)")
    out = Path(out)
    refuse_foreign(out, (FEATURES, INDEX, TABLE), "features")
    check_writable(out, overwrite, is_folder=True)
    refuse_inputs_inside(out, input.paths)
    if format == "parquet":
        check_pyarrow()
    loaded = load_feature_model(
        model, layers, columns=columns, max_length=max_length, device=device, precision=precision
    )
    total = None
    if input.can_be_read_again:
        total, num_rows = _survey(loaded, read_file(loaded, input, input_format), checked_pool)
        num_copies = 2 if format == "parquet" else 1
        _check_space(out, num_copies * num_rows * DTYPE.itemsize * int(np.prod(loaded.shape)))
    coverage = Coverage(loaded.tokenizer, "inputs")
    with writing_directory(out, overwrite) as directory:
        with (
            Progress("features", total, unit="inputs") as progress,
            writing_features(directory / FEATURES, loaded.shape) as writer,
            writing(directory / INDEX) as index,
        ):
            num_rows = num_inputs = 0
            are_numbers = True
            inputs = read_file(loaded, input, input_format)
            for encoded in input_sets(loaded, inputs, checked_pool, coverage, num_characters):
                for line in _write_set(loaded, encoded, checked_pool, writer, num_rows, num_inputs):
                    index.write(json_line(line))
                    are_numbers = are_numbers and type(line["id"]) is int and -(2**63) <= line["id"] < 2**63
                    num_rows += line["num_tokens"] if pool == "none" else 1
                num_inputs += len(encoded.inputs)
                progress.advance(len(encoded.inputs))
            writer.finish(num_rows)
        if format == "parquet":
            ids = _ids(directory / INDEX, checked_pool)
            write_parquet(directory / TABLE, map_features(directory / FEATURES), ids, int if are_numbers else str)
            (directory / FEATURES).unlink()
    coverage.log()
    return out


def read_file(model: FeatureModel, path: str | DataPath, format: str | None = None) -> Iterator[FeatureInput]:
    """Streams the inputs of a file, or of standard input (`-`), by the model's columns; see `read_inputs`.

    Raises:
        InputError: also where the first text is the header of a table with one of these columns, unless `format` is
            `txt`.
    """
    rows = read_inputs(path, format=format)
    if format != "txt":
        rows = refusing_header(rows, {name for layout in model.layouts for name in layout_names(layout)})
    return (read_feature_input(row, model.layouts) for row in rows)


def _ids(index: Path, pool: Pool) -> Iterator[Any]:
    """The id of each row of the features."""
    with open(index, encoding="utf-8") as lines:
        for line in map(json.loads, lines):
            yield from [line["id"]] * (line["num_tokens"] if pool == "none" else 1)


def _survey(model: FeatureModel, read: Iterator[FeatureInput], pool: Pool) -> tuple[int, int]:
    """How many inputs a file has, and how many rows their features will have; an input that cannot be used is refused
    now, not after hours of encoding."""
    num_inputs = num_rows = 0
    with Progress("looking through the inputs", unit="inputs") as progress:
        for inputs in in_sets(read, length=num_characters):
            num_inputs += len(inputs)
            num_rows += len(inputs) if pool != "none" else sum(len(its.ids) for its in checked_tokens(model, inputs))
            progress.advance(len(inputs))
    return num_inputs, num_rows


def _check_space(out: Path, needed: int) -> None:
    """Raises OutputError where the features will not fit on the disk."""
    free = free_space(out)
    if needed > free:
        raise OutputError(
            f"the features will need {human_bytes(needed)}, but only {human_bytes(free)} are free at {out}: "
            "free some space, write elsewhere, or choose fewer layers or a pool"
        )


def _write_set(
    model: FeatureModel, encoded: InputSet, pool: Pool, writer: FeatureWriter, first_row: int, first_number: int
) -> list[dict[str, Any]]:
    """Writes the features of some inputs from `first_row` on; returns their lines of the index.

    Args:
        first_number: how many inputs came before these.
    """
    tokens = encoded.tokens
    if pool != "none":
        writer.write(first_row, pooled_vectors(model, encoded, pool))
        starts = np.arange(first_row, first_row + len(tokens))
    else:
        starts = np.cumsum([first_row, *(len(its.ids) for its in tokens)])[:-1]
        for number, places, vectors in token_vectors(model, encoded):
            if len(places):
                writer.write(int(starts[number] + places[0]), vectors)
    lines = []
    for number, (given, its, row) in enumerate(zip(encoded.inputs, tokens, starts.tolist(), strict=True), first_number):
        line = {"id": number if given.id is None else given.id, "row": row, "num_tokens": len(its.ids)}
        lines.append(line if pool != "none" else line | describe_tokens(given, its, model.tokenizer))
    return lines
