"""What can be asked of a sequence's two segments; both answers are two logits from the pooled first token.

Next-sentence prediction, `nsp`: does segment B follow segment A? Label 0 is IsNext and 1 is a random sentence, as in
Google's code and `transformers` (BERT, section 3.1, task 2). Sentence-order prediction, `sop`: do two segments that
follow one another stand in their order? Label 0 is yes, 1 is swapped (Lan et al. 2020, ALBERT, section 3.1).
"""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional

from unmask.batch import IGNORE_INDEX, LossTerm
from unmask.packing.settings import SentenceQuestion


def sentence_term(name: SentenceQuestion, logits: Tensor, labels: Tensor) -> LossTerm:
    """The loss term from logits (sequences, 2) and labels (sequences,) int64, `IGNORE_INDEX` where there is none."""
    total = functional.cross_entropy(logits.float(), labels, ignore_index=IGNORE_INDEX, reduction="sum")
    return LossTerm(name, total, len(labels))


def sentence_scores(name: SentenceQuestion, logits: Tensor, labels: Tensor) -> dict[str, tuple[Tensor, int]]:
    """Sums and counts of the loss and the accuracy: `nsp_loss` and `nsp_accuracy`, or `sop_`."""
    return {
        f"{name}_loss": (functional.cross_entropy(logits.float(), labels, reduction="sum"), len(labels)),
        f"{name}_accuracy": ((logits.argmax(-1) == labels).sum(), len(labels)),
    }
