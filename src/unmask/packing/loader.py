"""From planned sequences to packed batches, starting at any position."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice

from unmask.batch import Batch, StepBatches
from unmask.chance import Purpose, key
from unmask.errors import InputError
from unmask.packing.planning import PlannedSequence, Planner
from unmask.packing.sequences import pack_sequences
from unmask.packing.sharing import WHOLE, Share
from unmask.packing.templates import SequenceTemplate


@dataclass(frozen=True)
class Position:
    """A place in the order of all sequences: the next one to be shown.

    Attributes:
        epoch, block, sequence: the place in the order.
        phase: the phase of the run that it belongs to.
        passed_over: documents left out so far because of phase changes.
    """

    epoch: int = 0
    block: int = 0
    sequence: int = 0
    phase: int = 0
    passed_over: int = 0


@dataclass(frozen=True)
class SequenceLoader:
    """Makes the batches of planned sequences.

    Args:
        batch_size: sequences in a step.
        micro_batch_size: sequences in a batch.
        share: of each step, which the batches are of.
        label_column: the name of the column for the sequences' labels; None leaves them out.
        plan_copies: epoch e repeats the sequences of epoch e modulo this number; None draws new ones every epoch.
        mask_copies: the same for the keys that masks are drawn from.
        annotations: the kind that gets a column; None: none.
    """

    planner: Planner
    template: SequenceTemplate
    batch_size: int
    micro_batch_size: int
    share: Share = WHOLE
    label_column: str | None = None
    plan_copies: int | None = None
    mask_copies: int | None = None
    annotations: str | None = None

    def steps(self, start: Position = Position()) -> Iterator[StepBatches[Position]]:
        """Endless steps from `start` on; a step may hold the end of one epoch and the beginning of the next. Raises
        InputError if no document is long enough for a sequence."""
        sequences = self._sequences(start)
        while True:
            step = list(islice(sequences, self.batch_size))
            micro_batches = self.share.deal(
                step, [len(item[0]) for item in step], self.batch_size, self.micro_batch_size
            )
            batches = [self._pack([item[:2] for item in micro_batch]) for micro_batch in micro_batches]
            _, _, after, epochs = step[-1]
            yield StepBatches(batches, after, epochs)

    def sample(self, most: int) -> Iterator[Batch]:
        """At most `most` sequences, drawn evenly over the documents (see `Planner.plan_sample`), in batches of
        `micro_batch_size`, for evaluation."""
        planned = self.planner.plan_sample(most)
        seed, purpose = self.planner.seed, Purpose.OBJECTIVE
        keyed = [(sequence, key(seed, 0, 0, place, purpose)) for place, sequence in enumerate(planned)]
        for start in range(0, len(keyed), self.micro_batch_size):
            yield self._pack(keyed[start : start + self.micro_batch_size])

    def after_block(self, position: Position) -> Position:
        """The beginning of the next block; `position` itself if nothing of its block has been shown.

        The documents of the block that have not been shown are added to `passed_over`, so that epochs still count only
        documents that were shown.
        """
        if position.sequence == 0:
            return position
        planner = self.planner
        num_sequences = planner.count_block(_copy(position.epoch, self.plan_copies), position.block)
        left = len(planner.places(position.block)) * (num_sequences - position.sequence) // num_sequences
        is_last = position.block + 1 == planner.num_blocks
        return replace(
            position,
            epoch=position.epoch + is_last,
            block=0 if is_last else position.block + 1,
            sequence=0,
            passed_over=position.passed_over + left,
        )

    def _sequences(self, start: Position) -> Iterator[tuple[PlannedSequence, int, Position, float]]:
        """Each sequence with its key, the position after it, and the epochs completed with it."""
        planner, epoch, block, first = self.planner, start.epoch, start.block, start.sequence
        num_documents = planner.split.store.num_documents
        empty_blocks = 0
        while empty_blocks < 2 * planner.num_blocks:  # any two epochs' worth of blocks contain a whole epoch
            sequences = planner.plan_block(_copy(epoch, self.plan_copies), block)
            copy = _copy(epoch, self.mask_copies)
            documents = planner.places(block)
            for place in range(first, len(sequences)):
                shown = documents.start + len(documents) * (place + 1) / len(sequences) - start.passed_over
                after = Position(epoch, block, place + 1, start.phase, start.passed_over)
                chance_key = key(planner.seed, copy, block, place, Purpose.OBJECTIVE)
                yield sequences[place], chance_key, after, epoch + shown / num_documents
            empty_blocks = 0 if sequences else empty_blocks + 1
            first, block = 0, block + 1
            if block == planner.num_blocks:
                epoch, block = epoch + 1, 0
        split = planner.split
        raise InputError(
            f"{split.store.directory}: none of its {split.num_documents} {split.name} document(s) is long enough for a "
            "sequence: give longer documents"
        )

    def _pack(self, planned: Sequence[tuple[PlannedSequence, int]]) -> Batch:
        store = self.planner.split.store
        return pack_sequences(planned, store, self.template, self.label_column, self.annotations)


def _copy(epoch: int, copies: int | None) -> int:
    return epoch if copies is None else epoch % copies
