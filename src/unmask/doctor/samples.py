"""Sequences as a model will see them: drawn by the loader and masked by the objective of a recipe, then decoded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from unmask.batch import IGNORE_INDEX, Batch
from unmask.doctor.findings import Sample, SampleToken, Table
from unmask.objectives.base import Objective
from unmask.objectives.settings import MaskedLMSettings, ObjectiveSettings
from unmask.objectives.span_masking import find_spans
from unmask.objectives.table import new_objective
from unmask.pretraining.steps import build_loader
from unmask.recipe.tree import PretrainRecipe
from unmask.reports.samples import show_entry
from unmask.store.store import TokenStore
from unmask.tokenization.kinds.bpe import END_OF_WORD
from unmask.tokenization.opening import Tokenizer
from unmask.tokenization.tokenizer import TextTokenizer

SENTENCE_LABELS: dict[str, tuple[str, str]] = {
    "next_sentence_label": ("IsNext (label 0)", "NotNext (label 1)"),
    "sentence_order_label": ("in order (label 0)", "swapped (label 1)"),
}
"""The columns of sentence labels, with what each label says."""


@dataclass(frozen=True)
class FirstStep:
    """The first step of a run.

    Args:
        settings: the objective's.
        objective: what masked the batches.
        batches: its micro-batches, masked.
        epochs: the share of an epoch that it shows.
    """

    settings: ObjectiveSettings
    objective: Objective
    batches: tuple[Batch, ...]
    epochs: float
    tokenizer: TextTokenizer

    @property
    def num_tokens(self) -> int:
        return sum(batch.num_tokens for batch in self.batches)

    @property
    def sentence_column(self) -> str | None:
        """The column of the labels of its segments; None where nothing is asked about them."""
        return next((column for column in SENTENCE_LABELS if column in self.objective.columns), None)

    @property
    def has_spans(self) -> bool:
        """Whether adjacent targets belong together."""
        return isinstance(self.settings, MaskedLMSettings) and self.settings.masking not in ("token", "whole_word")


def first_step(settings: PretrainRecipe, store: TokenStore, tokenizer: TextTokenizer) -> FirstStep:
    """The first batches that a run of this recipe on this store sees.

    Raises:
        InputError: the store has too few documents for the packing.
        SettingsError: the tokenizer, or the store, is not for this objective.
    """
    objective = new_objective(settings.objective, tokenizer.vocabulary)
    step = next(build_loader(settings, store, tokenizer, held_out=False).steps())
    batches = tuple(objective.prepare(batch) for batch in step.batches)
    return FirstStep(settings.objective, objective, batches, step.epochs, tokenizer)


def decode_samples(step: FirstStep, most: int) -> tuple[Sample, ...]:
    """The first sequences of a step, each token as the model receives it."""
    batch, tokenizer = step.batches[0], step.tokenizer
    ids, segments, labels = batch.input_ids.tolist(), batch.token_type_ids.tolist(), batch.columns["labels"].tolist()
    special, bounds = batch.columns["special_tokens_mask"].tolist(), batch.bounds.tolist()
    most = min(most, batch.num_sequences)
    predicts_next = step.settings.name == "causal_lm"
    if predicts_next:
        labels = [IGNORE_INDEX] * batch.num_tokens  # the labels are the next tokens, which the text shows anyway
    told = [", ".join(filter(None, facts)) for facts in zip(*_facts(step, batch, most), strict=True)]
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
            told[number],
            predicts_next,
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


def _facts(step: FirstStep, batch: Batch, most: int) -> list[list[str]]:
    """Facts about each of the first sequences as a whole, in one list for each kind of fact."""
    facts = [[""] * most]
    if step.sentence_column is not None:
        labels = batch.columns[step.sentence_column].tolist()
        facts.append([SENTENCE_LABELS[step.sentence_column][labels[number]] for number in range(most)])
    if step.has_spans:
        facts.append(_spans(batch, most))
    if step.settings.name == "causal_lm":
        facts.append(["each token from those before it"] * most)
    if step.settings.name == "replaced_token":
        facts.append(["as the generator reads it; the discriminator reads its samples at the targets"] * most)
    return facts


def _spans(batch: Batch, most: int) -> list[str]:
    first, last = _ends_of_spans(batch)
    sequence = batch.sequence_of_token()[first]
    told = []
    for number in range(most):
        sizes = (last - first + 1)[sequence == number].tolist()
        told.append(f"spans of {_listed(sizes)} tokens" if sizes else "no span")
    return told


def _listed(sizes: Sequence[int]) -> str:
    return " and ".join(filter(None, [", ".join(map(str, sizes[:-1])), str(sizes[-1])]))


def _ends_of_spans(batch: Batch) -> tuple[Tensor, Tensor]:
    """(spans,) int64 twice: the first and the last token of each run of targets."""
    return find_spans(batch, batch.columns["labels"] != IGNORE_INDEX)


def describe_step(step: FirstStep, max_length: int) -> Table:
    """What the first step's sequences hold, as shares that can be compared with the recipe."""
    lengths = [length for batch in step.batches for length in batch.lengths]
    special = torch.cat([batch.columns["special_tokens_mask"] for batch in step.batches])
    num_targets = sum(len(batch.columns["target_positions"]) for batch in step.batches)
    full = sum(length == max_length for length in lengths)
    rows = [
        ("sequences", f"{len(lengths):,}"),
        ("tokens in a sequence", f"mean {sum(lengths) / len(lengths):.1f}, {min(lengths)} to {max(lengths)}"),
        (f"sequences of the full {max_length} tokens", f"{full / len(lengths):.1%}"),
        ("special tokens", f"{float(special.float().mean()):.1%} of the tokens"),
        ("targets", f"{num_targets / step.num_tokens:.1%} of the tokens"),
    ]
    if step.settings.name != "causal_lm":
        rows += _shown_as(step)
    if step.has_spans:
        rows += _about_spans(step)
    if step.settings.name == "replaced_token":
        rows.append(("tokens that the discriminator judges", "all, the special ones included"))
    if step.sentence_column is not None:
        labels = torch.cat([batch.columns[step.sentence_column] for batch in step.batches])
        meaning = SENTENCE_LABELS[step.sentence_column][0].partition(" (")[0]
        rows.append((f"pairs that are {meaning}", f"{float((labels == 0).float().mean()):.1%}"))
    return Table("What the first step shows the model", tuple(rows))


