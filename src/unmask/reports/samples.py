"""Decoded examples of what a model predicts, for a run's report; what they show depends on the objective."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from unmask.batch import IGNORE_INDEX, Batch
from unmask.models.kernels.products import linear
from unmask.objectives.base import ObjectiveModule
from unmask.objectives.causal_lm import CausalLMModule
from unmask.objectives.masked_lm import MaskedLMModule
from unmask.objectives.replaced_token import ReplacedTokenModule
from unmask.objectives.softmax_sampling import sample_from_softmax
from unmask.packing.settings import LABEL_COLUMNS, SentenceQuestion
from unmask.tokenization.kinds.bpe import END_OF_WORD
from unmask.tokenization.opening import Tokenizer

Token = dict[str, Any]
"""A token as `unmask.reports.sample_rows` describes it."""

SENTENCE_ANSWERS: dict[SentenceQuestion, tuple[str, str]] = {
    "nsp": ("IsNext", "NotNext"),
    "sop": ("in order", "swapped"),
}
"""What the labels 0 and 1 of a sentence objective mean."""

_ANSWERS = ("original", "replaced")
_ROWS = 512
"""How many targets have their probabilities over the whole vocabulary in memory at once."""


def show_entry(tokenizer: Tokenizer, index: int) -> str:
    """An entry of the vocabulary for people.

    Byte-level BPE writes bytes as letters of its own: these are shown as the text that they stand for, a space as `␣`,
    unless they are only part of a character.
    """
    if index >= tokenizer.vocab_size:
        return f"[{index}]"  # a padding row of the model's matrix
    entry = tokenizer.token_strings[index]
    if tokenizer.kind != "byte_bpe" or index in tokenizer.special_ids:
        return entry
    text = tokenizer.decode([index])
    return entry if "\ufffd" in text else text.replace(" ", "␣").replace("\n", "↵")


@torch.no_grad()
def samples_of(module: ObjectiveModule, batch: Batch, tokenizer: Tokenizer, most: int = 8) -> list[dict[str, Any]]:
    """The content of `samples.json`, by the kind of module; nothing for ELMo, whose windows depend on each other.

    Args:
        module: on the batch's device.
        batch: prepared by the objective.
        tokenizer: of the ids.
        most: how many sequences, from the first of the batch.

    Returns:
        See `unmask.reports.sample_rows`.
    """
    assert isinstance(module, nn.Module)
    module.eval()
    most = min(most, batch.num_sequences)
    end = int(batch.bounds[most])
    said = [""] * most
    if isinstance(module, MaskedLMModule):
        logits, _, sentence_logits = module.logits(batch)
        tokens = _masked(batch, end, logits, tokenizer)
        said = _sentence_answers(module, batch, sentence_logits, most)
    elif isinstance(module, CausalLMModule):
        tokens = _next(module, batch, end, tokenizer)
    elif isinstance(module, ReplacedTokenModule):
        logits, _ = module.generator_logits(batch)
        if module.trains_discriminator:
            tokens = _checked(module, batch, end, logits, tokenizer)
        else:
            tokens = _masked(batch, end, logits, tokenizer)
    else:
        return []
    originals = _originals(batch) if not isinstance(module, CausalLMModule) else batch.input_ids
    return [
        {
            "title": f"held-out sequence {number + 1}{said[number]}",
            "text": _sequence(batch, number, tokens, originals.tolist(), tokenizer),
        }
        for number in range(most)
    ]


def _sequence(
    batch: Batch, number: int, tokens: Mapping[int, Token], originals: Sequence[int], tokenizer: Tokenizer
) -> list[Token]:
    """The tokens of a sequence: for each, what `tokens` has for its place, or else the bare token."""
    special, ids = batch.columns["special_tokens_mask"].tolist(), batch.input_ids.tolist()
    start, end = int(batch.bounds[number]), int(batch.bounds[number + 1])
    return [
        {
            "token": show_entry(tokenizer, ids[place]),
            "kind": "special" if special[place] else "plain",
            **tokens.get(place, {}),
            "joined": place > start
            and not (special[place] or special[place - 1])
            and _goes_on(tokenizer, originals[place - 1], originals[place]),
        }
        for place in range(start, end)
    ]


def _goes_on(tokenizer: Tokenizer, before: int, index: int) -> bool:
    """Whether an entry continues the word that the entry before it belongs to."""
    if tokenizer.marks_words:
        return bool(tokenizer.continuation[index])
    return not tokenizer.token_strings[before].endswith(END_OF_WORD)


def _originals(batch: Batch) -> Tensor:
    """(tokens,) int64: the token ids of a masked batch before masking."""
    labels = batch.columns["labels"]
    return torch.where(labels == IGNORE_INDEX, batch.input_ids, labels)


def _masked(batch: Batch, end: int, logits: Tensor, tokenizer: Tokenizer) -> dict[int, Token]:
    """For each target before `end`: the original, and the likeliest entry by logits (targets, vocabulary)."""
    targets = batch.columns["target_positions"]
    targets = targets[targets < end]
    probabilities, predictions = torch.softmax(logits[: len(targets)].float(), -1).max(-1)
    return {
        place: {
            "kind": "masked",
            "label": show_entry(tokenizer, label),
            "prediction": show_entry(tokenizer, prediction),
            "probability": probability,
            "correct": label == prediction,
        }
        for place, label, prediction, probability in zip(
            targets.tolist(),
            batch.columns["labels"][targets].tolist(),
            predictions.tolist(),
            probabilities.tolist(),
            strict=True,
        )
    }


def _sentence_answers(module: MaskedLMModule, batch: Batch, logits: Tensor | None, most: int) -> list[str]:
    """For each sequence, how its segments are related and what the model says; nothing without such an objective."""
    if module.sentence_objective is None or logits is None:
        return [""] * most
    answers = SENTENCE_ANSWERS[module.sentence_objective]
    labels = batch.columns[LABEL_COLUMNS[module.sentence_objective]].tolist()
    chances = torch.softmax(logits.float(), -1)[:, 0].tolist()
    return [
        f": {answers[labels[number]]}, the model says {answers[0]} with {chances[number]:.0%}" for number in range(most)
    ]


def _next(module: CausalLMModule, batch: Batch, end: int, tokenizer: Tokenizer) -> dict[int, Token]:
    """For each token before `end` that follows another: what the model expected, and the token's own probability."""
    decoder, labels = module.decoder(batch)
    targets = batch.columns["target_positions"]
    targets = targets[targets < end]
    tokens: dict[int, Token] = {}
    for rows in torch.split(torch.arange(len(targets), device=targets.device), _ROWS):
        probabilities = torch.softmax(linear(decoder.states[rows], decoder.weight, decoder.bias).float(), -1)
        highest, predictions = probabilities.max(-1)
        of_labels = probabilities.gather(1, labels[rows, None]).squeeze(1)
        for place, label, prediction, probability, of_label in zip(
            (targets[rows] + 1).tolist(),
            labels[rows].tolist(),
            predictions.tolist(),
            highest.tolist(),
            of_labels.tolist(),
            strict=True,
        ):
            tokens[place] = {
                "kind": "next",
                "label": show_entry(tokenizer, label),
                "prediction": show_entry(tokenizer, prediction),
                "probability": probability,
                "label_probability": of_label,
                "correct": label == prediction,
            }
    return tokens


