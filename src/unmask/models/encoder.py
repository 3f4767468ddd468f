"""What every encoder offers to objectives and tasks, whatever its family."""

from __future__ import annotations

from unmask.models.bert import BertEncoder
from unmask.models.electra import ElectraEncoder
from unmask.models.gpt1 import Gpt1Encoder
from unmask.models.settings import EncoderSettings

Encoder = BertEncoder | ElectraEncoder | Gpt1Encoder
"""Any encoder: `settings`, `embeddings`, `blocks`, `pooler`, `word_embeddings`, `summary`, `hidden_states`."""


def new_encoder(settings: EncoderSettings, pooler: bool = True) -> Encoder:
    """A fresh encoder of these sizes, from PyTorch's default generator.

    Args:
        pooler: whether it shall have one, where its family knows poolers: BERT and RoBERTa.
    """
    if settings.architecture == "electra":
        return ElectraEncoder(settings)
    if settings.architecture == "gpt1":
        return Gpt1Encoder(settings)
    return BertEncoder(settings, pooler)
