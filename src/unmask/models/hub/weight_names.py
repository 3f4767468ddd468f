"""Our names of the weights and those of the Hugging Face layout, family by family, both ways.

They differ in two things besides spelling: queries, keys and values are one matrix here and three there, in this order
(one in GPT-1 too); and GPT-1's matrices are stored with the inputs first.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from unmask.models.encoder import TokenEncoder
from unmask.models.heads.heads import HeadKind
from unmask.models.settings import Architecture

Names = dict[str, tuple[str, ...]]
"""Our name of a module -> theirs; several if ours stacks theirs."""

Part = Literal["pooler", "masked_lm_head", "next_sentence_head", "discriminator_head", "causal_lm"] | HeadKind
"""What stands beside embeddings and blocks. `causal_lm` has no weights of its own."""

_BLOCK: Names = {
    "attention.query_key_value": ("attention.self.query", "attention.self.key", "attention.self.value"),
    "attention.output": ("attention.output.dense",),
    "attention_norm": ("attention.output.LayerNorm",),
    "feed_forward.up": ("intermediate.dense",),
    "feed_forward.down": ("output.dense",),
    "feed_forward_norm": ("output.LayerNorm",),
}
"""Of BERT, RoBERTa and ELECTRA."""

_EMBEDDINGS: Names = {
    "embeddings.word": ("embeddings.word_embeddings",),
    "embeddings.position": ("embeddings.position_embeddings",),
    "embeddings.token_type": ("embeddings.token_type_embeddings",),
    "embeddings.norm": ("embeddings.LayerNorm",),
}
"""Of BERT and RoBERTa."""

_CONSTANTS = re.compile(r"embeddings\.(position|token_type)_ids")


@dataclass(frozen=True)
class FamilyNames:
    """The names of one family.

    Attributes:
        prefix: stands before the encoder's names in a directory that has a head.
        embeddings: of the encoder.
        layer: stands before the number of a block.
        block: of each block.
        parts: of the other parts; the pooler belongs to the encoder, and has the prefix.
        tied: weights that some directories hold twice -> the one that they must equal.
        constants: names, without the prefix, of what older versions of `transformers` stored among the weights.
        transposed: endings of the names of blocks' matrices that are stored with the inputs first.
    """

    prefix: str
    embeddings: Names
    layer: str
    block: Names
    parts: dict[Part, Names]
    tied: dict[str, str]
    constants: re.Pattern[str] = _CONSTANTS
    transposed: tuple[str, ...] = ()

    @property
    def pooler_prefix(self) -> str:
        return f"{self.prefix}pooler."

    @property
    def encoder_prefixes(self) -> tuple[str, ...]:
        """What the encoder's names begin with, without the prefix."""
        embeddings = {names[0].split(".")[0] + "." for names in self.embeddings.values()}
        return (*sorted(embeddings), self.layer, "pooler.")

    @property
    def head_prefixes(self) -> tuple[str, ...]:
        """What the names of any head begin with, the pooler aside."""
        theirs = [name for part in self.parts.values() for names in part.values() for name in names]
        return tuple(sorted({name.split(".")[0] + "." for name in (*theirs, *self.tied)} - {"pooler."}))


BERT = FamilyNames(
    prefix="bert.",
    embeddings=_EMBEDDINGS,
    layer="encoder.layer.",
    block=_BLOCK,
    parts={
        "pooler": {"pooler.dense": ("pooler.dense",)},
        "masked_lm_head": {
            "dense": ("cls.predictions.transform.dense",),
            "norm": ("cls.predictions.transform.LayerNorm",),
            "": ("cls.predictions",),  # the bias, which is no module's
        },
        "next_sentence_head": {"dense": ("cls.seq_relationship",)},
        "sequence_classification": {"dense": ("classifier",)},
        "token_classification": {"dense": ("classifier",)},
        "question_answering": {"dense": ("qa_outputs",)},
        "multiple_choice": {"dense": ("classifier",)},
    },
    tied={
        "cls.predictions.decoder.weight": "bert.embeddings.word_embeddings.weight",
        "cls.predictions.decoder.bias": "cls.predictions.bias",
    },
)

ROBERTA = FamilyNames(
    prefix="roberta.",
    embeddings=_EMBEDDINGS,
    layer="encoder.layer.",
    block=_BLOCK,
    parts={
        "pooler": {"pooler.dense": ("pooler.dense",)},
        "masked_lm_head": {"dense": ("lm_head.dense",), "norm": ("lm_head.layer_norm",), "": ("lm_head",)},
        "sequence_classification": {"dense": ("classifier.dense",), "output": ("classifier.out_proj",)},
        "token_classification": {"dense": ("classifier",)},
        "question_answering": {"dense": ("qa_outputs",)},
        "multiple_choice": {"dense": ("classifier",)},
    },
    tied={
        "lm_head.decoder.weight": "roberta.embeddings.word_embeddings.weight",
        "lm_head.decoder.bias": "lm_head.bias",
    },
)

