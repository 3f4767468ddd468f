"""Parameters, gradients and optimizer state divided among the processes of a run, for models that do not fit into one
device (Rajbhandari et al. 2020, "ZeRO", stage 3; PyTorch's `fully_shard`).

Each process keeps a part of every parameter. A block's parameters are gathered when it computes, and its gradients are
summed into the parts. What a checkpoint holds is gathered, so that it is one of an undivided run.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from unmask.errors import SettingsError
from unmask.training.distributed import Ranks
from unmask.training.recompute import blocks_of
from unmask.training.settings import OPTIMIZERS, Cut, OptimizerSettings, TrainSettings


def check_sharding(settings: TrainSettings, optimizer: OptimizerSettings, cuts: list[Cut], ranks: Ranks) -> None:
    """Refuses, by a SettingsError, what does not go with divided parameters.

    Args:
        cuts: how the steps of each phase are cut.
    """
    if ranks.size == 1:
        raise SettingsError("train.shard=true divides a model among processes: start it with torchrun")
    is_divisible = OPTIMIZERS[optimizer.name].is_divisible
    if not is_divisible or optimizer.layer_decay != 1:
        key = f"layer_decay={optimizer.layer_decay:g}" if is_divisible else f"name={optimizer.name}"
        raise SettingsError(
            f"train.shard=true and optimizer.{key} do not go together: a divided model needs an element-wise optimizer "
            "with one learning rate; take adamw without layer_decay"
        )
    if settings.weight_averaging is not None:
        raise SettingsError("train.shard=true and train.weight_averaging do not go together: leave one out")
    if settings.micro_batch_size == "auto":
        raise SettingsError("train.shard=true and train.micro_batch_size=auto do not go together: give a number")
    for cut in cuts:
        batch_size, most = cut.batch_size, cut.micro_batch_size
        if ranks.size * -(-batch_size // (most * ranks.size)) > batch_size:
            raise SettingsError(
                f"train.shard=true: steps of {batch_size} sequences in micro-batches of {most} do not give each of "
                f"{ranks.size} processes as many: take a batch_size that is a multiple of their number"
            )


def shard(module: nn.Module, ranks: Ranks, device: torch.device) -> None:
    """Divides a module: its blocks, and with the module itself whatever is in none of them. The module may be in the
    machine's memory: each block goes to the device by itself, and only this process's part of it stays there."""
    from torch.distributed.device_mesh import DeviceMesh  # these take a second to import
    from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method

    mesh = DeviceMesh.from_group(ranks.group, device.type)
    for block in blocks_of(module):
        fully_shard(block, mesh=mesh)
    fully_shard(module, mesh=mesh)
    register_fsdp_forward_method(module, "scores")


def local(tensor: Tensor) -> Tensor:
    """This process's part of a divided tensor; any other tensor itself."""
    part: Tensor = tensor.to_local() if is_divided(tensor) else tensor  # type: ignore[attr-defined]
    return part


def whole(tensor: Tensor) -> Tensor:
    """A divided tensor, gathered: all processes have to ask for it. Any other tensor itself."""
    gathered: Tensor = tensor.full_tensor() if is_divided(tensor) else tensor  # type: ignore[attr-defined]
    return gathered


def divided_like(value: Tensor, own: Tensor) -> Tensor:
    """A whole tensor, divided as another is; each process has the whole."""
    if not is_divided(own):
        return value
    from torch.distributed.tensor import distribute_tensor

    place: Any = own
    return distribute_tensor(value.to(own.device), place.device_mesh, place.placements, src_data_rank=None)


def is_divided(tensor: Tensor) -> bool:
    """Whether it is a `DTensor`, which only `shard` makes."""
    return hasattr(tensor, "full_tensor")
