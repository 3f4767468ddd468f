"""Encoded examples as flat arrays, and the batches of a fine-tuning run made from them.

A row is a sequence that the encoder reads. A unit is what stays together in a batch: one row, or the rows of the
choices of one question. An example gives one unit, or several if it is read in windows. The order of units depends only
on the seed and the position: each epoch goes through them in a keyed permutation.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Self

import numpy as np
import torch
from numpy.typing import NDArray

from unmask.batch import Batch, StepBatches
from unmask.chance import Permutation
from unmask.packing.sharing import WHOLE, Share

Columns = Mapping[str, NDArray[np.generic]]

BATCH_TOKENS = {"cpu": 2048, "cuda": 16384}
"""Tokens in a batch for inference, by device type; larger batches are no faster, and take more memory."""


@dataclass(frozen=True)
class EncodedExamples:
    """Examples as token ids, 4 bytes a token, and their targets.

    Attributes:
        input_ids: (tokens,) int32, all rows one after another.
        bounds: (rows + 1,) int64, where each row begins, then the number of tokens.
        second_starts: (rows,) int64, where segment B begins in each row; the row's length if there is no segment B.
        unit_bounds: (units + 1,) int64, the first row of each unit, then the number of rows.
        examples: (units,) int64, the number of the example that each unit belongs to, ascending.
        unit_columns: targets, one entry a unit: `labels`, `start_positions` ... They become columns of the batch.
        token_columns: targets, one entry a token, likewise.
        alignment: what `decode` needs besides the outputs, one entry a token: places in the text ... Not in batches.
    """

    input_ids: NDArray[np.int32]
    bounds: NDArray[np.int64]
    second_starts: NDArray[np.int64]
    unit_bounds: NDArray[np.int64]
    examples: NDArray[np.int64]
    unit_columns: Columns = field(default_factory=dict)
    token_columns: Columns = field(default_factory=dict)
    alignment: Columns = field(default_factory=dict)

    @classmethod
    def from_lists(
        cls,
        ids: Sequence[Sequence[int]],
        second_starts: Sequence[int],
        *,
        rows_of_units: Sequence[int] | None = None,
        examples: Sequence[int] | None = None,
        unit_columns: Columns | None = None,
        token_columns: Columns | None = None,
        alignment: Columns | None = None,
    ) -> Self:
        """Flat arrays from lists.

        Args:
            ids: one list a row.
            second_starts: one a row.
            rows_of_units: how many rows each unit has; None: one each.
            examples: which example each unit belongs to; None: each unit is an example.
            unit_columns, token_columns, alignment: as above.
        """
        bounds = np.cumsum([0, *map(len, ids)], dtype=np.int64)
        flat = (token for sequence in ids for token in sequence)
        sizes = [1] * len(ids) if rows_of_units is None else rows_of_units
        unit_bounds = np.cumsum([0, *sizes], dtype=np.int64)
        return cls(
            np.fromiter(flat, dtype=np.int32, count=int(bounds[-1])),
            bounds,
            np.array(second_starts, dtype=np.int64),
            unit_bounds,
            np.arange(len(sizes), dtype=np.int64) if examples is None else np.array(examples, dtype=np.int64),
            unit_columns or {},
            token_columns or {},
            alignment or {},
        )

    def __len__(self) -> int:
        """The number of units."""
        return len(self.examples)

    @property
    def lengths(self) -> NDArray[np.int64]:
        """(units,) int64, in tokens."""
        return np.diff(self.bounds[self.unit_bounds])

    @property
    def row_lengths(self) -> NDArray[np.int64]:
        """(rows,) int64, in tokens."""
        return np.diff(self.bounds)

    def tokens_of(self, unit: int) -> slice:
        """The tokens of a unit, for slicing token columns, alignment and outputs."""
        first, last = self.unit_bounds[unit : unit + 2]
        return slice(int(self.bounds[first]), int(self.bounds[last]))

    def token_numbers(self, units: NDArray[np.int64]) -> NDArray[np.int64]:
        """The indices of the tokens of some units, in the order in which `batch` packs them."""
        return _spread(self.bounds[self.unit_bounds], units)[0]

    def batch(self, units: Sequence[int]) -> Batch:
        """A packed batch of some units, in the order given.

        Its columns are `unit_columns` and `token_columns`; where a unit has several rows there is also `unit_bounds`
        (units + 1,) int64, the first sequence of each unit in the batch.
        """
        chosen = np.asarray(units)
        rows, ends_of_units = _spread(self.unit_bounds, chosen)
        tokens, ends = _spread(self.bounds, rows)
        lengths = np.diff(ends, prepend=0)
        places = np.arange(ends[-1]) - np.repeat(ends - lengths, lengths)  # of each token in its row
        segments = places >= np.repeat(self.second_starts[rows], lengths)
        columns = {name: torch.from_numpy(column[chosen]) for name, column in self.unit_columns.items()}
        columns |= {name: torch.from_numpy(column[tokens]) for name, column in self.token_columns.items()}
        if len(rows) > len(chosen):
            columns["unit_bounds"] = torch.from_numpy(np.concatenate([[0], ends_of_units]))
        return Batch(
            input_ids=torch.from_numpy(self.input_ids[tokens].astype(np.int64)),
            token_type_ids=torch.from_numpy(segments.astype(np.int64)),
            position_ids=torch.from_numpy(places),
            bounds=torch.from_numpy(np.concatenate([[0], ends]).astype(np.int32)),
            lengths=tuple(lengths.tolist()),
            columns=columns,
        )

    def batches_by_length(self, max_tokens: int) -> Iterator[tuple[NDArray[np.int64], Batch]]:
        """Every unit once, the longest first, in batches of at most `max_tokens` tokens (or one unit).

        Yields:
            (units,) int64, the numbers of the units, and their batch.
        """
        order = np.argsort(-self.lengths, kind="stable")
        start = 0
        while start < len(order):
            most = max(1, max_tokens // int(self.lengths[order[start]]))
            units = order[start : start + most]
            yield units, self.batch(units.tolist())
            start += most

    def without_alignment(self) -> EncodedExamples:
        """The same for training, where nothing is decoded."""
        return replace(self, alignment={})

    def checksum(self) -> int:
        """A 32-bit checksum of the examples and their targets."""
        sums = 0
        columns = (*self.unit_columns.values(), *self.token_columns.values())
        for array in (self.input_ids, self.bounds, self.second_starts, self.unit_bounds, *columns):
            sums = zlib.crc32(np.ascontiguousarray(array).data, sums)
        return sums


def _spread(bounds: NDArray[np.int64], chosen: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The indices of all items of the chosen ranges, one range after another, and where each range ends among them."""
    sizes = np.diff(bounds)[chosen]
    ends = np.cumsum(sizes)
    return np.repeat(bounds[chosen] - (ends - sizes), sizes) + np.arange(ends[-1]), ends


