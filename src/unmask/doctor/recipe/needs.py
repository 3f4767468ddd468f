"""What a recipe needs, worked out before it runs: parameters, operations, memory, disk.

Memory is that of our own implementation: packed tokens, vocabulary logits only at the targets, the last block's
feed-forward only at the places that a head reads.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from functools import cached_property

import torch

from unmask.batch import Batch
from unmask.doctor.recipe.estimates import (
    FLOAT32,
    MemoryEstimate,
    bare_module,
    count_moments,
    count_parameters,
    kept_checkpoints,
    measure_saved_bytes,
)
from unmask.doctor.recipe.material import Material
from unmask.models.kernels.decoder_loss import logits_at_once
from unmask.objectives.base import ObjectiveModule
from unmask.objectives.directions import next_counts
from unmask.training.device import Compute


@dataclass(frozen=True)
class Kept:
    """What a forward pass over `batch` keeps for the backward pass, in bytes."""

    batch: Batch
    size: int


@dataclass(frozen=True)
class Needs:
    """What a recipe needs on a device, which need not be there."""

    material: Material
    compute: Compute

    @cached_property
    def module(self) -> ObjectiveModule:
        """What it trains, without memory for its weights."""
        return bare_module(self.material.settings, self.material.sizes)

    @cached_property
    def parameters(self) -> dict[str, int]:
        """How many there are, by part; see `count_parameters`."""
        return count_parameters(self.module)

    @property
    def num_parameters(self) -> int:
        return sum(self.parameters.values())

    @cached_property
    def num_moments(self) -> int:
        settings = self.material.settings
        return count_moments(self.module, settings.optimizer, settings.train)

    @cached_property
    def flops(self) -> float:
        """Necessary operations a token, the backward pass included."""
        return self.material.objective.operations(self.material.sizes, self.material.usual_batch, self.material.length)

    @property
    def fixed(self) -> MemoryEstimate:
        """The memory that is known without a micro-batch."""
        weights = FLOAT32 * self.num_parameters
        casts = 0 if self.compute.dtype == torch.float32 else weights // 2
        return MemoryEstimate(weights, weights, FLOAT32 * self.num_moments, casts, activations=0, logits=0)

    def measure_kept(self, batch: Batch) -> Kept:
        """Makes passes over `batch`, some sequences like those of the run, about `MEASURED_TOKENS`, prepared.

        What is kept depends on the kernels that a machine uses: it is measured with two and with three blocks of the
        recipe's own width, and is linear in blocks, as in tokens. With `train.recompute` a block keeps its input alone,
        and what it computes again is there one block at a time.
        """
        sizes, objective = self.material.sizes, self.material.objective
        recompute = self.material.settings.train.recompute

        def saved(num_blocks: int, recompute: bool) -> int:
            return measure_saved_bytes(sizes, num_blocks, batch, objective, self.compute, recompute)

        shallow = min(2, sizes.num_hidden_layers)
        size = saved(shallow, recompute)
        if sizes.num_hidden_layers > shallow:
            size += (sizes.num_hidden_layers - shallow) * (saved(shallow + 1, recompute) - size)
        return Kept(batch, size + saved(2, False) - saved(1, False) if recompute else size)

    def memory(self, sequences: float, kept: Kept) -> MemoryEstimate:
        """Memory for a micro-batch of so many sequences, by what was kept of some."""
        fixed, sizes, objective = self.fixed, self.material.sizes, self.material.objective
        times = sequences * self.material.length / kept.batch.num_tokens
        item = 2 if fixed.casts else FLOAT32
        counts = objective.counts(kept.batch)
        in_slices = set(objective.vocabulary_terms if objective.predicts_next else next_counts(kept.batch))

        def size_of(terms: Collection[str]) -> int:
            return round(sum(counts[term] for term in terms) * times * sizes.vocab_size * item)

        logits = size_of(set(objective.vocabulary_terms) - in_slices)
        if in_slices:  # decoded piece by piece before the backward pass, beside the gradient of the word embeddings
            width = sizes.embedding_size or sizes.hidden_size
            logits = max(logits, min(size_of(in_slices), FLOAT32 * logits_at_once(self.compute.device)))
            logits += FLOAT32 * sizes.vocab_size * width
        return replace(fixed, activations=round(kept.size * times), logits=logits)

    @property
    def checkpoint_bytes(self) -> int:
        """A checkpoint's size: the weights and what the optimizer keeps."""
        return FLOAT32 * (self.num_parameters + self.num_moments)

    def disk(self, steps: float | None) -> int:
        """The disk that a run takes at its peak: the checkpoints kept, the next one being written, and the model."""
        kept = kept_checkpoints(self.material.settings.train, steps)
        return (kept + 1) * self.checkpoint_bytes + FLOAT32 * self.num_parameters