ELECTRA = FamilyNames(
    prefix="electra.",
    embeddings={
        "embeddings.narrow.word": ("embeddings.word_embeddings",),
        "embeddings.narrow.position": ("embeddings.position_embeddings",),
        "embeddings.narrow.token_type": ("embeddings.token_type_embeddings",),
        "embeddings.narrow.norm": ("embeddings.LayerNorm",),
        "embeddings.projection": ("embeddings_project",),
    },
    layer="encoder.layer.",
    block=_BLOCK,
    parts={
        "masked_lm_head": {
            "dense": ("generator_predictions.dense",),
            "norm": ("generator_predictions.LayerNorm",),
            "": ("generator_lm_head",),
        },
        "discriminator_head": {
            "dense": ("discriminator_predictions.dense",),
            "output": ("discriminator_predictions.dense_prediction",),
        },
        "sequence_classification": {"dense": ("classifier.dense",), "output": ("classifier.out_proj",)},
        "token_classification": {"dense": ("classifier",)},
        "question_answering": {"dense": ("qa_outputs",)},
        "multiple_choice": {"dense": ("sequence_summary.summary",), "output": ("classifier",)},
    },
    tied={"generator_lm_head.weight": "electra.embeddings.word_embeddings.weight"},
)

GPT1 = FamilyNames(
    prefix="transformer.",
    embeddings={"embeddings.word": ("tokens_embed",), "embeddings.position": ("positions_embed",)},
    layer="h.",
    block={
        "attention.query_key_value": ("attn.c_attn",),
        "attention.output": ("attn.c_proj",),
        "attention_norm": ("ln_1",),
        "feed_forward.up": ("mlp.c_fc",),
        "feed_forward.down": ("mlp.c_proj",),
        "feed_forward_norm": ("ln_2",),
    },
    parts={"sequence_classification": {"dense": ("score",)}},
    tied={"lm_head.weight": "transformer.tokens_embed.weight"},
    constants=re.compile(r"h\.\d+\.attn\.bias|position_ids"),
    transposed=("attn.c_attn.weight", "attn.c_proj.weight", "mlp.c_fc.weight", "mlp.c_proj.weight"),
)

LSTM = FamilyNames(
    prefix="encoder.",
    embeddings={"embeddings.word": ("embeddings.word",)},
    layer="layers.",
    block={"lstm": ("lstm",), "projection": ("projection",)},
    parts={},
    tied={},
)
"""Of our own: `transformers` has no such model."""

FAMILIES: dict[Architecture, FamilyNames] = {
    "bert": BERT,
    "roberta": ROBERTA,
    "electra": ELECTRA,
    "gpt1": GPT1,
    "lstm": LSTM,
}

OLD_SPELLINGS = {"LayerNorm.gamma": "LayerNorm.weight", "LayerNorm.beta": "LayerNorm.bias"}
"""Endings that Google's checkpoints had, as the first converters kept them."""


@dataclass(frozen=True)
class Place:
    """Where a parameter stands in the layout.

    Attributes:
        names: one, or several if the parameter stacks theirs.
        transposed: True where it is stored with the inputs first.
    """

    names: tuple[str, ...]
    transposed: bool = False


def hub_names(
    encoder: TokenEncoder,
    masked_lm_head: nn.Module | None = None,
    next_sentence_head: nn.Module | None = None,
    discriminator_head: nn.Module | None = None,
    head: nn.Module | None = None,
    head_kind: HeadKind | None = None,
) -> dict[nn.Parameter, Place]:
    """Each parameter, and its place in the layout, with the prefix that the encoder has beside a head."""
    family = FAMILIES[encoder.settings.architecture]
    modules: list[tuple[nn.Module, Names, str]] = [(encoder, family.embeddings, family.prefix)]
    modules += [
        (block, family.block, f"{family.prefix}{family.layer}{number}.") for number, block in enumerate(encoder.blocks)
    ]
    if encoder.pooler is not None:
        modules.append((encoder, family.parts["pooler"], family.prefix))
    if masked_lm_head is not None:
        modules.append((masked_lm_head, family.parts["masked_lm_head"], ""))
    if next_sentence_head is not None:
        modules.append((next_sentence_head, family.parts["next_sentence_head"], ""))
    if discriminator_head is not None:
        modules.append((discriminator_head, family.parts["discriminator_head"], ""))
    if head is not None:
        assert head_kind is not None, "a head is of some kind"
        modules.append((head, family.parts[head_kind], ""))
    places = {}
    for module, names, prefix in modules:
        submodules = dict(module.named_modules())
        for our_name in (name for name in names if name in submodules):  # not every ELECTRA has a projection
            for kind, parameter in submodules[our_name].named_parameters(recurse=False):
                theirs = tuple(f"{prefix}{name}.{kind}" for name in names[our_name])
                places[parameter] = Place(theirs, theirs[0].endswith(family.transposed))
    return places


def split(place: Place, tensor: Tensor) -> dict[str, Tensor]:
    """A tensor (a weight or its gradient) under its names in the layout, in the shapes that it has there."""
    stored = tensor.t() if place.transposed else tensor
    return dict(zip(place.names, torch.chunk(stored, len(place.names)), strict=True))


def join(place: Place, weights: Mapping[str, Tensor]) -> Tensor:
    """The opposite of `split`: a float32 copy of a place's tensor."""
    stored = torch.cat([weights[name].to(torch.float32) for name in place.names])
    return stored.t().contiguous() if place.transposed else stored


def modernise(weights: Mapping[str, Tensor], family: FamilyNames) -> dict[str, Tensor]:
    """The weights of a directory under the names that `transformers` gives them today, the prefix before the encoder's.

    Old spellings are replaced, the prefix that an encoder alone lacks is put in, and constants are left out.
    """
    modern = {}
    for name, tensor in weights.items():
        bare = name.removeprefix(family.prefix)
        if family.constants.fullmatch(bare):
            continue
        if name.startswith(family.encoder_prefixes):
            name = family.prefix + name
        for old, new in OLD_SPELLINGS.items():
            name = name.removesuffix(old) + new if name.endswith(old) else name
        modern[name] = tensor
    return modern