def _shown_as(step: FirstStep) -> list[tuple[str, str]]:
    """What the model sees at targets."""
    ids = torch.cat([batch.input_ids for batch in step.batches])
    labels = torch.cat([batch.columns["labels"] for batch in step.batches])
    target = labels != IGNORE_INDEX
    num_targets = max(1, int(target.sum()))
    masked = int((target & (ids == step.tokenizer.mask_id)).sum())
    kept = int((target & (ids == labels)).sum())
    return [
        ("targets shown as [MASK]", f"{masked / num_targets:.1%}"),
        ("targets shown as a random entry", f"{(num_targets - masked - kept) / num_targets:.1%}"),
        ("targets left as they are", f"{kept / num_targets:.1%}"),
    ]


def _about_spans(step: FirstStep) -> list[tuple[str, str]]:
    ends = [_ends_of_spans(batch) for batch in step.batches]
    sizes = torch.cat([last - first + 1 for first, last in ends])
    if not len(sizes):
        return [("spans", "none")]
    num_sequences = sum(batch.num_sequences for batch in step.batches)
    mean = f"mean {float(sizes.float().mean()):.1f}, {int(sizes.min())} to {int(sizes.max())}"
    rows = [("spans in a sequence", f"{len(sizes) / num_sequences:.1f}"), ("tokens in a span", mean)]
    if "boundary_targets" in step.batches[0].columns:
        told = sum(len(batch.columns["boundary_targets"]) for batch in step.batches)
        rows.append(("targets predicted from boundaries too", f"{told / max(1, int(sizes.sum())):.1%}"))
    return rows
