"""GPT-1's auxiliary objective (Radford et al. 2018, section 3.2): besides the task, the next token is predicted.

The word embeddings are its decoder. As in the released code, its loss is averaged over the tokens of a sequence, then
over sequences, so that the coefficient means the same for texts of any length. BERT's left-to-right model has no such
decoder: its masked-LM head is dropped for fine-tuning, so it has no auxiliary objective.
"""

from __future__ import annotations

import torch
from torch import Tensor

from unmask.batch import IGNORE_INDEX, Batch, LossTerm
from unmask.errors import SettingsError
from unmask.models.buckets import IS_PADDING
from unmask.models.encoder import Encoder
from unmask.models.families.table import ARCHITECTURES
from unmask.models.family import Family
from unmask.models.kernels.decoder_loss import Decoder, summed_decoder_loss


def num_continued(batch: Batch) -> int:
    """How many sequences have more than one token."""
    return sum(length > 1 for length in batch.lengths)


def next_token_term(encoder: Encoder, hidden: Tensor, batch: Batch, coefficient: float) -> LossTerm:
    """The term `lm`: the sum over sequences of the mean cross-entropy of their next tokens, counted in sequences.

    Args:
        hidden: (tokens, hidden), the encoder's output.
    """
    assert not encoder.reads_words, "refused at the start"
    sequences = batch.sequence_of_token()
    is_followed = sequences[:-1] == sequences[1:]
    num_targets = batch.bounds.diff() - 1  # (sequences,)
    if batch.is_padded:  # all tokens; those without a next token get no label
        labels = batch.input_ids[1:].where(is_followed & ~batch.columns[IS_PADDING][1:], IGNORE_INDEX)
        weights = 1 / num_targets.clamp(min=1)[sequences[:-1]]
        total = summed_decoder_loss(Decoder(hidden[:-1], encoder.word_embeddings), labels, weights)
        return LossTerm("lm", total, coefficient)
    followed = torch.nonzero(is_followed).squeeze(-1)
    weights = 1 / num_targets[sequences[followed]]  # (followed,) float32
    decoder = Decoder(hidden[followed], encoder.word_embeddings)
    total = summed_decoder_loss(decoder, batch.input_ids[followed + 1], weights)
    return LossTerm("lm", total, coefficient)


def check_sees_no_next_token(encoder: Encoder, auxiliary_lm_weight: float) -> None:
    """Raises SettingsError if next-token prediction is wanted of an encoder that is not causal, or of one whose
    decoder has a head of its own, as BERT's left-to-right model: a fine-tuned model leaves that out."""
    family = encoder.settings.family
    if auxiliary_lm_weight and not _decodes_by_embeddings(family):
        is_causal = encoder.settings.is_causal
        why = "has no decoder left for it" if is_causal else "see it"
        whose = "init_from's left-to-right" if is_causal else "the tokens of init_from's"
        raise SettingsError(
            f"task.auxiliary_lm_weight {auxiliary_lm_weight} asks the encoder to predict the next token, and {whose} "
            f"({family.name}) {why}: set task.auxiliary_lm_weight to 0, or start from a causal model "
            f"({', '.join(name for name, each in ARCHITECTURES.items() if _decodes_by_embeddings(each))})"
        )


def _decodes_by_embeddings(family: Family) -> bool:
    return family.left_to_right and not family.has("masked_lm_head")
