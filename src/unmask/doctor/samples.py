"""Sequences as a model will see them: drawn by the loader and masked by the objective of a recipe, then decoded."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from unmask.batch import IGNORE_INDEX, Batch
from unmask.doctor.findings import FigureTable, Sample, SampleToken
from unmask.objectives.base import Objective
from unmask.objectives.table import new_objective
from unmask.pretraining.start import Start
from unmask.pretraining.steps import build_loader, with_rates
from unmask.recipe.tree import PretrainRecipe
from unmask.reports.samples import show_entry
from unmask.store.store import TokenStore
from unmask.tokenization.kinds.bpe import END_OF_WORD
from unmask.tokenization.opening import Tokenizer
from unmask.tokenization.tokenizer import TextTokenizer

_NUM_SAMPLES = 3


@dataclass(frozen=True)
class FirstStep:
    """The first step of a run on a store."""

    store: TokenStore
    tokenizer: TextTokenizer
    objective: Objective  # what masked the batches
    batches: tuple[Batch, ...]  # its micro-batches, masked
    epochs: float  # the share of an epoch that it shows

    @property
    def num_tokens(self) -> int:
        return sum(batch.num_tokens for batch in self.batches)


def first_step(start: Start, store: TokenStore, tokenizer: TextTokenizer) -> FirstStep:
    """The first batches that a run of this recipe on this store sees.

    Raises:
        InputError: the store has too few documents for the packing.
        SettingsError: the tokenizer, or the store, is not for this objective.
    """
    objective = new_objective(start.recipe.objective, tokenizer.vocabulary)
    loader = build_loader(start, store, tokenizer, held_out=False, phase=start.recipe.all_phases[0])
    step = next(loader.steps())
    batches = tuple(objective.prepare(with_rates(batch, start.recipe.first_rates)) for batch in step.batches)
    return FirstStep(store, tokenizer, objective, batches, step.epochs)


def decode_samples(step: FirstStep) -> tuple[Sample, ...]:
    """The first sequences of a step, each token as the model receives it."""
    batch, tokenizer, predicts_next = step.batches[0], step.tokenizer, step.objective.predicts_next
    ids, segments = batch.input_ids.tolist(), batch.token_type_ids.tolist()
    special, bounds = batch.columns["special_tokens_mask"].tolist(), batch.bounds.tolist()
    most = min(_NUM_SAMPLES, batch.num_sequences)
    labels = [IGNORE_INDEX] * batch.num_tokens
    if "labels" in batch.columns and not predicts_next:  # the next tokens are shown by the text anyway
        labels = batch.columns["labels"].tolist()
    descriptions = step.objective.describe_sequences(batch, most)
    return tuple(
        Sample(
            tuple(
                SampleToken(
                    read_entry(tokenizer, ids[place]),
                    segments[place],
                    special[place],
                    None if labels[place] == IGNORE_INDEX else read_entry(tokenizer, labels[place]),
                )
                for place in range(bounds[number], bounds[number + 1])
            ),
            descriptions[number],
            predicts_next or any(batch.left_to_right[number : number + 1]),
        )
        for number in range(most)
    )


def read_entry(tokenizer: Tokenizer, index: int) -> str:
    """An entry of the vocabulary for people: as `show_entry`, but without BPE's end-of-word mark, which nearly every
    entry has; entries that do not end a word get a `-` after them."""
    entry = show_entry(tokenizer, index)
    if tokenizer.kind != "bpe" or index in tokenizer.special_ids:
        return entry
    return entry.removesuffix(END_OF_WORD) if entry.endswith(END_OF_WORD) else f"{entry}-"


def describe_step(step: FirstStep, settings: PretrainRecipe) -> FigureTable:
    """What the first step's sequences hold, as shares that can be compared with the recipe."""
    lengths = [length for batch in step.batches for length in batch.lengths]
    special = torch.cat([batch.columns["special_tokens_mask"] for batch in step.batches])
    max_length = settings.cuts[0].longest
    num_targets = sum(step.objective.counts(batch)[settings.objective.main_term] for batch in step.batches)
    targets = "masked targets" if any(any(batch.left_to_right) for batch in step.batches) else "targets"
    full = sum(length == max_length for length in lengths)
    rows = [
        ("sequences", f"{len(lengths):,}"),
        ("tokens in a sequence", f"mean {sum(lengths) / len(lengths):.1f}, {min(lengths)} to {max(lengths)}"),
        (f"sequences of the full {max_length} tokens", f"{full / len(lengths):.1%}"),
        ("special tokens", f"{float(special.float().mean()):.1%} of the tokens"),
        (targets, f"{num_targets / step.num_tokens:.1%} of the tokens"),
        *step.objective.describe_batches(step.batches),
    ]
    return FigureTable("What the first step shows the model", tuple(rows))
