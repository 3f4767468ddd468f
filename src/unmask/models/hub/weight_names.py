"""Our names of the weights and those of the Hugging Face layout, both ways; `Family.weights` has those of each family.

They differ in two things besides spelling: queries, keys and values are one matrix here and three there, in this order
(one in GPT-1 too); and GPT-1's matrices are stored with the inputs first. ELMo's encoder is saved under our names.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from unmask.models.encoder import Encoder
from unmask.models.family import Names, Part, WeightNames

OLD_SPELLINGS = {"LayerNorm.gamma": "LayerNorm.weight", "LayerNorm.beta": "LayerNorm.bias"}
"""Endings that Google's checkpoints had, as the first converters kept them."""


@dataclass(frozen=True)
class WeightPlace:
    """Where a parameter is in the layout.

    Attributes:
        names: one, or several if the parameter stacks theirs.
        transposed: True where it is stored with the inputs first.
    """

    names: tuple[str, ...]
    transposed: bool = False


def hub_names(encoder: Encoder, heads: Mapping[Part, nn.Module] | None = None) -> dict[nn.Parameter, WeightPlace]:
    """Each parameter, and its place in the layout, with the prefix that the encoder has beside a head."""
    family = encoder.settings.family.weights
    places = own_names(encoder) if encoder.reads_words else {}
    modules: list[tuple[nn.Module, Names, str]] = [(encoder, family.embeddings, family.prefix)]
    modules += [
        (block, family.block, f"{family.prefix}{family.layer}{number}.") for number, block in enumerate(encoder.blocks)
    ]
    if encoder.pooler is not None:
        modules.append((encoder, family.parts["pooler"], family.prefix))
    modules += [(head, family.parts[part], "") for part, head in (heads or {}).items()]
    for module, names, prefix in modules:
        submodules = dict(module.named_modules())
        for our_name in (name for name in names if name in submodules):  # not every ELECTRA has a projection
            for kind, parameter in submodules[our_name].named_parameters(recurse=False):
                theirs = tuple(f"{prefix}{name}.{kind}" for name in names[our_name])
                places[parameter] = WeightPlace(theirs, theirs[0].endswith(family.transposed))
    return places


def own_names(module: nn.Module) -> dict[nn.Parameter, WeightPlace]:
    """Each parameter, in a place of the same name."""
    return {weight: WeightPlace((name,)) for name, weight in module.named_parameters()}


def split(place: WeightPlace, tensor: Tensor) -> dict[str, Tensor]:
    """A tensor (a weight or its gradient) under its names in the layout, in the shapes that it has there."""
    stored = tensor.t() if place.transposed else tensor
    return dict(zip(place.names, torch.chunk(stored, len(place.names)), strict=True))


def join(place: WeightPlace, weights: Mapping[str, Tensor]) -> Tensor:
    """The opposite of `split`: a float32 copy of a place's tensor."""
    stored = torch.cat([weights[name].to(torch.float32) for name in place.names])
    return stored.t().contiguous() if place.transposed else stored


def modernise(weights: Mapping[str, Tensor], family: WeightNames) -> dict[str, Tensor]:
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
