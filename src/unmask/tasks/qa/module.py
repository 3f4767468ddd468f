"""The module of question answering: an encoder, and a head that scores where an answer begins and ends.

The loss of a window is half the sum of the two negative log-likelihoods, as in Google's code and `transformers`; the
paper (Devlin et al. 2019, section 4.2) uses the sum. The softmax is over all tokens of a row.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from unmask.batch import IGNORE_INDEX, Batch, LossTerm
from unmask.models.buckets import NO_LABEL, SEQUENCES, Padding, Paddings
from unmask.models.heads.bilstm import BiLstmHead, token_outputs
from unmask.tasks.base import TaskModule


class QaModule(TaskModule):
    """An encoder with two scores for each token: that an answer begins there, and that it ends there.

    Args:
        encoder: any.
        head: maps (tokens, hidden) to (tokens, 2); a `BiLstmHead` also gets the sequence lengths.
    """

    @property
    def paddings(self) -> Paddings | None:
        """How the columns that `forward` reads are padded to a bucket; None for a BiLSTM, which needs lengths."""
        if isinstance(self.head, BiLstmHead):
            return None
        return dict.fromkeys(("start_positions", "end_positions"), Padding(SEQUENCES, NO_LABEL))

    def outputs(self, batch: Batch) -> Tensor:
        """(tokens, 2)."""
        return token_outputs(self.encoder, self.head, batch)

    def loss(self, outputs: Tensor, batch: Batch) -> list[LossTerm]:
        """Half the sum of the cross-entropies of start and end, each over the tokens of a row, in fp32."""
        # Scatters into padded rows instead of a segmented sum, whose order of addition on a GPU is not deterministic.
        shape = (batch.num_sequences, batch.max_length, 2)
        padded = outputs.new_full(shape, -torch.inf, dtype=torch.float32)
        padded = padded.index_put((batch.sequence_of_token(), batch.position_ids), outputs.float())
        total = torch.zeros((), device=outputs.device)
        for side, column in enumerate(("start_positions", "end_positions")):
            total = total + functional.cross_entropy(
                padded[:, :, side], batch.columns[column], ignore_index=IGNORE_INDEX, reduction="sum"
            )
        return [LossTerm("task", total / 2)]

    def counts(self, batch: Batch) -> dict[str, int]:
        """Windows whose answer's place is known."""
        return {"task": int((batch.columns["start_positions"] != IGNORE_INDEX).sum())}
