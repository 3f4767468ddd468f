"""Sequences as a model will see them: drawn by the loader and masked by the objective of a recipe, then decoded."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from unmask.batch import IGNORE_INDEX, Batch
from unmask.data.packing import IS_NEXT
from unmask.data.store import TokenStore
from unmask.doctor.findings import Sample, SampleToken, Table
from unmask.objectives.masked_lm import MaskedLM
from unmask.objectives.table import OBJECTIVES
from unmask.pretraining import build_loader
from unmask.recipe import PretrainRecipe
from unmask.tokenization.tokenizer import TextTokenizer


@dataclass(frozen=True)
class FirstStep:
    """The first step of a run.

    Args:
        objective: what masked the batches.
        batches: its micro-batches, masked.
        epochs: the share of an epoch that it shows.
    """

    objective: MaskedLM
    batches: tuple[Batch, ...]
    epochs: float
    tokenizer: TextTokenizer

    @property
    def num_tokens(self) -> int:
        return sum(batch.num_tokens for batch in self.batches)


def first_step(settings: PretrainRecipe, store: TokenStore, tokenizer: TextTokenizer) -> FirstStep:
    """What a run of this recipe on this store is shown first.

    Raises:
        InputError: the store has too few documents for the packing.
    """
    objective = OBJECTIVES[settings.objective.name](settings.objective, tokenizer.vocabulary)
    step = next(build_loader(settings, store, tokenizer, held_out=False).steps())
    return FirstStep(objective, tuple(objective.prepare(batch) for batch in step.batches), step.epochs, tokenizer)


def show_entry(tokenizer: TextTokenizer, index: int) -> str:
    """An entry of the vocabulary for people.

    Byte-level BPE writes bytes as letters of its own: shown is the text that they stand for, a space as `␣`, unless
    they are a part of a character only.
    """
    entry = tokenizer.token_strings[index]
    if tokenizer.kind != "byte_bpe" or index in tokenizer.special_ids:
        return entry
    text = tokenizer.decode([index])
    return entry if "\ufffd" in text else text.replace(" ", "␣").replace("\n", "↵")


def decode_samples(step: FirstStep, most: int) -> tuple[Sample, ...]:
    """The first sequences of a step, each token as the model receives it."""
    batch, tokenizer = step.batches[0], step.tokenizer
    ids, segments, labels = batch.input_ids.tolist(), batch.token_type_ids.tolist(), batch.columns["labels"].tolist()
    special, bounds = batch.columns["special_tokens_mask"].tolist(), batch.bounds.tolist()
    sentence_labels = _sentence_labels(step, batch)
    return tuple(
        Sample(
            tuple(
                SampleToken(
                    show_entry(tokenizer, ids[place]),
                    segments[place],
                    special[place],
                    None if labels[place] == IGNORE_INDEX else show_entry(tokenizer, labels[place]),
                )
                for place in range(bounds[number], bounds[number + 1])
            ),
            sentence_labels[number],
        )
        for number in range(min(most, batch.num_sequences))
    )


def describe_step(step: FirstStep, max_length: int) -> Table:
    """What the first step's sequences hold, as shares that can be compared with the recipe."""
    ids, labels, special, sentence_labels = [], [], [], []
    lengths: list[int] = []
    for batch in step.batches:
        ids.append(batch.input_ids)
        labels.append(batch.columns["labels"])
        special.append(batch.columns["special_tokens_mask"])
        lengths += batch.lengths
        if "nsp" in step.objective.counts(batch):
            sentence_labels.append(batch.columns["next_sentence_label"])
    all_ids, all_labels, all_special = torch.cat(ids), torch.cat(labels), torch.cat(special)
    target = all_labels != IGNORE_INDEX
    num_targets = max(1, int(target.sum()))
    masked = int((target & (all_ids == step.tokenizer.mask_id)).sum())
    kept = int((target & (all_ids == all_labels)).sum())
    full = sum(length == max_length for length in lengths)
    rows = [
        ("sequences", f"{len(lengths):,}"),
        ("tokens in a sequence", f"mean {sum(lengths) / len(lengths):.1f}, {min(lengths)} to {max(lengths)}"),
        (f"sequences of the full {max_length} tokens", f"{full / len(lengths):.1%}"),
        ("special tokens", f"{float(all_special.float().mean()):.1%} of the tokens"),
        ("targets", f"{int(target.sum()) / len(all_ids):.1%} of the tokens"),
        ("targets shown as [MASK]", f"{masked / num_targets:.1%}"),
        ("targets shown as a random entry", f"{(num_targets - masked - kept) / num_targets:.1%}"),
        ("targets left as they are", f"{kept / num_targets:.1%}"),
    ]
    if sentence_labels:
        is_next = float((torch.cat(sentence_labels) == IS_NEXT).float().mean())
        rows.append(("pairs that are IsNext", f"{is_next:.1%}"))
    return Table("What the first step shows the model", tuple(rows))


def _sentence_labels(step: FirstStep, batch: Batch) -> list[str]:
    if "nsp" not in step.objective.counts(batch):
        return [""] * batch.num_sequences
    labels = batch.columns["next_sentence_label"].tolist()
    return ["IsNext (label 0)" if label == IS_NEXT else "NotNext (label 1)" for label in labels]
