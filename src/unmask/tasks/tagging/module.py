"""The module that learns to tag: a classifier on each token of an encoder (BERT, section 5.3)."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional

from unmask.batch import IGNORE_INDEX, Batch, LossTerm
from unmask.models.buckets import NO_LABEL, TOKENS, Filling, Fillings
from unmask.models.encoder import Encoder
from unmask.models.heads.bilstm_head import BiLstmHead


class TaggingModule(nn.Module):
    """An encoder with a classifier on each token.

    Args:
        encoder: any.
        head: maps (tokens, hidden) to (tokens, labels); a `BiLstmHead` also gets the sequence lengths.
    """

    encoder: Encoder
    head: nn.Module

    def __init__(self, encoder: Encoder, head: nn.Module) -> None:
        super().__init__()
        self.encoder = encoder
        self.head = head

    @property
    def fillings(self) -> Fillings | None:
        """How the columns that `forward` reads are padded in a filled batch; None for a BiLSTM, which needs lengths."""
        return None if isinstance(self.head, BiLstmHead) else {"labels": Filling(TOKENS, NO_LABEL)}

    def forward(self, batch: Batch) -> list[LossTerm]:
        """The term `task`; the last block and the head compute only labelled tokens, unless the batch is filled."""
        if isinstance(self.head, BiLstmHead) or batch.is_filled:  # a BiLSTM reads all of a sequence
            return self.loss(self.outputs(batch), batch)
        labels = batch.columns["labels"]
        labelled = (labels != IGNORE_INDEX).nonzero().squeeze(-1)
        logits = self.head(self.encoder(batch, labelled))
        total = functional.cross_entropy(logits.float(), labels[labelled], reduction="sum")
        return [LossTerm("task", total, len(labelled))]

    def outputs(self, batch: Batch) -> Tensor:
        """(tokens, labels)."""
        return token_outputs(self.encoder, self.head, batch)

    def loss(self, outputs: Tensor, batch: Batch) -> list[LossTerm]:
        """Cross-entropy over the labelled tokens."""
        labels = batch.columns["labels"]
        total = functional.cross_entropy(outputs.float(), labels, ignore_index=IGNORE_INDEX, reduction="sum")
        return [LossTerm("task", total, (labels != IGNORE_INDEX).sum())]

    def counts(self, batch: Batch) -> dict[str, int]:
        """Labelled tokens."""
        return {"task": int((batch.columns["labels"] != IGNORE_INDEX).sum())}


def token_outputs(encoder: Encoder, head: nn.Module, batch: Batch) -> Tensor:
    """(tokens, outputs) of a head on each token, or of a BiLSTM over all of them."""
    outputs: Tensor = head(encoder(batch), batch.lengths) if isinstance(head, BiLstmHead) else head(encoder(batch))
    return outputs