def concatenate(parts: Sequence[EncodedExamples]) -> EncodedExamples:
    """All examples of some parts, in order; there is at least one part, and all have the same columns."""
    examples = np.cumsum([0, *(int(part.examples[-1]) + 1 if len(part) else 0 for part in parts)])
    return EncodedExamples(
        np.concatenate([part.input_ids for part in parts]),
        _chain([part.bounds for part in parts]),
        np.concatenate([part.second_starts for part in parts]),
        _chain([part.unit_bounds for part in parts]),
        np.concatenate([part.examples + first for part, first in zip(parts, examples, strict=False)]),
        _concatenate_columns([part.unit_columns for part in parts]),
        _concatenate_columns([part.token_columns for part in parts]),
        _concatenate_columns([part.alignment for part in parts]),
    )


def _chain(bounds: Sequence[NDArray[np.int64]]) -> NDArray[np.int64]:
    """The bounds of all parts, shifted to form a single array."""
    starts = np.cumsum([0, *(part[-1] for part in bounds)])
    return np.concatenate([*(part[:-1] + start for part, start in zip(bounds, starts, strict=False)), starts[-1:]])


def _concatenate_columns(columns: Sequence[Columns]) -> Columns:
    return {name: np.concatenate([part[name] for part in columns]) for name in columns[0]}


