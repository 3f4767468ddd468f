"""What a recipe will take, worked out before it runs: parameters, memory, disk.

Memory is that of our own implementation: packed tokens, vocabulary logits only at the targets, the last block's
feed-forward only at the places that a head reads.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from unmask.batch import Batch
from unmask.models.kernels.decoder_loss import logits_at_once
from unmask.models.settings import EncoderSettings
from unmask.models.trained import TrainedModule
from unmask.objectives.base import Objective, ObjectiveModule, fresh_module
from unmask.objectives.directions import next_counts
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


def count_parameters(settings: PretrainRecipe, sizes: EncoderSettings) -> dict[str, int]:
    """The number of parameters of the module that a recipe trains, by part: `embeddings`, `blocks`, a further model by
    its folder in the model directory, `heads`. Parts that it lacks are left out.

    Parameters that several parts share, such as decoder and word embeddings, are counted once.
    """
    module = bare_module(settings, sizes)
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


def fixed_memory(num_parameters: int, num_moments: int, compute: Compute) -> MemoryEstimate:
    """The memory that is known without a micro-batch."""
    weights = FLOAT32 * num_parameters
    casts = 0 if compute.dtype == torch.float32 else weights // 2
    return MemoryEstimate(weights, weights, FLOAT32 * num_moments, casts, activations=0, logits=0)


def measure_kept_bytes(
    sizes: EncoderSettings, batch: Batch, objective: Objective, compute: Compute, recompute: bool
) -> int:
    """Bytes that a forward pass over a batch keeps for the backward pass.

    They depend on the kernels that a machine uses: they are measured with two and with three blocks of the recipe's own
    width, and are linear in blocks, as in tokens (`scale_memory`).

    Args:
        batch: some sequences like those of the run, about `MEASURED_TOKENS`, prepared by `objective`.
        recompute: whether a block keeps its input alone, and what it computes again is there one block at a time.
    """

    def saved(num_blocks: int, recompute: bool) -> int:
        return measure_saved_bytes(sizes, num_blocks, batch, objective, compute, recompute)

    shallow = min(2, sizes.num_hidden_layers)
    kept = saved(shallow, recompute)
    if sizes.num_hidden_layers > shallow:
        kept += (sizes.num_hidden_layers - shallow) * (saved(shallow + 1, recompute) - kept)
    return kept + saved(2, False) - saved(1, False) if recompute else kept


def scale_memory(
    fixed: MemoryEstimate,
    sizes: EncoderSettings,
    batch: Batch,
    objective: Objective,
    tokens: float,
    device: torch.device,
    kept: int,
) -> MemoryEstimate:
    """Memory for a micro-batch of `tokens` tokens on `device`, of which `batch` keeps `kept` bytes."""
    times = tokens / batch.num_tokens
    item = 2 if fixed.casts else FLOAT32
    counts = objective.counts(batch)
    in_slices = set(objective.vocabulary_terms if objective.predicts_next else next_counts(batch))

    def size_of(terms: Collection[str]) -> int:
        return round(sum(counts[term] for term in terms) * times * sizes.vocab_size * item)

    logits = size_of(set(objective.vocabulary_terms) - in_slices)
    if in_slices:  # decoded piece by piece before the backward pass, beside the gradient of the word embeddings
        width = sizes.embedding_size or sizes.hidden_size
        logits = max(logits, min(size_of(in_slices), FLOAT32 * logits_at_once(device)))
        logits += FLOAT32 * sizes.vocab_size * width
    return replace(fixed, activations=round(kept * times), logits=logits)


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


def checkpoint_bytes(num_parameters: int, num_moments: int) -> int:
    """A checkpoint's size: the weights and what the optimizer keeps; see `count_moments`."""
    return FLOAT32 * (num_parameters + num_moments)


def kept_checkpoints(train: TrainSettings, steps: float | None) -> int:
    """How many checkpoints a run keeps at most; without those of `keep_every` where its steps are not known."""
    return train.keep_last + (int(steps // train.keep_every) if steps is not None and train.keep_every else 0)


def run_bytes(num_parameters: int, num_moments: int, kept: int) -> int:
    """The disk that a run takes at its peak: the checkpoints kept, the next one being written, and the model."""
    return (kept + 1) * checkpoint_bytes(num_parameters, num_moments) + FLOAT32 * num_parameters
