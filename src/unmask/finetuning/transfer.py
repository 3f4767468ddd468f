"""Which layers of a pre-trained encoder fine-tuning takes over, and which of them it freezes."""

from __future__ import annotations

from typing import Literal

from unmask.errors import SettingsError
from unmask.models.encoder import Encoder
from unmask.training.optimizers.optimizer import depth


def transfer_layers(encoder: Encoder, loaded: Encoder, num_layers: int) -> None:
    """Gives a fresh encoder the embeddings and the first layers of a pre-trained one (Radford et al. 2018, figure 2).

    The layers above and the pooler keep the random weights that they have.

    Args:
        encoder: freshly initialised, of the sizes of `loaded`.
        num_layers: 0 takes the embeddings alone.

    Raises:
        SettingsError: the encoder has fewer layers.
    """
    top = encoder.settings.num_hidden_layers
    _check_layers("transfer_layers", num_layers, top)
    taken = {name: value for name, value in loaded.state_dict().items() if depth(name, top) <= num_layers}
    encoder.load_state_dict(encoder.state_dict() | taken)


def freeze_layers(encoder: Encoder, layers: int | Literal["all"], *, trains_pooler: bool = False) -> None:
    """Freezes the lower part of an encoder: its weights stay as they are, and its dropout is off.

    Args:
        layers: 0 freezes the embeddings, n also the first n layers, `all` the whole encoder.
        trains_pooler: True leaves the pooler out of `all`, so that one with random weights is learned with the head.

    Raises:
        SettingsError: the encoder has fewer layers.
    """
    top = encoder.settings.num_hidden_layers
    if layers != "all":
        _check_layers("freeze_layers", layers, top)
    for name, parameter in encoder.named_parameters():
        is_pooler = name.startswith("pooler.")
        is_frozen = not (is_pooler and trains_pooler) if layers == "all" else depth(name, top) <= layers
        if is_frozen:
            parameter.requires_grad_(False)


def _check_layers(key: str, num_layers: int, most: int) -> None:
    if not 0 <= num_layers <= most:
        raise SettingsError(f"{key}={num_layers}: the model has {most} layers: expected a number from 0 to {most}")