@dataclass(frozen=True)
class WindowRow:
    """A window over an example's text, as the row that the encoder reads; the row is a unit.

    Attributes:
        input_ids: with the special tokens, and whatever else is around the window.
        second_start: where segment B begins; the row's length if there is no segment B.
        example: its number.
        unit_columns: the row's entry of each.
        token_columns, alignment: (tokens,), the row's entries of each.
    """

    input_ids: Sequence[int]
    second_start: int
    example: int
    unit_columns: Mapping[str, int] = field(default_factory=dict)
    token_columns: Columns = field(default_factory=dict)
    alignment: Columns = field(default_factory=dict)


def collect_windows(rows: Sequence[WindowRow]) -> EncodedExamples:
    """All windows, in order; there is at least one, and all have the same columns. Unit columns are int64."""
    return EncodedExamples.from_lists(
        [row.input_ids for row in rows],
        [row.second_start for row in rows],
        examples=[row.example for row in rows],
        unit_columns={name: np.array([row.unit_columns[name] for row in rows]) for name in rows[0].unit_columns},
        token_columns=_concatenate_columns([row.token_columns for row in rows]),
        alignment=_concatenate_columns([row.alignment for row in rows]),
    )


def window_bounds(num_tokens: int, capacity: int, stride: int) -> list[tuple[int, int]]:
    """Where the windows over a long text begin and end.

    Args:
        num_tokens: of the text; 0 gives one empty window.
        capacity: most tokens of a window, at least 1.
        stride: from one beginning to the next; if it exceeds the window, windows are adjacent.
    """
    bounds = [(0, min(capacity, num_tokens))]
    while bounds[-1][1] < num_tokens:
        start = bounds[-1][0] + min(capacity, stride)
        bounds.append((start, min(start + capacity, num_tokens)))
    return bounds


@dataclass(frozen=True)
class UnitPosition:
    """A place in the order of all units: the next one to be shown.

    Attributes:
        epoch: which pass over the units.
        index: how many of the pass have been shown.
        data: the checksum of the examples; a resumed run must find the same ones.
    """

    epoch: int = 0
    index: int = 0
    data: int = 0


@dataclass(frozen=True)
class ExampleLoader:
    """Makes the batches of a fine-tuning run.

    Args:
        examples: encoded.
        seed: determines the order.
        batch_size: units in a step; the last step of an epoch takes what is left.
        micro_batch_size: units in a batch, at most.
        share: of each step, which the batches are of.
    """

    examples: EncodedExamples
    seed: int
    batch_size: int
    micro_batch_size: int
    share: Share = WHOLE

    def start(self) -> UnitPosition:
        """Where a new run begins."""
        return UnitPosition(data=self.examples.checksum())

    def steps(self, start: UnitPosition) -> Iterator[StepBatches[UnitPosition]]:
        """Steps without end, from `start` on."""
        count, epoch, index, lengths = len(self.examples), start.epoch, start.index, self.examples.lengths
        while True:
            order = Permutation(count, self.seed, epoch)
            while index < count:
                step = [order[place] for place in range(index, min(count, index + self.batch_size))]
                micro_batches = self.share.deal(step, lengths[step].tolist(), self.batch_size, self.micro_batch_size)
                batches = [self.examples.batch(units) for units in micro_batches]
                index += len(step)
                yield StepBatches(batches, UnitPosition(epoch, index, start.data), epoch + index / count)
            epoch, index = epoch + 1, 0
