"""Texts to features: what a frozen encoder makes of them, written once for other models to read.

The six choices of layers are those of BERT's feature-based approach (Devlin et al. 2019, section 5.3 and Table 7). The
`weighted-*` ones write the layers themselves, since their mixture is learned with the head that reads them.

Pooling: `none` gives a vector a token, `mean` and `max` take these very vectors together, `cls` takes the first token's
(GPT-1's last), without the pooler that stands above it. The special tokens around a text belong to no pool but `cls`.
A text longer than the encoder's positions is read in windows and loses nothing, but `cls` is that of its first window.
"""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, cast, get_args

import numpy as np
import torch
from numpy.typing import NDArray

from unmask.config import build_settings, nearest
from unmask.errors import InputError, ModelError, OutputError, SettingsError
from unmask.files import refuse_existing, refuse_foreign, writing, writing_directory
from unmask.inference import WINDOW, Coverage, introduce, windows
from unmask.inference_precision import freeze, take_faster
from unmask.models.encoder import Encoder
from unmask.models.hub import load_encoder
from unmask.models.layer_mixture import LayerChoice, find_choice
from unmask.paths import model_directory
from unmask.prediction_inputs import read_inputs
from unmask.progress import Progress, human_bytes
from unmask.task_options import NOTHING_SAID
from unmask.tasks.base import ExampleCounts
from unmask.tasks.encoded import BATCH_TOKENS, EncodedExamples
from unmask.tasks.feature_files import (
    DTYPE,
    FeatureWriter,
    check_pyarrow,
    map_features,
    write_parquet,
    writing_features,
)
from unmask.tasks.feature_inputs import (
    PLACE,
    FeatureInput,
    InputTokens,
    RowMaker,
    describe_tokens,
    feature_layouts,
    read_feature_input,
    tokenize,
)
from unmask.tasks.settings import ColumnSettings
from unmask.tokenization.opening import Tokenizer, open_tokenizer
from unmask.training.device import Compute, choose_compute

logger = logging.getLogger("unmask")

Pool = Literal["none", "cls", "mean", "max"]
Format = Literal["npy", "parquet"]

FEATURES, INDEX, TABLE = "features.npy", "index.jsonl", "features.parquet"


@dataclass(frozen=True)
class FeatureModel:
    """An encoder, in eval mode on its device, and what of it is wanted.

    Attributes:
        max_length: most tokens of a row, special ones included.
        layouts: the columns that hold its texts in a table; the first that a row has are taken.
        chooses: True: it computes in fp32, and `extract_features`, where there are many inputs, in bf16 if that is
            measured to be faster.
    """

    encoder: Encoder
    tokenizer: Tokenizer
    compute: Compute
    choice: LayerChoice
    max_length: int
    layouts: tuple[ColumnSettings, ...]
    chooses: bool = False

    @property
    def shape(self) -> tuple[int, ...]:
        """Of one vector: (width,), or (layers, hidden) where they are to be mixed."""
        return self.choice.shape(self.encoder.settings.num_hidden_layers, self.encoder.settings.hidden_size)

    def row_maker(self, pool: Pool) -> RowMaker:
        """What makes rows of texts for a pool."""
        num_segments = self.encoder.settings.type_vocab_size
        return RowMaker(self.tokenizer, self.max_length, num_segments, first_window_only=pool == "cls")


