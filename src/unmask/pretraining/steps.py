"""What a pre-training run is shown: the loaders of a store's text, and the steps of the whole run, from any position on
and in micro-batches of any size."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from itertools import chain, islice
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from unmask.batch import Batch, StepBatches
from unmask.errors import CheckpointError, SettingsError
from unmask.packing.annotation_columns import check_annotations
from unmask.packing.formats import open_planner
from unmask.packing.loader import Position, SequenceLoader
from unmask.packing.phases import phased_steps
from unmask.packing.settings import LABEL_COLUMNS, PhaseSettings
from unmask.packing.sharing import WHOLE, Share
from unmask.packing.split import Split
from unmask.packing.stream import StreamLoader, target_counts
from unmask.packing.templates import SequenceTemplate
from unmask.pretraining.start import Start
from unmask.recipe.tree import PretrainRecipe
from unmask.store.store import TokenStore
from unmask.tokenization.definition import BARE, TextTemplate
from unmask.tokenization.kinds.word_characters import WordTokenizer
from unmask.tokenization.opening import Tokenizer
from unmask.tokenization.tokenizer import TextTokenizer
from unmask.training.run.checkpoint import Checkpoint
from unmask.training.settings import Cut

logger = logging.getLogger("unmask")

STATIC_COPIES = 10
"""Masked copies of the text under `masking_mode: static` (RoBERTa, section 4.1)."""

_HELD_OUT_AT_ONCE = 64
"""Held-out sequences per batch, at most, where `train.micro_batch_size` is auto; of the figures only ELECTRA's
`discriminator_auc` depends on it, since a batch's tokens are ranked among themselves."""


_HELD_OUT_SEED = 0
"""Which held-out sequences are evaluated, and what is drawn for them, is the same whatever the run's seed, so that runs
of several seeds differ by what they learnt alone."""


class PretrainingSteps:
    """The steps of a run; see `unmask.training.steps.StepSource`.

    The first step is made on construction.

    Args:
        checkpoint: where the steps begin.
        share: of each step, which the batches are of.
    """

    def __init__(
        self, start: Start, store: TokenStore, tokenizer: Tokenizer, checkpoint: Checkpoint | None, share: Share = WHOLE
    ) -> None:
        self._settings = settings = start.recipe
        self._share = share
        self._phases = settings.all_phases
        self._loaders = [build_loader(start, store, tokenizer, held_out=False, phase=phase) for phase in self._phases]
        state = {} if checkpoint is None else checkpoint.state
        done = 0.0 if checkpoint is None else settings.train.share_done(checkpoint.done)
        self._start = Position() if checkpoint is None else checkpoint.position(Position)
        if self._start.phase >= len(self._phases):
            assert checkpoint is not None, "a run begins in its first phase"
            raise CheckpointError(
                f"{checkpoint.directory}: it is in phase {self._start.phase + 1}, and the recipe has "
                f"{len(self._phases)}: it is of another run"
            )
        self._begun = {self._start.phase}
        self._progress: Callable[[], float] = lambda: done
        most_tokens: int | None = state.get("micro_batch_tokens")
        steps = self._open(self._start, most_tokens, share)
        self._made: tuple[Position, int | None, Iterator[StepBatches[Position]]] | None
        self._made = self._start, most_tokens, chain([next(steps)], steps)

    @property
    def longest(self) -> int | None:
        """See `StepSource`."""
        return None if self._settings.mixes_directions else self._settings.longest[1]

    @property
    def progress(self) -> float:
        """The share of the budget that is done."""
        return self._progress()

    def cut(self, position: Any, most_tokens: int | None) -> Cut:
        """See `StepSource`."""
        return self._settings.cuts[self._position(position).phase].at_most(most_tokens)

    def steps(
        self, progress: Callable[[], float], position: Any, most_tokens: int | None
    ) -> Iterator[StepBatches[Position]]:
        """See `StepSource`."""
        self._progress = progress
        start, made = self._position(position), self._made
        self._made = None
        if made is not None and made[:2] == (start, most_tokens):
            return made[2]
        return self._open(start, most_tokens, self._share)

    def first_steps(self, most: int) -> Iterator[StepBatches[Position]]:
        """The steps that the run begins with, to be looked at beforehand, with the shares of all processes: `steps`
        yields its own all the same."""
        assert self._made is not None, "they have been taken"
        start, most_tokens, made = self._made
        if self._share != WHOLE:
            yield from islice(self._open(start, most_tokens, WHOLE), most)
            return
        first = next(made)
        self._made = start, most_tokens, chain([first], made)
        yield first
        yield from islice(self._open(start, most_tokens, WHOLE), 1, most)

    def _position(self, position: Any) -> Position:
        if position is None:
            return self._start
        return position if isinstance(position, Position) else Position(**position)

    def _open(self, start: Position, most_tokens: int | None, share: Share) -> Iterator[StepBatches[Position]]:
        sizes = [self.cut(Position(phase=number), most_tokens).micro_batch_size for number in range(len(self._phases))]
        steps = phased_steps(
            [
                replace(loader, micro_batch_size=size, share=share)
                for loader, size in zip(self._loaders, sizes, strict=True)
            ],
            [phase.until for phase in self._phases],
            start,
            progress=lambda: self._progress(),
            on_phase=self._log_phase,
        )
        return self._with_rates(steps)

    def _with_rates(self, steps: Iterator[StepBatches[Position]]) -> Iterator[StepBatches[Position]]:
        """The steps, with what the objective does at this point of the run as columns: how much it masks, and how many
        sequences are read from left to right."""
        objective = self._settings.objective
        while True:
            progress = self._progress()
            step = next(steps)
            phase = self._phases[step.after.phase]
            rates = objective.rates(progress, phase.causal_share)
            yield replace(step, batches=[with_rates(batch, rates) for batch in step.batches])

    def _log_phase(self, number: int) -> None:
        if number not in self._begun:  # a phase begins again if its first step is made again
            self._begun.add(number)
            logger.info("phase %s of %s begins", number + 1, len(self._phases))