def _checked(
    module: ReplacedTokenModule, batch: Batch, end: int, logits: Tensor, tokenizer: Tokenizer
) -> dict[int, Token]:
    """For each token before `end` of the corrupted text, special ones aside: whether it was replaced, and what the
    discriminator says.

    Args:
        logits: (targets, vocabulary), the generator's.
    """
    guesses, replaced = module.discriminator_logits(batch, logits)
    samples = sample_from_softmax(logits, batch.columns["sample_fractions"])
    shown = _originals(batch).scatter(0, batch.columns["target_positions"], samples)
    tokens: dict[int, Token] = {}
    for place, (index, original, is_replaced, chance, special) in enumerate(
        zip(
            shown[:end].tolist(),
            _originals(batch)[:end].tolist(),
            replaced[:end].tolist(),
            torch.sigmoid(guesses[:end].float()).tolist(),
            batch.columns["special_tokens_mask"][:end].tolist(),
            strict=True,
        )
    ):
        if special:
            continue
        tokens[place] = {
            "token": show_entry(tokenizer, index),
            "kind": "checked",
            "label": _ANSWERS[is_replaced],
            "prediction": _ANSWERS[chance > 0.5],
            "probability": chance,
            "correct": is_replaced == (chance > 0.5),
        }
        if is_replaced:
            tokens[place]["original"] = show_entry(tokenizer, original)
    return tokens
