"""Every architecture, by the name that a recipe gives it."""

from __future__ import annotations

from unmask.models.families.bert import BERT
from unmask.models.families.electra import ELECTRA
from unmask.models.families.elmo import ELMO
from unmask.models.families.gpt1 import GPT1
from unmask.models.families.lstm import LSTM
from unmask.models.families.modernbert import MODERNBERT
from unmask.models.families.modernbert_decoder import MODERNBERT_DECODER
from unmask.models.families.roberta import ROBERTA
from unmask.models.family import Family

ARCHITECTURES: dict[str, Family] = {
    "bert": BERT,
    "roberta": ROBERTA,
    "electra": ELECTRA,
    "modernbert": MODERNBERT,
    "modernbert_decoder": MODERNBERT_DECODER,
    "gpt1": GPT1,
    "lstm": LSTM,
    "elmo": ELMO,
}
