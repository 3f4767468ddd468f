"""One encoder as another: of another family, with or without a pooler, with a larger vocabulary.

For pre-training that goes on from a model under another objective, or on text with words of its own. Hidden states are
the same before and after, to rounding.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from unmask.errors import SettingsError
from unmask.models.bert import Pooler
from unmask.models.electra import embedding_size
from unmask.models.elmo import ElmoEncoder
from unmask.models.encoder import Encoder, TokenEncoder, new_encoder
from unmask.models.heads import MaskedLMHead
from unmask.models.settings import AnyArchitecture, Architecture, EncoderSettings
from unmask.models.span_boundary_head import SpanBoundaryHead

_EMBEDDINGS = {"bert": "embeddings.", "electra": "embeddings.narrow."}
"""Where the embeddings stand in the families that can become one another."""


def convert_encoder(encoder: Encoder, architecture: AnyArchitecture, *, pooler: bool | None = None) -> Encoder:
    """An encoder as one of another family that computes the same hidden states.

    BERT becomes ELECTRA, whose embeddings are then as wide as its hidden states and not projected, and ELECTRA without
    a projection becomes BERT.

    Args:
        encoder: left as it is.
        architecture: the family that it shall be of; its own changes nothing but the pooler.
        pooler: whether it shall have one, where the family knows poolers; a fresh one is drawn from PyTorch's default
            generator where there is none. None: as it is.

    Returns:
        An encoder with copies of the weights; `encoder` itself where there is nothing to change.

    Raises:
        SettingsError: no encoder of that family computes the same hidden states, or a pooler is asked for that reads
            the first token of a causal encoder.
    """
    if isinstance(encoder, ElmoEncoder) or architecture == "elmo":
        assert encoder.settings.architecture == architecture, "no objective for both"
        return encoder
    settings = encoder.settings
    has_pooler = encoder.pooler is not None
    knows_poolers = architecture in ("bert", "roberta")
    wants_pooler = knows_poolers and (has_pooler if pooler is None else pooler)
    if architecture == settings.architecture and wants_pooler == has_pooler:
        return encoder
    if architecture != settings.architecture and (reason := _why_not(settings, architecture)):
        raise SettingsError(
            f"an encoder of the family {settings.architecture} cannot become one of the family {architecture}: "
            f"{reason}; start from a model of the family {architecture}, or take model.architecture="
            f"{settings.architecture} and an objective for it"
        )
    narrow = embedding_size(settings) if architecture == "electra" else None
    sizes = EncoderSettings(
        **settings.model_dump(exclude={"architecture", "embedding_size"}),
        architecture=architecture,
        embedding_size=narrow,
    )
    with torch.device("meta"):
        converted = new_encoder(sizes, pooler=wants_pooler)
    before, after = _EMBEDDINGS.get(settings.architecture, ""), _EMBEDDINGS.get(architecture, "")
    weights = {
        (after + name.removeprefix(before) if name.startswith(before) else name): weight.clone()
        for name, weight in encoder.state_dict().items()
        if wants_pooler or not name.startswith("pooler.")
    }
    if wants_pooler and not has_pooler:
        fresh = Pooler(sizes.hidden_size, sizes.initializer_range)
        weights |= {f"pooler.{name}": weight for name, weight in fresh.state_dict().items()}
    converted.load_state_dict(weights, assign=True)
    return converted.train(encoder.training)


def widen_vocabulary(
    encoder: TokenEncoder,
    heads: Sequence[MaskedLMHead | SpanBoundaryHead],
    new_size: int,
    pieces: Sequence[Sequence[int]],
) -> None:
    """Gives an encoder, and the heads tied to its word embeddings, more vocabulary entries, in place.

    A new entry starts as the mean of what it was written with before: its embedding is the mean of its pieces'
    embeddings, its bias in a head that of theirs. The tokens that were there keep their embeddings, so hidden states of
    texts in them stay as they are.

    Args:
        encoder: its settings get the new size.
        heads: each with a bias for every entry; the decoders are tied and have no other weights.
        new_size: entries of the vocabulary afterwards.
        pieces: of each new entry, by the ids before, such as those that the old tokenizer gives for its text; an entry
            without any (a new special token) starts as the mean of all.
    """
    old_size = encoder.settings.vocab_size
    assert new_size - old_size == len(pieces), "pieces for each new entry"
    assert all(0 <= piece < old_size for entry in pieces for piece in entry), "pieces are old entries"
    words = next(
        part for part in encoder.modules() if isinstance(part, nn.Embedding) and part.weight is encoder.word_embeddings
    )
    if words.num_embeddings == old_size:  # else shared with an encoder that has them already
        words.weight = nn.Parameter(_widened(words.weight, pieces), requires_grad=words.weight.requires_grad)
        words.num_embeddings = new_size
    for head in heads:
        head.bias = nn.Parameter(_widened(head.bias, pieces), requires_grad=head.bias.requires_grad)
    encoder.settings = encoder.settings.model_copy(update={"vocab_size": new_size})


@torch.no_grad()
def _widened(rows: Tensor, pieces: Sequence[Sequence[int]]) -> Tensor:
    """The rows, and after them the mean of those of each new entry's pieces."""
    new = [rows[list(entry)].mean(0) if entry else rows.mean(0) for entry in pieces]
    return torch.cat([rows, torch.stack(new)]) if new else rows.clone()


def _why_not(settings: EncoderSettings, architecture: Architecture) -> str | None:
    """Why hidden states would be others; None where they are the same."""
    if (settings.architecture, architecture) == ("bert", "electra"):
        return "model.causal is true, and ELECTRA reads in both directions" if settings.causal else None
    if (settings.architecture, architecture) == ("electra", "bert"):
        if embedding_size(settings) == settings.hidden_size:
            return None
        return (
            f"its embeddings of embedding_size {settings.embedding_size} are projected to hidden_size "
            f"{settings.hidden_size}, and BERT has no such projection"
        )
    return "only bert and electra without a projection compute the same from the same weights"