def load_feature_model(
    model: str | Path,
    layers: str = "last",
    *,
    columns: ColumnSettings = NOTHING_SAID,
    max_length: int | None = None,
    device: str = "auto",
    precision: str = "fp32",
) -> FeatureModel:
    """Loads the encoder of a model, pre-trained or fine-tuned.

    Args:
        model: its directory, or that of the run that made it.
        layers: a key of `unmask.models.layer_mixture.CHOICES`.
        columns: where texts stand in a table: `text`, `text_a` and `text_b`, or `tokens`; `id`. What is not named is
            where a fine-tuned model remembers it, or in columns of these names.
        max_length: most tokens read at once, special ones included; None takes all positions of the encoder.
        device: `auto`, `cpu` or `cuda`.
        precision: `fp32`, `bf16`, or `auto` (see `FeatureModel.chooses`); features are float32 all the same.

    Raises:
        ModelError: there is no such model, it has no tokenizer, or it does not load.
        SettingsError: no such layers or device, a column that means nothing here, or `max_length` is over the encoder's
            positions or leaves no room.
    """
    directory = model_directory(model)
    chooses = precision == "auto"
    compute = choose_compute(device, "fp32" if chooses else precision)
    tokenizer = open_tokenizer(directory)
    loaded = load_encoder(directory)
    layouts = feature_layouts(columns, _remembered_columns(loaded.config or {}, directory))
    encoder = loaded.encoder.to(compute.device).eval()
    introduce(encoder, tokenizer, directory)
    settings = encoder.settings
    longest = settings.num_positions if max_length is None else max_length
    if longest > settings.num_positions:
        raise SettingsError(f"max_length {longest} is over the {settings.num_positions} positions of {directory}")
    choice = find_choice(layers, settings.num_hidden_layers)
    encoder, compute = freeze(encoder, compute, packs=compute.dtype != torch.float32)
    opened = FeatureModel(encoder, tokenizer, compute, choice, longest, layouts, chooses)
    if (room := opened.row_maker("none").room(is_pair=True)) < 2:
        raise SettingsError(f"max_length {longest} has no room for a pair of texts: give at least {longest + 2 - room}")
    return opened


def _remembered_columns(config: Mapping[str, Any], directory: Path) -> ColumnSettings:
    """Those that a fine-tuned model was trained on; none of a model that was only pre-trained."""
    said = config.get("unmask_task", {})
    columns = said.get("columns", {}) if isinstance(said, Mapping) else {}
    try:
        return build_settings(ColumnSettings, columns, "unmask_task.columns")
    except SettingsError as error:
        raise ModelError(f"{directory}/config.json: {error}: get the model again, or take it out") from error


def extract_features(
    model: str | Path,
    input: str | Path,
    out: str | Path,
    *,
    layers: str = "last",
    pool: str = "none",
    columns: ColumnSettings = NOTHING_SAID,
    input_format: str | None = None,
    max_length: int | None = None,
    device: str = "auto",
    precision: str = "auto",
    format: str = "npy",
    overwrite: bool = False,
) -> Path:
    """Writes the features of texts, in their order and in constant memory.

    A file is read twice, first to find what is wrong with it and how much there will be; standard input is read once.

    Args:
        model: a model's directory, or that of the run that made it.
        input: `.txt` with one text a line, `.tsv`, `.csv` or `.jsonl` with `text`, `text_a` and `text_b`, or `tokens`,
            or with the columns that the model was fine-tuned on; `-` is standard input.
        out: a directory: `features.npy`, float32, (rows, width) or, for `weighted-*` layers, (rows, layers, hidden);
            and `index.jsonl`, a line an input: its `id` (its number from 0 where it has none), its first `row`, and
            `num_tokens`. Pooled, an input has one row; with `none` it has `num_tokens` of them, and the line also
            tells `tokens`, `offsets` (characters of the text), `words` (the number of each token's word, where words
            were given) and `num_tokens_a` (of a pair, whose second text's tokens follow the first's).
        layers, columns, max_length, device, precision: see `load_feature_model`.
        input_format: what standard input holds; see `unmask.prediction_inputs.read_inputs`.
        pool: `none`, `cls`, `mean` or `max`.
        format: `parquet` writes `features.parquet` in place of `features.npy`: `id`, a string, and `features`.
        overwrite: True replaces features that are in `out`.

    Returns:
        `out`.

    Raises:
        UserError: whatever is wrong with model, inputs, settings or output; nothing is left half-written.
    """
    checked_pool = check_pool(pool)
    _check_known("format", format, get_args(Format))
    out = Path(out)
    refuse_existing(out, overwrite)
    refuse_foreign(out, (FEATURES, INDEX, TABLE), "features")
    if format == "parquet":
        check_pyarrow()
    loaded = load_feature_model(
        model, layers, columns=columns, max_length=max_length, device=device, precision=precision
    )
    total = None
    if str(input) != "-" and Path(input).is_file():
        total, num_rows = _survey(loaded, read_file(loaded, input, input_format), checked_pool)
        num_copies = 2 if format == "parquet" else 1
        _check_room(out, num_copies * num_rows * DTYPE.itemsize * int(np.prod(loaded.shape)))
    counts, coverage = ExampleCounts(), Coverage(loaded.tokenizer, "inputs")
    with writing_directory(out, overwrite) as directory:
        with (
            Progress("features", total, unit="inputs") as progress,
            writing_features(directory / FEATURES, loaded.shape) as writer,
            writing(directory / INDEX) as index,
        ):
            num_rows = 0
            for inputs in windows(read_file(loaded, input, input_format)):
                loaded = _with_measured_precision(loaded, inputs)
                for line in _write_window(loaded, inputs, checked_pool, writer, num_rows, counts, coverage):
                    index.write((json.dumps(line, ensure_ascii=False) + "\n").encode("utf-8", "backslashreplace"))
                    num_rows += line["num_tokens"] if pool == "none" else 1
                progress.advance(len(inputs))
            writer.finish(num_rows)
        if format == "parquet":
            write_parquet(directory / TABLE, map_features(directory / FEATURES), _ids(directory / INDEX, checked_pool))
            (directory / FEATURES).unlink()
    tell(counts, coverage)
    return out


