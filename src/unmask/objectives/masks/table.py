"""The ways of choosing targets, by `objective.masking`."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from unmask.batch import Batch
from unmask.objectives.masks.masking import choose_tokens, choose_words
from unmask.objectives.masks.span_masking import choose_annotated, choose_spans
from unmask.objectives.settings import MaskedLMSettings
from unmask.tokenization.vocabulary import Vocabulary


class Masking(NamedTuple):
    """A way of choosing targets.

    Attributes:
        choose: of a batch, with the share of its tokens, the settings and the vocabulary: (tokens,) bool, True for a
            target.
        needs_words: whether the vocabulary must show where words begin.
        has_spans: whether a whole span is masked, replaced or left together (SpanBERT, section 3.1).
    """

    choose: Callable[[Batch, float, MaskedLMSettings, Vocabulary], Tensor]
    needs_words: bool = True
    has_spans: bool = False


def _tokens(batch: Batch, prob: float, settings: MaskedLMSettings, vocabulary: Vocabulary) -> Tensor:
    return choose_tokens(batch, prob)


def _words(batch: Batch, prob: float, settings: MaskedLMSettings, vocabulary: Vocabulary) -> Tensor:
    return choose_words(batch, prob, torch.from_numpy(vocabulary.continuation))


def _spans(batch: Batch, prob: float, settings: MaskedLMSettings, vocabulary: Vocabulary) -> Tensor:
    continuation = torch.from_numpy(vocabulary.continuation)
    return choose_spans(batch, prob, continuation, settings.span_length_prob, settings.max_span_words)


def _annotated(batch: Batch, prob: float, settings: MaskedLMSettings, vocabulary: Vocabulary) -> Tensor:
    continuation = torch.from_numpy(vocabulary.continuation)
    return choose_annotated(batch, prob, continuation, batch.columns[settings.masking])


MASKINGS: dict[str, Masking] = {
    "token": Masking(_tokens, needs_words=False),
    "whole_word": Masking(_words),
    "span": Masking(_spans, has_spans=True),
    "entity": Masking(_annotated, has_spans=True),
    "noun_phrase": Masking(_annotated, has_spans=True),
}
