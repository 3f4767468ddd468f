"""The module of question answering: an encoder, and a head that scores where an answer begins and ends.

The loss of a window is half the sum of the two negative log-likelihoods, as in Google's code and `transformers`; the
paper (Devlin et al. 2019, section 4.2) uses the sum. The softmax is over all tokens of a row.

With `task.answerability` it is classified as well whether there is an answer. RoBERTa (Liu et al. 2019, section 3.3)
adds "an additional binary classifier to predict whether the question is answerable", trained "jointly by summing the
classification and span loss terms", and predicts spans "only on pairs that are classified as answerable". ELECTRA's
released code (`finetune/qa/qa_tasks.py`, `qa_metrics.py`) has one too. Left open, and chosen here:

- What the classifier reads: the first token's last hidden state, by one linear layer, as in ELECTRA's code where
  `answerable_uses_start_logits` is false; here the family's head on a token, with dropout.
- The loss: binary cross-entropy, added to the span loss above with the weight 1; ELECTRA's code gives it .5.
- What spans learn where there is no answer: to begin and end at `[CLS]`, as without the classifier and in ELECTRA's
  code.
- A window without the answer of a question that has one counts as unanswerable, as it does for the null span; ELECTRA's
  code labels all windows as their question.
- The decision: by the classifier alone, its lowest logit over the windows against the threshold, as in ELECTRA's code.
  `unmask.tasks.qa.decoding` says how this is written as a score.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from unmask.batch import IGNORE_INDEX, Batch, LossTerm
from unmask.models.buckets import NO_LABEL, SEQUENCES, Padding, Paddings
from unmask.models.heads.answerability import AnswerabilityHead
from unmask.models.heads.bilstm import BiLstmHead, token_outputs
from unmask.tasks.base import TaskModule


class QaModule(TaskModule):
    """An encoder with two scores for each token: that an answer begins there, and that it ends there.

    Args:
        encoder: any.
        head: maps (tokens, hidden) to (tokens, 2); a `BiLstmHead` also gets the sequence lengths. An
            `AnswerabilityHead` adds a third column: the logit that the token's row holds no answer.
    """

    @property
    def paddings(self) -> Paddings | None:
        """How the columns that `forward` reads are padded to a bucket; None for a BiLSTM, which needs lengths."""
        if isinstance(self.head, BiLstmHead):
            return None
        return dict.fromkeys(("start_positions", "end_positions"), Padding(SEQUENCES, NO_LABEL))

    def outputs(self, batch: Batch) -> Tensor:
        """(tokens, 2), or (tokens, 3) with a classifier of answerability."""
        if isinstance(self.head, AnswerabilityHead):
            outputs: Tensor = self.head(self.encoder(batch), batch)
            return outputs
        return token_outputs(self.encoder, self.head, batch)

    def loss(self, outputs: Tensor, batch: Batch) -> list[LossTerm]:
        """Half the sum of the cross-entropies of start and end, each over the tokens of a row, in fp32; with a
        classifier of answerability also its binary cross-entropy."""
        total = _span_loss(outputs[:, :2], batch)
        if isinstance(self.head, AnswerabilityHead):
            total = total + _answerability_loss(outputs[batch.first_tokens, 2], batch)
        return [LossTerm("task", total)]

    def num_targets(self, batch: Batch) -> int:
        """Windows whose answer's place is known."""
        return int((batch.columns["start_positions"] != IGNORE_INDEX).sum())


def _span_loss(scores: Tensor, batch: Batch) -> Tensor:
    """() float32 from start and end scores (tokens, 2)."""
    # Scatters into padded rows instead of a segmented sum, whose order of addition on a GPU is not deterministic.
    shape = (batch.num_sequences, batch.max_length, 2)
    padded = scores.new_full(shape, -torch.inf, dtype=torch.float32)
    padded = padded.index_put((batch.sequence_of_token(), batch.position_ids), scores.float())
    total = torch.zeros((), device=scores.device)
    for side, column in enumerate(("start_positions", "end_positions")):
        total = total + functional.cross_entropy(
            padded[:, :, side], batch.columns[column], ignore_index=IGNORE_INDEX, reduction="sum"
        )
    return total / 2


def _answerability_loss(logits: Tensor, batch: Batch) -> Tensor:
    """() float32 from the logits (sequences,) that a row holds no answer: that is where the null span is its target,
    at the first token of the row or, as in GPT-1, at the last."""
    places = batch.columns["start_positions"]
    is_null = (places == 0) | (places == batch.bounds.diff() - 1)
    is_known = places != IGNORE_INDEX
    return functional.binary_cross_entropy_with_logits(
        logits.float(), is_null.float(), weight=is_known.float(), reduction="sum"
    )
