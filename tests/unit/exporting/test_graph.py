"""The graph that is exported answers as the packed model does, for every family and head."""

from __future__ import annotations

from typing import Any, get_args

import pytest
import torch
from torch import Tensor

from support.family_parity import LENGTHS, draw, padded_inputs, settings_of
from unmask.errors import SettingsError
from unmask.exporting.graph import PaddedModel
from unmask.models.bert import BertEncoder
from unmask.models.encoder import new_encoder
from unmask.models.family import HeadKind
from unmask.models.heads.bilstm import BiLstmHead
from unmask.models.heads.heads import DiscriminatorHead, MaskedLMHead, needs_pooler, new_head

FAMILIES: tuple[Any, ...] = ("bert", "roberta", "electra", "gpt1", "modernbert")
SIZES: dict[str, dict[str, Any]] = {
    "roberta": {"max_position_embeddings": 22},
    "modernbert": {"classifier_pooling": "mean", "max_position_embeddings": 20},
}
PER_TOKEN = ("token_classification", "question_answering", "masked_lm", "discriminator", "encoder")
"""Kinds of heads that answer for each token."""

PRETRAINED: dict[str, Any] = {
    "masked_lm": MaskedLMHead,
    "discriminator": DiscriminatorHead,
    "encoder": lambda _: torch.nn.Identity(),
}


def unpadded(rows: Tensor, mask: Tensor) -> Tensor:
    return rows[mask.bool()]


HEADS = [
    *((family, kind) for family in FAMILIES for kind in get_args(HeadKind) if kind in settings_of(family).family.heads),
    *((family, "masked_lm") for family in FAMILIES if family != "gpt1"),
    *((family, "encoder") for family in FAMILIES),
    ("electra", "discriminator"),
]


@pytest.mark.parametrize(("family", "kind"), HEADS)
def test_padded_rows_give_what_packed_ones_do(family: Any, kind: Any) -> None:
    settings = settings_of(family, **SIZES.get(family, {}))
    torch.manual_seed(0)
    pooled = kind in get_args(HeadKind) and needs_pooler(settings, kind)
    encoder: Any = new_encoder(settings, pooler=pooled).eval()
    num_labels = {"question_answering": 2, "multiple_choice": 1}.get(kind, 3)
    head: Any = PRETRAINED[kind](settings) if kind in PRETRAINED else new_head(kind, settings, num_labels)
    for parameter in [*encoder.parameters(), *head.parameters()]:
        if parameter.ndim == 1 or parameter.shape[1] == settings.hidden_size:
            torch.nn.init.normal_(parameter, std=0.3)
    head.eval()
    batch = draw(settings, LENGTHS)
    inputs = padded_inputs(batch, settings)
    model = PaddedModel(encoder, None if kind == "encoder" else head, kind)
    with torch.no_grad():
        found = model(inputs["input_ids"], inputs["attention_mask"], inputs.get("token_type_ids"))
        if kind == "masked_lm":
            expected = head(encoder(batch), encoder.word_embeddings)
        else:
            expected = head(encoder(batch) if kind in PER_TOKEN else encoder.summary(batch))
    if kind in PRETRAINED and kind != "encoder":
        found, hidden = found
        torch.testing.assert_close(unpadded(hidden, inputs["attention_mask"]), encoder(batch), atol=1e-5, rtol=0)
    logits = torch.stack(found, -1) if isinstance(found, tuple) else found
    if kind in PER_TOKEN:
        logits = unpadded(logits, inputs["attention_mask"])
    torch.testing.assert_close(logits, expected, atol=1e-5, rtol=0)
    assert expected.std() > 1e-3, "all the same would prove nothing"


def test_what_transformers_has_no_class_for_is_refused() -> None:
    settings = settings_of("bert")
    encoder: Any = new_encoder(settings, pooler=False)
    with pytest.raises(SettingsError, match="a BiLSTM on the encoder"):
        PaddedModel(encoder, BiLstmHead("sequence_classification", settings, 2, 0.0, 8), "sequence_classification")


def test_an_encoder_built_on_one_that_is_known_is_refused() -> None:
    """It has its blocks and may compute something else between them, which the graph would leave out."""

    class Shifted(BertEncoder):
        pass

    encoder = Shifted(settings_of("bert"), pooler=False)
    with pytest.raises(SettingsError, match="a model of the family bert cannot be exported: ONNX files are written of"):
        PaddedModel(encoder.eval(), None, "encoder")