def read_file(model: FeatureModel, path: str | Path, format: str | None = None) -> Iterator[FeatureInput]:
    """Streams the inputs of a file, or of standard input (`-`), by the model's columns; see `read_inputs`."""
    return (read_feature_input(row, model.layouts) for row in read_inputs(path, format=format))


def tell(counts: ExampleCounts, coverage: Coverage) -> None:
    """Says what was cut or empty, and what the vocabulary does not cover."""
    coverage.note(counts)
    if counts.anything_mended:
        logger.warning("inputs: %s", counts.summary())


def pooled_features(
    model: FeatureModel, inputs: Sequence[FeatureInput], pool: Pool, counts: ExampleCounts, coverage: Coverage
) -> tuple[list[InputTokens], NDArray[np.float32]]:
    """One vector for each input.

    Args:
        inputs: as many as may be in memory at a time.
        pool: not `none`.
        counts, coverage: are added to.

    Returns:
        The tokens that were read, and (inputs, *model.shape) float32: zeros for an input of which no token was.
    """
    tokens, rows = model.row_maker(pool).rows(inputs, tokenize(inputs, model.tokenizer), counts)
    coverage.add(rows.input_ids)
    pooled = np.full((len(inputs), *model.shape), -np.inf if pool == "max" else 0, np.float32)
    cls_at = -1 if model.encoder.settings.is_causal else 0
    for number, states, places in _run(model, rows):
        if pool == "cls":
            pooled[number] = states[cls_at]
        elif pool == "mean":  # of a long input, the rows add up
            pooled[number] += states[places >= 0].sum(0) / max(1, len(tokens[number].ids))
        else:
            pooled[number] = np.maximum(pooled[number], states[places >= 0].max(0, initial=-np.inf))
    pooled[np.isneginf(pooled)] = 0
    return tokens, pooled


def _with_measured_precision(model: FeatureModel, first: Sequence[FeatureInput]) -> FeatureModel:
    """The same in the faster precision, where there is a choice and the first inputs fill a window."""
    if not model.chooses or len(first) < WINDOW:
        return replace(model, chooses=False)
    _, rows = model.row_maker("cls").rows(first, tokenize(first, model.tokenizer), ExampleCounts())
    batches = [batch for _, batch in rows.batches_by_length(BATCH_TOKENS[model.compute.device.type])]
    encoder, compute = take_faster(model.encoder, model.compute, batches, lambda its, batch: its.hidden_states(batch))
    return replace(model, encoder=encoder, compute=compute, chooses=False)