def with_rates(batch: Batch, rates: Mapping[str, float]) -> Batch:
    """The batch with what the objective does at some point of a run, as columns () float64."""
    return batch.with_columns(**{name: torch.tensor(rate, dtype=torch.float64) for name, rate in rates.items()})


def build_loader(
    start: Start, store: TokenStore, tokenizer: Tokenizer, held_out: bool, phase: PhaseSettings
) -> SequenceLoader | StreamLoader:
    """The loader of the training documents in a phase of the run, or of the held-out ones, the same for all seeds.

    Raises:
        InputError: there are too few documents.
        SettingsError: special tokens leave no space for text, the tokenizer lacks those that the format needs, or the
            masking uses annotations that the store lacks.
        StoreError: the format is `stream`, and the store is not one of words.
    """
    if tokenizer.reads_words:
        return stream_loader(start.recipe, store, tokenizer, held_out)
    return sequence_loader(start, store, tokenizer, held_out, phase)


def stream_loader(
    settings: PretrainRecipe, store: TokenStore, tokenizer: WordTokenizer, held_out: bool
) -> StreamLoader:
    """The loader of ELMo's lanes. A held-out batch has as many as a step, so that figures do not depend on
    micro-batches."""
    train = settings.train
    return StreamLoader(
        Split(store, settings.held_out, held_out),
        tokenizer,
        settings.packing.max_length,
        train.batch_size,
        train.batch_size if held_out else train.micro_batch_of(train.batch_size),
        _HELD_OUT_SEED if held_out else settings.seed,
    )


def sequence_loader(
    start: Start, store: TokenStore, tokenizer: TextTokenizer, held_out: bool, phase: PhaseSettings
) -> SequenceLoader:
    """The loader of formats whose sequences do not depend on each other; see `build_loader`."""
    settings = start.recipe
    masking = settings.objective.annotations
    if masking is not None:
        check_annotations(store, masking)
    is_static = settings.objective.is_static
    cut = settings.cut_of(phase)
    at_once = cut.micro_batch_size
    if held_out and settings.train.micro_batch_size == "auto":
        at_once = min(at_once, _HELD_OUT_AT_ONCE)
    split, template = Split(store, settings.held_out, held_out), template_of(start, tokenizer)
    packing, pairs = phase.packing(settings.packing), settings.objective.pair_objective
    return SequenceLoader(
        open_planner(split, packing, pairs, template, _HELD_OUT_SEED if held_out else settings.seed),
        template,
        cut.batch_size,
        at_once,
        label_column=None if pairs == "none" else LABEL_COLUMNS[pairs],
        plan_copies=STATIC_COPIES if is_static else settings.packing.copies,
        mask_copies=STATIC_COPIES if is_static else None,
        annotations=masking,
    )


def template_of(start: Start, tokenizer: TextTokenizer) -> SequenceTemplate:
    """The special tokens around sequences: the tokenizer's, or none for families that read bare text.

    Raises:
        ModelError: the tokenizer lacks the special tokens that are needed.
        SettingsError: it has them, and does not set them around text.
    """
    if start.family.reads_bare_text:
        return SequenceTemplate(BARE, tokenizer.find_role("eos_token"))
    template, cls = tokenizer.template, tokenizer.cls_id
    if not any(cls in piece.ids for piece in template.single):
        raise SettingsError(
            f"{tokenizer.where}: the post_processor of its tokenizer.json does not set {tokenizer.token_strings[cls]} "
            f"around a text, and models of the family {start.family.name} learn from it: give the file the "
            "post_processor that it was published with, or train a tokenizer with `unmask tokenizer train`"
        )
    if not start.has_two_segments:  # as RoBERTa has; a BERT tokenizer's template has two
        template = TextTemplate(template.single, tuple(replace(piece, segment=0) for piece in template.pair))
    return SequenceTemplate(template, tokenizer.sep_id)


def count_targets(store: TokenStore, tokenizer: Tokenizer) -> NDArray[np.int64]:
    """(vocabulary,) how often each entry of the store's vocabulary can be a target."""
    return target_counts(store, tokenizer) if tokenizer.reads_words else store.token_counts()
