"""A model as other programs call it: padded rows with a mask in, logits out, in PyTorch's plainest operators.

The layers are those of the packed model, with its weights; only how sequences lie in a batch differs. Inputs and
outputs have the names and shapes of `transformers` and Optimum, so that what reads their ONNX files reads ours.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from unmask.errors import SettingsError
from unmask.inference.onnx_model import HIDDEN
from unmask.models.bert import BertEncoder
from unmask.models.electra import ElectraEncoder
from unmask.models.encoder import TokenEncoder
from unmask.models.family import HeadKind
from unmask.models.gpt1 import Gpt1Encoder
from unmask.models.heads.answerability import AnswerabilityHead
from unmask.models.heads.heads import Classifier, DeepClassifier, DiscriminatorHead, MaskedLMHead
from unmask.models.hub.source import LoadedModel
from unmask.models.kernels.products import Linear
from unmask.models.modernbert import ModernBertBlock, ModernBertEncoder
from unmask.models.settings import EncoderSettings

_ENCODERS = (BertEncoder, ElectraEncoder, Gpt1Encoder, ModernBertEncoder)
"""Those whose forward passes are written here once more."""

OUTPUTS = {
    "question_answering": ("start_logits", "end_logits"),
    "masked_lm": ("logits", HIDDEN),
    "discriminator": ("logits", HIDDEN),
    "encoder": (HIDDEN,),
}
"""Names of outputs by kind of head; all others have `logits`. Those of pre-training give the hidden states too, so that
one file is for both uses."""

NO_ANSWER = "no_answer_logits"
"""A third output for questions, where answerability is classified."""

_Known = Classifier | DeepClassifier | AnswerabilityHead | MaskedLMHead | DiscriminatorHead


class PaddedModel(nn.Module):
    """An encoder in eval mode with its head.

    Args:
        head: None for an encoder by itself.
        kind: of the head: of fine-tuning, or a key of `OUTPUTS`.

    Raises:
        SettingsError: an LSTM, ELMo, or a head that `transformers` does not have.
    """

    def __init__(self, encoder: TokenEncoder, head: nn.Module | None, kind: HeadKind | str) -> None:
        super().__init__()
        if encoder.reads_words or encoder.settings.family.is_recurrent:
            raise SettingsError("an LSTM or ELMo cannot be exported: ONNX files are written of Transformers")
        if type(encoder) not in _ENCODERS:  # one that is built on them may compute something else
            raise SettingsError(
                f"a model of the family {encoder.settings.architecture} cannot be exported: ONNX files are written of "
                f"the encoders {', '.join(each.__name__ for each in _ENCODERS)}"
            )
        if kind != "encoder" and not isinstance(head, _Known):
            raise SettingsError(
                "a BiLSTM on the encoder, a classifier of chosen layers, a pair read in both orders, or windows "
                "weighed by a learnt query cannot be exported"
            )
        self.encoder: Any = _plain(encoder)
        self.head: Any = None if head is None else _plain(head)
        self.kind = kind
        self.outputs: tuple[str, ...] = OUTPUTS.get(kind, ("logits",))
        if isinstance(head, AnswerabilityHead):
            self.outputs = (*self.outputs, NO_ANSWER)

    @property
    def reads_segments(self) -> bool:
        """Whether `token_type_ids` are among the inputs."""
        return bool(self.encoder.settings.type_vocab_size > 1)

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor | None = None
    ) -> Tensor | tuple[Tensor, ...]:
        """What `outputs` names.

        Args:
            input_ids, attention_mask, token_type_ids: (sequences, tokens) int64; the mask is 1 where there is a token.

        Returns:
            (sequences, labels); (sequences, tokens, labels or entries) of heads on tokens; start and end, (sequences,
            tokens) each, and of answerability (sequences, 1); with heads of pre-training also, or alone, the last
            hidden states (sequences, tokens, hidden).
        """
        hidden = self._hidden(input_ids, attention_mask, token_type_ids)
        if self.kind == "encoder":
            return hidden
        if self.kind == "discriminator":
            return self.head(hidden), hidden
        if self.kind == "masked_lm":
            decoder = self.head.decoder(self.encoder.word_embeddings)
            return functional.linear(self.head.transform(hidden), decoder, self.head.bias), hidden
        if self.kind == "question_answering":
            if NO_ANSWER in self.outputs:
                no_answer = self.head.classifier(self._whole(hidden, attention_mask))
                return *self.head.spans(hidden).unbind(-1), no_answer
            begins, ends = self.head(hidden).unbind(-1)
            return begins, ends
        if self.kind == "token_classification":
            logits: Tensor = self.head(hidden)
        else:
            logits = self.head(self._summary(hidden, attention_mask))
        return logits

    def _summary(self, hidden: Tensor, mask: Tensor) -> Tensor:
        """(sequences, hidden): as the encoder's `summary`."""
        settings: EncoderSettings = self.encoder.settings
        if settings.classifier_pooling == "mean" and not settings.is_causal:
            present = mask[..., None].to(hidden.dtype)
            return (hidden * present).sum(1) / present.sum(1)
        token = self._whole(hidden, mask)
        return token if self.encoder.pooler is None else torch.tanh(self.encoder.pooler.dense(token))

    def _whole(self, hidden: Tensor, mask: Tensor) -> Tensor:
        """(sequences, hidden): of the token that sums a sequence up: the first, or the last if it is causal."""
        if not self.encoder.settings.is_causal:
            return hidden[:, 0]
        last = (mask.sum(1) - 1)[:, None, None].expand(-1, 1, hidden.shape[2])
        return hidden.gather(1, last).squeeze(1)

    def _hidden(self, ids: Tensor, mask: Tensor, segments: Tensor | None) -> Tensor:
        """(sequences, tokens, hidden)."""
        places = torch.arange(ids.shape[1], device=ids.device)
        hidden = self._embedded(ids, segments, places)
        for block in self.encoder.blocks:
            attention = block.attention
            inner = isinstance(block, ModernBertBlock)
            attended = self._attended(attention, block.attention_norm(hidden) if inner else hidden, mask, places)
            if inner:
                hidden = hidden + attended
                inputs, gates = block.feed_forward.up(block.feed_forward_norm(hidden)).chunk(2, -1)
                hidden = hidden + block.feed_forward.down(block.feed_forward.activation(inputs) * gates)
                continue
            hidden = block.attention_norm(hidden + attended)
            transformed = block.feed_forward.down(block.feed_forward.activation(block.feed_forward.up(hidden)))
            hidden = block.feed_forward_norm(hidden + transformed)
        final_norm = getattr(self.encoder, "final_norm", None)
        return hidden if final_norm is None else final_norm(hidden)

    def _embedded(self, ids: Tensor, segments: Tensor | None, places: Tensor) -> Tensor:
        embeddings = getattr(self.encoder.embeddings, "narrow", self.encoder.embeddings)
        hidden: Tensor = embeddings.word(ids)
        if getattr(embeddings, "position", None) is not None:
            hidden = hidden + embeddings.position(places + getattr(embeddings, "first_position", 0))
        if hasattr(embeddings, "token_type"):
            hidden = hidden + embeddings.token_type(torch.zeros_like(ids) if segments is None else segments)
        if hasattr(embeddings, "norm"):
            hidden = embeddings.norm(hidden)
        projection = getattr(self.encoder.embeddings, "projection", None)
        return hidden if projection is None else projection(hidden)

    def _attended(self, attention: Any, hidden: Tensor, mask: Tensor, places: Tensor) -> Tensor:
        parts = attention.query_key_value(hidden).unflatten(-1, (3, attention.num_heads, -1))
        query, key, value = parts.permute(2, 0, 3, 1, 4).unbind(0)  # (sequences, heads, tokens, head_size)
        if (theta := getattr(attention, "theta", None)) is not None:
            query, key = (_rotated(each, places, theta) for each in (query, key))
        ahead = places[None, :] - places[:, None]
        seen = mask[:, None, None, :].bool()
        if attention.causal:
            seen = seen & (ahead <= 0)
        if attention.window is not None:
            seen = seen & (ahead.abs() <= attention.window)
        scores = query @ key.transpose(-1, -2) * query.shape[-1] ** -0.5
        # A finite number: a token of the padding may see nothing, and its row must not become NaN.
        weights = scores.masked_fill(~seen, torch.finfo(scores.dtype).min).softmax(-1)
        context = (weights @ value).transpose(1, 2).flatten(2)
        output: Tensor = attention.output(context)
        return output


