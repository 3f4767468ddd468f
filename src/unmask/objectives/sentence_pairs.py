"""What can be asked of a sequence's two segments; both answers are two logits from the pooled first token.

Next-sentence prediction, `nsp`: does segment B follow segment A? Label 0 is IsNext and 1 is a random sentence, as in
Google's code and `transformers` (BERT, section 3.1, task 2). Sentence-order prediction, `sop`: do two segments that
follow one another have their order? Label 0 is yes, 1 is swapped (Lan et al. 2020, ALBERT, section 3.1).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from unmask.batch import Batch
from unmask.models.buckets import NO_LABEL, SEQUENCES, Padding, Paddings
from unmask.models.encoder import TokenEncoder
from unmask.models.heads.heads import NextSentenceHead
from unmask.models.hub.source import LoadedModel
from unmask.models.settings import EncoderSettings
from unmask.objectives.base import Saved
from unmask.objectives.floors import Floor, share_entropy, share_margin
from unmask.objectives.second_objective import SecondObjective
from unmask.packing.settings import LABEL_COLUMNS, SentenceQuestion

TRAINED_FOR = "unmask_sentence_objective"
"""The key in `config.json` that says what the sentence head was trained for, where it is not the next sentence."""

ANSWERS: dict[SentenceQuestion, tuple[str, str]] = {"nsp": ("IsNext", "NotNext"), "sop": ("in order", "swapped")}
"""What the labels 0 and 1 mean."""

_CALLED: dict[SentenceQuestion, tuple[str, str]] = {
    "nsp": ("next-sentence", "next-sentence prediction"),
    "sop": ("sentence-order", "sentence-order prediction"),
}


class SentencePairPart(SecondObjective):
    """Either question as a part of masked language modelling."""

    head_name = "next_sentence_head"
    is_pooled = True

    def __init__(self, question: SentenceQuestion, weight: float = 1.0) -> None:
        self.term: str = question
        self.weight = weight
        self.column = LABEL_COLUMNS[question]
        self.paddings: Paddings = {self.column: Padding(SEQUENCES, NO_LABEL)}
        self._answers, (self._short, self._called) = ANSWERS[question], _CALLED[question]

    def new_head(self, sizes: EncoderSettings) -> nn.Module:
        return NextSentenceHead(sizes)

    def count(self, batch: Batch) -> int:
        return batch.num_sequences

    def places(self, batch: Batch) -> Tensor:
        return batch.first_tokens

    def answer(self, head: nn.Module, hidden: Tensor, batch: Batch, encoder: TokenEncoder) -> tuple[Tensor, Tensor]:
        assert encoder.pooler is not None, "sentence objectives read the pooled first token"
        return head(encoder.pooler(hidden)), batch.columns[self.column]

    def restored(self, head: nn.Module, loaded: LoadedModel, directory: Path) -> nn.Module:
        """That of the model directory, if it was trained for the same question."""
        trained_for = loaded.config.get(TRAINED_FOR, "nsp")
        return head if loaded.next_sentence_head is None or trained_for != self.term else loaded.next_sentence_head

    def saved(self, head: nn.Module, model: Saved) -> Saved:
        trained_for = {} if self.term == "nsp" else {TRAINED_FOR: self.term}
        config = {**model.extra_config, **trained_for}
        return replace(model, heads={**model.heads, "next_sentence_head": head}, extra_config=config)

    def floors(self, token_counts: NDArray[np.int64], batches: Sequence[Batch]) -> list[Floor]:
        """By the share of the labels in the batches, or by chance."""
        share, margin = 0.5, 0.0
        if batches:
            labels = torch.cat([batch.columns[self.column] for batch in batches]).double()
            share = float(labels.mean())
            margin = share_margin(share, len(labels))
        what = f"always giving the share of the labels, {share:.2f} ({self._short} chance)"
        loss, accuracy = f"loss/{self.term}", f"eval/{self.term}_accuracy"
        late = f"{self._called} is learnt after words are: train on more tokens before worrying"
        name, commonest = f"{self.term}-majority-floor", max(share, 1 - share)
        as_loss, common = f"as for the loss of {self._called}", "always saying the more frequent label"
        return [
            Floor(f"{self.term}-chance-floor", loss, "chance", what, share_entropy(share), 0.01, False, late),
            Floor(name, accuracy, "chance", common, commonest, margin, False, as_loss),
        ]

    def operations(self, sizes: EncoderSettings, batch: Batch, length: float) -> tuple[float, float]:
        hidden = sizes.hidden_size
        return 1 / length, 2 * (hidden**2 + 2 * hidden) / length

    def describe_sequences(self, batch: Batch, most: int) -> list[str]:
        return [f"{self._answers[label]} (label {label})" for label in batch.columns[self.column][:most].tolist()]

    def describe_batches(self, batches: Sequence[Batch]) -> list[tuple[str, str]]:
        labels = torch.cat([batch.columns[self.column] for batch in batches])
        return [(f"pairs that are {self._answers[0]}", f"{float((labels == 0).float().mean()):.1%}")]

    def titles(self, batch: Batch, logits: Tensor, most: int) -> list[str]:
        """How the segments of each sequence are related, and what the model says."""
        labels = batch.columns[self.column].tolist()
        chances = torch.softmax(logits.float(), -1)[:, 0].tolist()
        first = self._answers[0]
        return [
            f": {self._answers[labels[number]]}, the model says {first} with {chances[number]:.0%}"
            for number in range(most)
        ]
