"""The module of tasks that ask one thing of a whole text: an encoder, and a head on its summary of each sequence.

GPT-1's auxiliary objective stands here too (Radford et al. 2018, section 3.2): the next token is predicted beside the
task, with the word embeddings as decoder. As in the released code, its loss is the mean over the tokens of a sequence,
and then over the sequences, so that a coefficient means the same however long the texts are.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

from unmask.batch import IGNORE_INDEX, Batch, LossTerm
from unmask.errors import SettingsError
from unmask.models.encoder import Encoder
from unmask.models.gpt1 import causal_lm_logits
from unmask.models.heads import new_head
from unmask.tasks.settings import TaskSettings

SummedLoss = Callable[[Tensor, Tensor], Tensor]
"""From outputs (sequences, outputs) and labels, where some may be missing, to () float32."""

CAUSAL = ("gpt1",)
"""Architectures whose tokens see only what stands before them; their summary of a sequence is its last token."""


class SequenceModule(nn.Module):
    """An encoder and a head.

    Args:
        head: takes `encoder.summary(batch)` to outputs.
        summed_loss: of the term `task`, over the column `labels`.
        auxiliary_lm_weight: coefficient of the term `lm`; 0 leaves it out.
    """

    def __init__(
        self, encoder: Encoder, head: nn.Module, summed_loss: SummedLoss, auxiliary_lm_weight: float = 0.0
    ) -> None:
        super().__init__()
        self.encoder = encoder
        self.head = head
        self._summed_loss = summed_loss
        self._auxiliary_lm_weight = auxiliary_lm_weight

    def forward(self, batch: Batch) -> list[LossTerm]:
        """The term `task` and, where it has a weight, `lm`, both from one pass of the encoder."""
        if not self._auxiliary_lm_weight:
            return self.loss(self.outputs(batch), batch)
        hidden = self.encoder(batch)
        terms = self.loss(self.head(hidden[last_tokens(batch)]), batch)
        return [*terms, next_token_term(self.encoder, hidden, batch, self._auxiliary_lm_weight)]

    def outputs(self, batch: Batch) -> Tensor:
        """(sequences, outputs)."""
        outputs: Tensor = self.head(self.encoder.summary(batch))
        return outputs

    def loss(self, outputs: Tensor, batch: Batch) -> list[LossTerm]:
        """The term `task` alone: what is measured. `lm` is learned from in training only."""
        labels = batch.columns["labels"]
        return [LossTerm("task", self._summed_loss(outputs.float(), labels), _num_targets(labels))]

    def counts(self, batch: Batch) -> dict[str, int]:
        """Labels, and sequences in which a token follows another one."""
        counts = {"task": _num_targets(batch.columns["labels"])}
        if self._auxiliary_lm_weight:
            counts["lm"] = num_continued(batch)
        return counts


def last_tokens(batch: Batch) -> Tensor:
    """(sequences,) int64, the place of each sequence's last token, which is a causal encoder's summary of it."""
    return batch.bounds[1:].long() - 1


def num_continued(batch: Batch) -> int:
    """How many sequences have a token that follows another one."""
    return sum(length > 1 for length in batch.lengths)


def next_token_term(encoder: Encoder, hidden: Tensor, batch: Batch, coefficient: float) -> LossTerm:
    """The term `lm`: the sum over sequences of the mean cross-entropy of their next tokens, counted in sequences.

    Args:
        hidden: (tokens, hidden), the encoder's output.
    """
    sequences = batch.sequence_of_token()
    followed = torch.nonzero(sequences[:-1] == sequences[1:]).squeeze(-1)
    logits = causal_lm_logits(hidden[followed], encoder.word_embeddings)  # (followed, vocab)
    losses = functional.cross_entropy(logits.float(), batch.input_ids[followed + 1], reduction="none")
    num_targets = batch.bounds.diff() - 1  # (sequences,)
    return LossTerm("lm", (losses / num_targets[sequences[followed]]).sum(), num_continued(batch), coefficient)


def check_sees_no_next_token(encoder: Encoder, auxiliary_lm_weight: float) -> None:
    """Raises SettingsError where next-token prediction is wanted of an encoder whose tokens see what stands behind."""
    architecture = encoder.settings.architecture
    if auxiliary_lm_weight and architecture not in CAUSAL:
        raise SettingsError(
            f"task.auxiliary_lm_weight {auxiliary_lm_weight} asks the encoder to predict the next token, and the "
            f"tokens of init_from's ({architecture}) see it: set task.auxiliary_lm_weight to 0, or start from a "
            f"causal model ({', '.join(CAUSAL)})"
        )


def new_sequence_module(
    encoder: Encoder, head: nn.Module | None, num_outputs: int, summed_loss: SummedLoss, settings: TaskSettings
) -> SequenceModule:
    """The module of a task; see `Task.module`.

    Raises:
        SettingsError: next-token prediction is wanted of an encoder whose tokens see what stands behind them.
    """
    check_sees_no_next_token(encoder, settings.auxiliary_lm_weight)
    if head is None:
        head = new_head("sequence_classification", encoder.settings, num_outputs, settings.classifier_dropout)
    return SequenceModule(encoder, head, summed_loss, settings.auxiliary_lm_weight)


def _num_targets(labels: Tensor) -> int:
    """How many labels there are; missing ones are NaN, or `IGNORE_INDEX`."""
    present = ~labels.isnan() if labels.is_floating_point() else labels != IGNORE_INDEX
    return int(present.sum())
