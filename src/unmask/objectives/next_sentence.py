"""Next-sentence prediction: does segment B follow segment A? (BERT, section 3.1, task 2)

Label 0 is IsNext and 1 is a random sentence, as in Google's code and `transformers`.
"""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional

from unmask.batch import LossTerm


def next_sentence_term(logits: Tensor, labels: Tensor) -> LossTerm:
    """The loss term `nsp` from logits (sequences, 2) and labels (sequences,) int64."""
    return LossTerm("nsp", functional.cross_entropy(logits.float(), labels, reduction="sum"), len(labels))


def next_sentence_scores(logits: Tensor, labels: Tensor) -> dict[str, tuple[Tensor, int]]:
    """Sums and counts of `nsp_loss` and `nsp_accuracy`."""
    return {
        "nsp_loss": (functional.cross_entropy(logits.float(), labels, reduction="sum"), len(labels)),
        "nsp_accuracy": ((logits.argmax(-1) == labels).sum(), len(labels)),
    }