def _run(model: FeatureModel, rows: EncodedExamples) -> Iterator[tuple[int, NDArray[Any], NDArray[Any]]]:
    """Every row, the longest first: its input's number, (tokens, *model.shape) float32, (tokens,) places as `PLACE`."""
    for units, batch in rows.batches_by_length(BATCH_TOKENS[model.compute.device.type]):
        with torch.inference_mode(), model.compute.autocast():
            selected = model.choice.select(model.encoder.hidden_states(batch.to(model.compute.device)))
        states = np.split(selected.float().cpu().numpy(), np.cumsum(batch.lengths)[:-1])
        for unit, its in zip(units.tolist(), states, strict=True):
            yield int(rows.examples[unit]), its, rows.alignment[PLACE][rows.tokens_of(unit)]


def check_pool(name: str) -> Pool:
    """The pool of that name.

    Raises:
        SettingsError: there is none.
    """
    _check_known("pool", name, get_args(Pool))
    return cast(Pool, name)


def _check_known(what: str, name: str, known: Sequence[str]) -> None:
    if name not in known:
        raise SettingsError(f"no {what} {name!r}: {nearest(name, known).removeprefix('; ')}")


def _ids(index: Path, pool: Pool) -> Iterator[str]:
    """The id of each row of the features."""
    with open(index, encoding="utf-8") as lines:
        for line in map(json.loads, lines):
            yield from [str(line["id"])] * (line["num_tokens"] if pool == "none" else 1)


def _survey(model: FeatureModel, read: Iterator[FeatureInput], pool: Pool) -> tuple[int, int]:
    """How many inputs a file has, and how many rows their features will have.

    Raises:
        InputError: as when they are read for good, but hours earlier.
    """
    num_inputs = num_rows = 0
    with Progress("looking through the inputs", unit="inputs") as progress:
        for inputs in windows(read):
            num_inputs += len(inputs)
            num_rows += len(inputs) if pool != "none" else sum(len(its.ids) for its in _checked_tokens(model, inputs))
            progress.advance(len(inputs))
    return num_inputs, num_rows


def _checked_tokens(model: FeatureModel, inputs: Sequence[FeatureInput]) -> list[InputTokens]:
    """The tokens of inputs of which every one shall get a vector.

    Raises:
        InputError: a pair is too long.
    """
    tokens = tokenize(inputs, model.tokenizer)
    room = model.row_maker("none").room(is_pair=True)
    for given, its in zip(inputs, tokens, strict=True):
        if given.text_b is not None and len(its.ids) > room:
            raise InputError(
                f"{given.source}: {len(its.ids)} tokens in two texts, and a pair has at most {room} here: a vector for "
                "each of them cannot be had; shorten the texts, give them one by one, or choose another pool"
            )
    return tokens


def _check_room(out: Path, needed: int) -> None:
    """Raises OutputError where the features will not fit on the disk."""
    folder = next(parent for parent in [out.resolve(), *out.resolve().parents] if parent.exists())
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise OutputError(
            f"the features will need {human_bytes(needed)}, but only {human_bytes(free)} are free at {out}: "
            "free some space, write elsewhere, or choose fewer layers or a pool"
        )


def _write_window(
    model: FeatureModel,
    inputs: Sequence[FeatureInput],
    pool: Pool,
    writer: FeatureWriter,
    first_row: int,
    counts: ExampleCounts,
    coverage: Coverage,
) -> list[dict[str, Any]]:
    """Writes the features of some inputs from `first_row` on; returns their lines of the index."""
    first_number = counts.examples
    if pool != "none":
        tokens, pooled = pooled_features(model, inputs, pool, counts, coverage)
        writer.write(first_row, pooled)
        starts = np.arange(first_row, first_row + len(inputs))
    else:
        tokens, rows = model.row_maker(pool).rows(inputs, _checked_tokens(model, inputs), counts)
        coverage.add(rows.input_ids)
        starts = np.cumsum([first_row, *(len(its.ids) for its in tokens)])[:-1]
        for number, states, places in _run(model, rows):
            own = places >= 0
            if own.any():
                writer.write(int(starts[number] + places[own][0]), states[own])
    lines = []
    for number, (given, its, row) in enumerate(zip(inputs, tokens, starts.tolist(), strict=True), start=first_number):
        line = {"id": number if given.id is None else given.id, "row": row, "num_tokens": len(its.ids)}
        lines.append(line if pool != "none" else line | describe_tokens(given, its, model.tokenizer))
    return lines
