"""Converts encoders: BERT to ELECTRA, ModernBERT to a deeper one, and any to one with more vocabulary entries or other
dropout.

For continued pre-training under another objective, or on text with new words, and for fine-tuning. Hidden states are
the same before and after, up to rounding and dropout.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import torch
from pydantic import ValidationError
from torch import Tensor, nn

from unmask.errors import SettingsError
from unmask.models.bert import BertEncoder
from unmask.models.electra import ElectraEncoder
from unmask.models.elmo.settings import ElmoSettings
from unmask.models.encoder import Encoder, TokenEncoder, new_encoder
from unmask.models.heads.heads import MaskedLMHead
from unmask.models.heads.span_boundary_head import SpanBoundaryHead
from unmask.models.modernbert import ModernBertEncoder
from unmask.models.settings import EncoderSettings, reasons
from unmask.models.sizes import Sizes

AnySizes = TypeVar("AnySizes", EncoderSettings, ElmoSettings, Sizes)
EncoderT = TypeVar("EncoderT", bound=Encoder)


def sizes_with_dropout(sizes: AnySizes, dropout: Mapping[str, float], name: str) -> AnySizes:
    """The same sizes with other dropout.

    Args:
        dropout: `hidden_dropout_prob` and `attention_probs_dropout_prob`, those that change. Dropout after the
            embeddings that has a key of its own (GPT-1's, ModernBERT's) goes with the former.

    Raises:
        SettingsError: the family has no such dropout.
    """
    given: dict[str, float | None] = dict(dropout)
    if isinstance(sizes, EncoderSettings) and "hidden_dropout_prob" in given:
        given["embedding_dropout_prob"] = None
    try:
        return type(sizes).model_validate(sizes.model_dump() | given) if given else sizes
    except ValidationError as error:
        raise SettingsError(
            f"model.* does not fit init_from={name}, of the family {sizes.architecture}: {reasons(error)}"
        ) from error


def with_dropout(encoder: EncoderT, dropout: Mapping[str, float], name: str) -> EncoderT:
    """An encoder with the same parameters and other dropout; see `sizes_with_dropout`."""
    sizes = sizes_with_dropout(encoder.settings, dropout, name)
    if sizes == encoder.settings:
        return encoder
    with torch.device("meta"):
        other = new_encoder(sizes, pooler=encoder.pooler is not None)
    other.load_state_dict(encoder.state_dict(keep_vars=True), assign=True)
    assert isinstance(other, type(encoder)), "the family is the same"
    return other.train(encoder.training)


def bert_as_electra(bert: BertEncoder) -> ElectraEncoder:
    """A BERT as an ELECTRA that computes the same hidden states: its embeddings are as wide as the hidden states, and
    not projected.

    Args:
        bert: a bidirectional one; left as it is.

    Returns:
        An encoder with copies of the weights, a pooler's left out.
    """
    settings = bert.settings
    assert (settings.architecture, settings.causal) == ("bert", False), "no other computes the same"
    sizes = EncoderSettings(
        **settings.model_dump(exclude={"architecture", "embedding_size"}),
        architecture="electra",
        embedding_size=settings.hidden_size,
    )
    with torch.device("meta"):
        electra = ElectraEncoder(sizes)
    weights = {
        name.replace("embeddings.", "embeddings.narrow.", 1) if name.startswith("embeddings.") else name: weight.clone()
        for name, weight in bert.state_dict().items()
        if not name.startswith("pooler.")
    }
    electra.load_state_dict(weights, assign=True)
    return electra.train(bert.training)


@torch.no_grad()
def deepened(encoder: ModernBertEncoder, num_layers: int) -> ModernBertEncoder:
    """An encoder with more layers and the same hidden states: between its blocks stand copies of them whose output
    projections are zero (Wu et al. 2024, "LLaMA Pro", section 3.2).

    They begin as nothing and learn from the first step on, the rest of their weights being learnt already. A copy
    attends as its original does, globally or locally, as far as the sizes allow.

    Args:
        encoder: left as it is.
        num_layers: at least as many as it has.
    """
    settings = encoder.settings.model_copy(update={"num_hidden_layers": num_layers})
    deeper = ModernBertEncoder(settings)
    around = {name: weight for name, weight in encoder.state_dict().items() if not name.startswith("blocks.")}
    deeper.load_state_dict(around, strict=False)
    blocks: list[Any] = list(deeper.blocks)
    originals: list[Any] = list(encoder.blocks)
    old, new = ([block.attention.window for block in each] for each in (originals, blocks))
    kept = _spread(old, new)
    for place, block in enumerate(blocks):
        alike = [number for number, window in enumerate(old) if window == new[place]] or range(len(old))
        source = kept.index(place) if place in kept else min(alike, key=lambda number: abs(kept[number] - place))
        block.load_state_dict(originals[source].state_dict(), strict=False)  # the first has a norm less
        if place not in kept:
            for output in (block.attention.output, block.feed_forward.down):
                for parameter in output.parameters():
                    parameter.zero_()
    return deeper.train(encoder.training)


def _spread(old: Sequence[object], new: Sequence[object]) -> list[int]:
    """Where each of the old kinds of block stands among more new ones: evenly, in order, each at one of its own kind if
    all can be. Kinds `a b b a` among `a b b a b b a b` are at 0, 2, 4 and 6."""
    latest: list[int] = []  # places that leave the blocks behind them places of their kinds
    for kind in reversed(old):
        end = latest[0] if latest else len(new)
        latest.insert(0, next((place for place in range(end - 1, -1, -1) if new[place] == kind), -1))
    if latest[0] < 0:
        latest = list(range(len(new) - len(old), len(new)))
    places: list[int] = []
    for number, (kind, last) in enumerate(zip(old, latest, strict=True)):
        earliest = max(places[-1] + 1 if places else 0, number * len(new) // len(old))
        places.append(next((place for place in range(earliest, last + 1) if new[place] == kind), min(earliest, last)))
    return places


def widen_vocabulary(
    encoder: TokenEncoder,
    heads: Sequence[MaskedLMHead | SpanBoundaryHead],
    vocab_size: int,
    pieces: Sequence[Sequence[int]],
) -> None:
    """Gives an encoder, and the heads tied to its word embeddings, new vocabulary entries, in place.

    A new entry starts as the mean of the pieces that it was written with before: its embedding is the mean of their
    embeddings, its bias in a head the mean of their biases. Old tokens keep their embeddings, so the hidden states of
    texts written with them stay as they are. New entries first take the unused rows of a padded vocabulary; padding
    beyond them stays.

    Args:
        encoder: its settings get the new size, where that is larger.
        heads: what they have for every entry, a bias or a decoder of their own, are their only own parameters.
        vocab_size: entries of the tokenizer afterwards, the new ones at their end.
        pieces: of each new entry, as old ids, such as those that the old tokenizer gives for its text; an entry without
            any (a new special token) starts as the mean of all entries.
    """
    first, old_size = vocab_size - len(pieces), encoder.settings.vocab_size
    assert first <= old_size, "pieces for each new entry"
    assert all(0 <= piece < first for entry in pieces for piece in entry), "pieces are old entries"
    words = next(
        part for part in encoder.modules() if isinstance(part, nn.Embedding) and part.weight is encoder.word_embeddings
    )
    if words.num_embeddings == old_size:  # else shared with an encoder that has them already
        words.weight = nn.Parameter(_widened(words.weight, first, pieces), requires_grad=words.weight.requires_grad)
        words.num_embeddings = len(words.weight)
    for head in heads:
        for name, rows in head.named_parameters(recurse=False):  # its bias, and the weights of a decoder of its own
            setattr(head, name, nn.Parameter(_widened(rows, first, pieces), requires_grad=rows.requires_grad))
    encoder.settings = encoder.settings.model_copy(update={"vocab_size": words.num_embeddings})


@torch.no_grad()
def _widened(rows: Tensor, first: int, pieces: Sequence[Sequence[int]]) -> Tensor:
    """The rows, with those from `first` on replaced by the mean over each new entry's pieces."""
    known = rows[:first]
    new = [known[list(entry)].mean(0, keepdim=True) if entry else known.mean(0, keepdim=True) for entry in pieces]
    return torch.cat([known, *new, rows[first + len(new) :]])
