"""Our names of the weights and those of the Hugging Face layout, both ways; `Family.weights` has those of each family.
By them weights are put into modules: every one of them, and none left over.

They differ in two things besides spelling: queries, keys and values are one matrix here and three there, in this order
(one in GPT-1 and ModernBERT too); and GPT-1's matrices are stored with the inputs first. ELMo's encoder is saved under
our names.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from unmask.errors import ModelError
from unmask.models.encoder import Encoder
from unmask.models.family import Names, Part, WeightNames
from unmask.models.hub.files import CONFIG

OLD_SPELLINGS = {"LayerNorm.gamma": "LayerNorm.weight", "LayerNorm.beta": "LayerNorm.bias"}
"""Endings that Google's checkpoints had, as the first converters kept them."""

_MOST_FAULTS = 3
"""Weights that a message names, of each kind of fault."""


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
    parts = torch.chunk(stored, len(place.names)) if len(place.names) > 1 else (stored,)  # which may be a number
    return dict(zip(place.names, parts, strict=True))


def join(place: WeightPlace, weights: Mapping[str, Tensor]) -> Tensor:
    """The opposite of `split`: a float32 copy of a place's tensor."""
    first, *more = (weights[name].to(torch.float32) for name in place.names)
    stored = torch.cat([first, *more]) if more else first.clone(memory_format=torch.contiguous_format)
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


def fill_weights(
    modules: Sequence[nn.Module],
    places: Mapping[nn.Parameter, WeightPlace],
    weights: Mapping[str, Tensor],
    where: Path,
    may_be_left: tuple[str, ...],
) -> tuple[str, ...]:
    """Gives modules, on the meta device or not, copies of their weights, independent of the file, as new parameters:
    call it before anything holds the parameters.

    Args:
        places: of every parameter of the modules.
        where: the directory or file of the weights, for messages.
        may_be_left: name prefixes of weights that may be left over.

    Returns:
        The names of the weights left over.

    Raises:
        ModelError: a weight is missing, left over, of another shape, or not of floats.
    """
    expected = {
        name: tuple(part.shape) for weight, place in places.items() for name, part in split(place, weight).items()
    }
    left = sorted(set(weights) - set(expected))
    found = {name: (weights[name], shape) for name, shape in expected.items() if name in weights}
    faults = [
        *_few(f"{name} {shape} is missing" for name, shape in expected.items() if name not in weights),
        *_few(
            f"{name} has the shape {tuple(weight.shape)}, expected {shape}"
            for name, (weight, shape) in found.items()
            if tuple(weight.shape) != shape
        ),
        *_few(
            f"{name} is of {weight.dtype}, expected floats"
            for name, (weight, _) in found.items()
            if not weight.is_floating_point()
        ),
        *_few(f"{name} is left over" for name in left if not name.startswith(may_be_left)),
    ]
    if faults:
        raise ModelError(
            f"{where}: the weights do not fit {CONFIG}: {'; '.join(faults)}; "
            "get the directory again, or the config.json that belongs to its weights"
        )
    values = {parameter: join(place, weights) for parameter, place in places.items()}
    for module in modules:
        module.load_state_dict({name: values[weight] for name, weight in module.named_parameters()}, assign=True)
    return tuple(left)


def _few(faults: Iterable[str]) -> list[str]:
    """The first faults of one kind, and how many more there are."""
    faults = list(faults)
    more = len(faults) - _MOST_FAULTS
    return [*faults[:_MOST_FAULTS], *([f"{more} more likewise"] if more > 0 else [])]
