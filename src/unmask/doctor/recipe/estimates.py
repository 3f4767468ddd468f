"""What a module takes, worked out before it is trained: parameters, moments, what a pass keeps, checkpoints."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from unmask.batch import Batch
from unmask.models.settings import EncoderSettings
from unmask.models.trained import TrainedModule
from unmask.objectives.base import Objective, ObjectiveModule, fresh_module
from unmask.objectives.table import new_objective
from unmask.recipe.tree import PretrainRecipe
from unmask.tokenization.vocabulary import Vocabulary
from unmask.training.device import Compute
from unmask.training.optimizers.muon import split_groups
from unmask.training.optimizers.optimizer import parameter_groups
from unmask.training.recompute import recompute_blocks
from unmask.training.settings import OPTIMIZERS, OptimizerSettings, TrainSettings

FLOAT32 = 4
"""Bytes of a weight, a gradient and each of the optimizer's moments."""

MEASURED_TOKENS = 2048
"""Few enough for any machine, and enough to get the same kernels as a whole micro-batch."""


def bare_module(settings: PretrainRecipe, sizes: EncoderSettings) -> ObjectiveModule:
    """The module that a recipe trains, without memory for its weights."""
    objective = new_objective(settings.objective, any_vocabulary(sizes.vocab_size))
    with torch.device("meta"):
        return fresh_module(objective, sizes)


def count_parameters(module: ObjectiveModule) -> dict[str, int]:
    """The number of parameters of a module by part: `embeddings`, `blocks`, a further model by its folder in the model
    directory, `heads`. Parts that it lacks are left out.

    Parameters that several parts share, such as decoder and word embeddings, are counted once.
    """
    further = {
        id(parameter): folder
        for folder, kept in module.saved().items()
        if folder
        for part in (kept.encoder, *kept.all_heads)
        for parameter in part.parameters()
    }
    counts = dict.fromkeys(("embeddings", "blocks", *dict.fromkeys(further.values()), "heads"), 0)
    for name, parameter in module.named_parameters():
        own = next((part for part in ("embeddings", "blocks") if name.startswith(f"encoder.{part}.")), None)
        counts[own or further.get(id(parameter), "heads")] += parameter.numel()
    return {part: count for part, count in counts.items() if count}


def count_moments(module: nn.Module, settings: OptimizerSettings, train: TrainSettings) -> int:
    """Numbers that the optimizer keeps, with the mean of each parameter where weights are averaged; of matrices `muon`
    keeps one moment for each parameter."""
    groups, moments = parameter_groups(module, 0.0, 1.0), OPTIMIZERS[settings.name].moments
    means = 0 if train.weight_averaging is None else _count(groups)
    if settings.name == "muon":
        others, matrices = split_groups(module, groups, 1.0)
        return moments * _count(others) + _count(matrices) + means
    return moments * _count(groups) + means


def _count(groups: list[dict[str, Any]]) -> int:
    return sum(int(parameter.numel()) for group in groups for parameter in group["params"])


def any_vocabulary(size: int) -> Vocabulary:
    """A vocabulary of that size, where only the size matters."""
    return Vocabulary(size, mask_id=0, special_ids=(0,), continuation=np.zeros(size, dtype=np.bool_))


@dataclass(frozen=True)
class MemoryEstimate:
    """Bytes that training takes at its peak."""

    weights: int
    gradients: int
    optimizer: int
    casts: int  # copies of the weights in bfloat16, if products are computed in it
    activations: int  # what a micro-batch keeps for its backward pass
    logits: int  # gradients of the logits over the vocabulary, of the most that are there at once

    @property
    def fixed(self) -> int:
        """The bytes that do not depend on the micro-batch."""
        return self.weights + self.gradients + self.optimizer + self.casts

    @property
    def per_batch(self) -> int:
        return self.activations + self.logits

    @property
    def total(self) -> int:
        return self.fixed + self.per_batch


def measure_saved_bytes(
    sizes: EncoderSettings,
    num_blocks: int,
    batch: Batch,
    objective: Objective,
    compute: Compute,
    recompute: bool = False,
) -> int:
    """Bytes that a forward pass with `num_blocks` blocks keeps for the backward pass; the largest of its stages.

    Weights, their casts, and the gradient of the word embeddings that a decoder computes beforehand are left out.
    """
    shallow = sizes.model_copy(update={"num_hidden_layers": num_blocks})
    with torch.device("meta"):
        module = fresh_module(objective, shallow)
    _fill_with_zeros(module, compute.device)
    module.train()
    if recompute:
        recompute_blocks(module)
    return max(_saved_bytes(module, batch.to(compute.device), compute) for _ in each_stage(module))


def _fill_with_zeros(module: nn.Module, device: torch.device) -> None:
    """Gives a module without memory zeros as weights: to draw those of a large model takes seconds. Parameters that
    several parts share stay shared."""
    filled: dict[int, Tensor] = {}
    for part in module.modules():
        for name, parameter in part._parameters.items():
            if parameter is not None:
                zeros = nn.Parameter(torch.zeros_like(parameter, device=device), parameter.requires_grad)
                part._parameters[name] = filled.setdefault(id(parameter), zeros)  # type: ignore[assignment]
        for name, buffer in part._buffers.items():
            if buffer is not None:
                part._buffers[name] = torch.zeros_like(buffer, device=device)


def each_stage(module: TrainedModule) -> Iterator[int]:
    """Takes a module from stage to stage."""
    yield 0
    for number in range(1, len(module.stages)):
        module.begin_stage(number)
        yield number


def _saved_bytes(module: nn.Module, batch: Batch, compute: Compute) -> int:
    weights = {parameter.shape for parameter in module.parameters()}
    weights |= {shape[::-1] for shape in weights}
    own = {parameter.data_ptr() for parameter in module.parameters()}
    embeddings = module.encoder.word_embeddings.shape  # type: ignore[union-attr]  # every objective's module has one
    kept: dict[int, Tensor] = {}  # by address; held, so that no address is used again

    def keep(tensor: Tensor) -> Tensor:
        place = id(tensor) if tensor.is_mkldnn else tensor.untyped_storage().data_ptr()
        is_weight = place in own or (tensor.dtype != torch.float32 and tensor.shape in weights)
        if not is_weight and tensor.shape != embeddings:
            kept.setdefault(place, tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor), compute.autocast():
        module(batch)
    return sum(
        tensor.numel() * tensor.element_size() if tensor.is_mkldnn else tensor.untyped_storage().nbytes()
        for tensor in kept.values()
    )


def kept_checkpoints(train: TrainSettings, steps: float | None) -> int:
    """How many checkpoints a run keeps at most; without those of `keep_every` where its steps are not known."""
    return train.keep_last + (int(steps // train.keep_every) if steps is not None and train.keep_every else 0)
