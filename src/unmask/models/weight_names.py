"""Our names of the weights and those of the Hugging Face layout of BERT, both ways.

They differ in one thing besides spelling: queries, keys and values are one matrix here and three there, in this order.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

import torch
from torch import Tensor, nn

from unmask.models.bert import BertEncoder
from unmask.models.heads import MaskedLMHead, NextSentenceHead, SequenceClassifier

Names = dict[str, tuple[str, ...]]
"""Our name of a module -> theirs; several where ours is theirs one under another."""

EMBEDDINGS: Names = {
    "embeddings.word": ("embeddings.word_embeddings",),
    "embeddings.position": ("embeddings.position_embeddings",),
    "embeddings.token_type": ("embeddings.token_type_embeddings",),
    "embeddings.norm": ("embeddings.LayerNorm",),
}

BLOCK: Names = {
    "attention.query_key_value": ("attention.self.query", "attention.self.key", "attention.self.value"),
    "attention.output": ("attention.output.dense",),
    "attention_norm": ("attention.output.LayerNorm",),
    "feed_forward.up": ("intermediate.dense",),
    "feed_forward.down": ("output.dense",),
    "feed_forward_norm": ("output.LayerNorm",),
}

POOLER: Names = {"pooler.dense": ("pooler.dense",)}

MASKED_LM_HEAD: Names = {
    "dense": ("cls.predictions.transform.dense",),
    "norm": ("cls.predictions.transform.LayerNorm",),
    "": ("cls.predictions",),  # the bias, which is no module's
}

NEXT_SENTENCE_HEAD: Names = {"dense": ("cls.seq_relationship",)}

CLASSIFIER: Names = {"dense": ("classifier",)}

OLD_SPELLINGS = {"LayerNorm.gamma": "LayerNorm.weight", "LayerNorm.beta": "LayerNorm.bias"}
"""Endings that Google's checkpoints had, as the first converters kept them."""

PREFIX = "bert."
"""Stands before the encoder's names in a directory that has a head."""

WORD_EMBEDDINGS = "bert.embeddings.word_embeddings.weight"
TIED = {"cls.predictions.decoder.weight": WORD_EMBEDDINGS, "cls.predictions.decoder.bias": "cls.predictions.bias"}
"""Weights that some directories hold twice, and the one that they must equal."""

NOT_WEIGHTS = ("embeddings.position_ids", "embeddings.token_type_ids")
"""Constants that older versions of `transformers` stored among the weights."""


def hub_names(
    encoder: BertEncoder,
    masked_lm_head: MaskedLMHead | None = None,
    next_sentence_head: NextSentenceHead | None = None,
    classifier: SequenceClassifier | None = None,
) -> dict[nn.Parameter, tuple[str, ...]]:
    """Each parameter, and its names in the layout (with `bert.`): several where it is theirs one under another."""
    parts: list[tuple[nn.Module, Names, str]] = [(encoder, EMBEDDINGS, PREFIX)]
    parts += [(block, BLOCK, f"{PREFIX}encoder.layer.{number}.") for number, block in enumerate(encoder.blocks)]
    if encoder.pooler is not None:
        parts.append((encoder, POOLER, PREFIX))
    heads = ((masked_lm_head, MASKED_LM_HEAD), (next_sentence_head, NEXT_SENTENCE_HEAD), (classifier, CLASSIFIER))
    parts += [(head, names, "") for head, names in heads if head is not None]
    return {
        parameter: tuple(f"{prefix}{their_name}.{kind}" for their_name in their_names)
        for module, names, prefix in parts
        for our_name, their_names in names.items()
        for kind, parameter in module.get_submodule(our_name).named_parameters(recurse=False)
    }


def split(parameter_names: Iterable[str], tensor: Tensor) -> dict[str, Tensor]:
    """A tensor (a weight or its gradient) under its names in the layout."""
    names = tuple(parameter_names)
    return dict(zip(names, torch.chunk(tensor, len(names)), strict=True))


def modernise(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The weights of a directory under the names that `transformers` gives them today, `bert.` before the encoder's.

    Old spellings are replaced, the prefix that a bare `BertModel` lacks is put in, and constants are left out.
    """
    modern = {}
    for name, tensor in weights.items():
        if name.removeprefix(PREFIX) in NOT_WEIGHTS:
            continue
        if re.match(r"(embeddings|encoder|pooler)\.", name):
            name = PREFIX + name
        for old, new in OLD_SPELLINGS.items():
            name = name.removesuffix(old) + new if name.endswith(old) else name
        modern[name] = tensor
    return modern
