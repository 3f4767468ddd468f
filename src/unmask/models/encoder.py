"""What every encoder offers to objectives and tasks, whatever its family."""

from __future__ import annotations

from pkgutil import resolve_name
from typing import cast, overload

from unmask.models.bert import BertEncoder
from unmask.models.electra import ElectraEncoder
from unmask.models.elmo.encoder import ElmoEncoder
from unmask.models.elmo.settings import ElmoSettings, Sizes
from unmask.models.gpt1 import Gpt1Encoder
from unmask.models.lstm import LstmEncoder
from unmask.models.modernbert import ModernBertEncoder
from unmask.models.settings import EncoderSettings

TokenEncoder = BertEncoder | ElectraEncoder | ModernBertEncoder | Gpt1Encoder | LstmEncoder
"""An encoder with an embedding for each entry of its vocabulary: `word_embeddings`."""

Encoder = TokenEncoder | ElmoEncoder
"""Any encoder: `settings`, `embeddings`, `blocks`, `pooler`, `summary`, `hidden_states`. One with
`reads_words`, ELMo's alone, reads the characters of words, from `set_words`, and has no `word_embeddings`."""


@overload
def new_encoder(settings: EncoderSettings, pooler: bool = True) -> TokenEncoder: ...
@overload
def new_encoder(settings: ElmoSettings, pooler: bool = True) -> ElmoEncoder: ...
@overload
def new_encoder(settings: Sizes, pooler: bool = True) -> Encoder: ...


def new_encoder(settings: Sizes, pooler: bool = True) -> Encoder:
    """A fresh encoder of these sizes, its weights drawn from PyTorch's default generator.

    Args:
        pooler: whether it gets a pooler, if its family has them: BERT and RoBERTa.

    Raises:
        SettingsError: a pooler is requested for BERT's left-to-right model.
    """
    family = settings.family
    given = (settings, pooler) if family.has("pooler") else (settings,)
    return cast(Encoder, resolve_name(family.encoder)(*given))
