"""A head that answers questions, and classifies whether their passage holds an answer (Liu et al. 2019, section 3.3).

What the papers say of it, what they leave open, and what was chosen: `unmask.tasks.qa.module`.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from unmask.batch import Batch
from unmask.models.heads.heads import Head, new_head
from unmask.models.sizes import Sizes


class AnswerabilityHead(nn.Module):
    """Start and end scores of each token, and a logit for each sequence that it holds no answer.

    The logit is read from the last hidden state of one token, by the family's head on a token, with its dropout: of the
    first token, or of the last one where tokens see only those before them.

    Args:
        spans: takes (tokens, hidden) to (tokens, 2), start and end. It is what `transformers` has a class for, and is
            saved so; the classifier goes to `head.safetensors`.
        settings: of the encoder.
    """

    def __init__(self, spans: Head, settings: Sizes) -> None:
        super().__init__()
        self.spans = spans
        self.classifier = new_head("token_classification", settings, 1)
        self._reads_last = settings.is_causal

    def forward(self, hidden: Tensor, batch: Batch) -> Tensor:
        """(tokens, 3) from `hidden` (tokens, hidden), packed: start, end, and the logit of the token's sequence."""
        logits = self.classifier(hidden[batch.last_tokens if self._reads_last else batch.first_tokens])
        return torch.cat([self.spans(hidden), logits[batch.sequence_of_token()]], dim=1)
