"""Decoded examples of what a model predicts, for a run's report; what they show depends on the objective."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from itertools import accumulate
from typing import Any

import torch

from unmask.batch import Batch
from unmask.objectives.base import ObjectiveModule
from unmask.tokenization.kinds.bpe import END_OF_WORD
from unmask.tokenization.kinds.byte_bpe import BYTE_OF
from unmask.tokenization.opening import Tokenizer

Token = dict[str, Any]
"""A token as `unmask.reports.sample_rows` describes it."""

_NUM_SHOWN = 8


def show_entry(tokenizer: Tokenizer, index: int) -> str:
    """An entry of the vocabulary for people.

    Byte-level BPE writes bytes as letters of its own: these are shown as the text that they encode, a space as `␣`,
    unless they are only part of a character.
    """
    if index >= tokenizer.vocab_size:
        return f"[{index}]"  # a padding row of the model's matrix
    entry = tokenizer.token_strings[index]
    if tokenizer.kind != "byte_bpe" or index in tokenizer.special_ids:
        return entry
    text = tokenizer.decode([index])
    return entry if "\ufffd" in text else _with_signs(text)


def show_tokens(tokenizer: Tokenizer, ids: Sequence[int]) -> list[str]:
    """The tokens of a text for people: as `show_entry`, but one that holds part of a character is shown with all of it,
    so that a character may be shown twice."""
    if tokenizer.kind != "byte_bpe":
        return tokenizer.tokens(ids)
    bytes_of = {index: _bytes_of(tokenizer, index) for index in set(ids)}
    text = b"".join(bytes_of[index] for index in ids)
    ends = list(accumulate(len(bytes_of[index]) for index in ids))
    shown = []
    for start, end in zip([0, *ends], ends, strict=False):
        while start and _is_inside(text[start]):
            start -= 1
        while end < len(text) and _is_inside(text[end]):
            end += 1
        shown.append(_with_signs(text[start:end].decode("utf-8", "replace")))
    return shown


def _bytes_of(tokenizer: Tokenizer, index: int) -> bytes:
    text = tokenizer.decode([index])
    return bytes(map(BYTE_OF.__getitem__, tokenizer.token_strings[index])) if "\ufffd" in text else text.encode()


def _is_inside(byte: int) -> bool:
    """Whether a byte of UTF-8 is not the first of its character."""
    return byte & 0xC0 == 0x80


def _with_signs(text: str) -> str:
    return text.replace(" ", "␣").replace("\n", "↵")


@torch.no_grad()
def samples_of(module: ObjectiveModule, batch: Batch, tokenizer: Tokenizer) -> list[dict[str, Any]]:
    """The content of `samples.json`: the first sequences of a batch; nothing if the module has nothing to show of them.

    Args:
        module: on the batch's device.
        batch: prepared by the objective.

    Returns:
        See `unmask.reports.sample_rows`.
    """
    module.eval()
    most = min(_NUM_SHOWN, batch.num_sequences)
    predicted = module.predictions(batch, most, partial(show_entry, tokenizer))
    if predicted is None:
        return []
    originals = predicted.originals.tolist()
    return [
        {
            "title": f"held-out sequence {number + 1}{predicted.titles[number]}",
            "text": _sequence(batch, number, predicted.tokens, originals, tokenizer),
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
            and _continues(tokenizer, originals[place - 1], originals[place]),
        }
        for place in range(start, end)
    ]


def _continues(tokenizer: Tokenizer, before: int, index: int) -> bool:
    """Whether an entry continues the word that the entry before it belongs to."""
    if tokenizer.marks_words:
        return bool(tokenizer.continuation[index])
    return not tokenizer.token_strings[before].endswith(END_OF_WORD)
