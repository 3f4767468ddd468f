"""Activations that are computed again in the backward pass in place of being kept (Chen et al. 2016, "Training deep
nets with sublinear memory cost"): about a third more time, and the memory of one block's activations at once."""

from __future__ import annotations

from functools import partial

from torch import nn
from torch.utils.checkpoint import checkpoint

from unmask.errors import SettingsError


def recompute_blocks(module: nn.Module) -> None:
    """Has every block of the module's encoders keep its input alone. Losses and gradients are the same, bit for bit:
    dropout draws again what it drew.

    Raises:
        SettingsError: the module has no blocks.
    """
    blocks = blocks_of(module)
    if not blocks:
        raise SettingsError("train.recompute=true: this model has no blocks to compute again: leave it out")
    for block in blocks:
        block.forward = partial(checkpoint, block.forward, use_reentrant=False)


def blocks_of(module: nn.Module) -> list[nn.Module]:
    """The blocks of a module's encoders: what is computed again as a whole, or gathered as a whole (`train.shard`)."""
    stacks = [stack for part in module.modules() if isinstance(stack := getattr(part, "blocks", None), nn.ModuleList)]
    return [block for stack in stacks for block in stack]