def padded_model(loaded: LoadedModel) -> PaddedModel:
    """A model directory's encoder with its head; a head of next sentences is left out.

    Raises:
        SettingsError: see `PaddedModel`; or a left-to-right language model.
    """
    encoder: Any = loaded.encoder
    if loaded.head_kind is not None:
        return PaddedModel(encoder, loaded.head, loaded.head_kind)
    if loaded.is_causal_lm:
        raise SettingsError("a left-to-right language model cannot be exported: fine-tune it, and export that")
    if loaded.masked_lm_head is not None:
        return PaddedModel(encoder, loaded.masked_lm_head, "masked_lm")
    if loaded.discriminator_head is not None:
        return PaddedModel(encoder, loaded.discriminator_head, "discriminator")
    return PaddedModel(encoder, None, "encoder")


def _rotated(values: Tensor, places: Tensor, theta: float) -> Tensor:
    half = values.shape[-1] // 2
    frequencies = 1.0 / theta ** (torch.arange(half, device=places.device).float() / half)
    angles = places[:, None].float() * frequencies  # (tokens, head_size / 2)
    cos, sin = angles.cos(), angles.sin()
    first, second = values.chunk(2, -1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], -1)


def _plain(module: nn.Module) -> nn.Module:
    """A copy whose linear layers are PyTorch's own, with the same weights."""
    copied = copy.deepcopy(module).float().eval()
    for part in list(copied.modules()):
        for name, child in list(part.named_children()):
            if isinstance(child, Linear):
                plain = nn.Linear(1, 1, bias=child.bias is not None)
                plain.weight, plain.bias = child.weight, child.bias
                plain.in_features, plain.out_features = child.in_features, child.out_features
                setattr(part, name, plain)
    return copied
