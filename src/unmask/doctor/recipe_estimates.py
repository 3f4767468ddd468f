"""What a recipe will take, worked out before it runs: parameters, memory, floating-point operations, disk.

Sizes are those of our own implementation: packed tokens, vocabulary logits at the targets alone, the last block's
feed-forward at the targets and first tokens alone. Operations are the necessary ones, two for a multiply-add, the
backward pass counted as twice the forward pass; element-wise work is left out.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor, nn

from unmask.batch import Batch
from unmask.data.packing import NUM_SPECIAL_TOKENS
from unmask.models.bert import BertEncoder
from unmask.models.settings import EncoderSettings
from unmask.objectives.masked_lm import MaskedLM
from unmask.objectives.table import OBJECTIVES
from unmask.recipe import PretrainRecipe
from unmask.tokenization.vocabulary import Vocabulary
from unmask.training.device import Compute

FLOAT32 = 4
"""Bytes of a weight, a gradient and each of the optimizer's moments."""
ADAM_MOMENTS = 2

MEASURED_TOKENS = 2048
"""Few enough for any machine, and enough for the kernels that a whole micro-batch takes."""

PARTS = {"embeddings": "encoder.embeddings.", "blocks": "encoder.blocks.", "heads": ""}
"""The parts of a module by the beginning of their parameters' names; the first that fits has the parameter."""


def count_parameters(settings: PretrainRecipe, sizes: EncoderSettings) -> dict[str, int]:
    """The parameters of the module that a recipe trains, by part; nothing is allocated.

    The decoder of the masked-LM head is the word embeddings, and is counted with them.
    """
    objective = OBJECTIVES[settings.objective.name](settings.objective, any_vocabulary(sizes.vocab_size))
    needs_pooler = settings.objective.sentence_objective != "none"
    with torch.device("meta"):
        module: nn.Module = objective.build(BertEncoder(sizes, pooler=needs_pooler))
    counts = dict.fromkeys(PARTS, 0)
    for name, parameter in module.named_parameters():
        part = next(part for part, beginning in PARTS.items() if name.startswith(beginning))
        counts[part] += parameter.numel()
    return counts


def any_vocabulary(size: int) -> Vocabulary:
    """A vocabulary of that size, for what depends on the size alone."""
    return Vocabulary(size, mask_id=0, special_ids=(0,), continuation=np.zeros(size, dtype=np.bool_))


@dataclass(frozen=True)
class SequenceShape:
    """The sequences of a run, as far as work and memory depend on them.

    Args:
        length: tokens in a sequence, special ones included; the mean.
        target_prob: share of them that are targets.
        pairs: True where next-sentence prediction is learnt.
    """

    length: float
    target_prob: float
    pairs: bool

    @property
    def outputs(self) -> float:
        """Positions of a sequence that a head reads."""
        return self.length * self.target_prob + self.pairs


def expected_length(settings: PretrainRecipe) -> float:
    """The mean length of sequences of long documents: the full one, or a target drawn evenly from 2 tokens on."""
    full, short_prob = settings.packing.max_length, settings.packing.short_sequence_prob
    mean_of_short = (2 + NUM_SPECIAL_TOKENS + full) / 2
    return (1 - short_prob) * full + short_prob * mean_of_short


def flops_per_token(sizes: EncoderSettings, shape: SequenceShape) -> float:
    """Necessary floating-point operations of training, for each token shown.

    A full block: 2 (4 h^2 + 2 h f) a token, and 4 L h for its attention over L tokens. Of the last block, keys and
    values are needed of every token, the rest at the positions that a head reads. The masked-LM head: 2 (h^2 + h V) a
    target.
    """
    hidden, inner = sizes.hidden_size, sizes.intermediate_size
    block = 2 * (4 * hidden**2 + 2 * hidden * inner) + 4 * shape.length * hidden
    keys_and_values = 4 * hidden**2
    read = shape.outputs / shape.length
    last_block = keys_and_values + read * (block - keys_and_values)
    masked_lm = shape.target_prob * 2 * (hidden**2 + hidden * sizes.vocab_size)
    next_sentence = shape.pairs * 2 * (hidden**2 + 2 * hidden) / shape.length
    forward = (sizes.num_hidden_layers - 1) * block + last_block + masked_lm + next_sentence
    return 3 * forward


@dataclass(frozen=True)
class Memory:
    """Bytes that training takes at its peak.

    Args:
        casts: copies of the weights in bfloat16, where products are computed in it.
        activations: what a micro-batch keeps for its backward pass.
        logits: gradients of the logits over the vocabulary, while the backward pass works on them.
    """

    weights: int
    gradients: int
    optimizer: int
    casts: int
    activations: int
    logits: int

    @property
    def fixed(self) -> int:
        """What does not depend on the micro-batch."""
        return self.weights + self.gradients + self.optimizer + self.casts

    @property
    def per_batch(self) -> int:
        return self.activations + self.logits

    @property
    def total(self) -> int:
        return self.fixed + self.per_batch


def fixed_memory(num_parameters: int, compute: Compute) -> Memory:
    """The part that is known without a micro-batch."""
    weights = FLOAT32 * num_parameters
    casts = 0 if compute.dtype == torch.float32 else weights // 2
    return Memory(weights, weights, ADAM_MOMENTS * weights, casts, activations=0, logits=0)


def estimate_memory(
    num_parameters: int, sizes: EncoderSettings, batch: Batch, objective: MaskedLM, tokens: float, compute: Compute
) -> Memory:
    """Memory for a micro-batch of so many tokens.

    What is kept for the backward pass depends on the kernels that a machine takes: it is measured, on a few sequences
    and with two and three blocks of the recipe's own width, and is linear in both.

    Args:
        batch: some sequences like those of the run, about `MEASURED_TOKENS`, prepared by `objective`.
    """
    fixed = fixed_memory(num_parameters, compute)
    shallow = min(2, sizes.num_hidden_layers)
    kept = measure_saved_bytes(sizes, shallow, batch, objective, compute)
    if sizes.num_hidden_layers > shallow:
        one_more = measure_saved_bytes(sizes, shallow + 1, batch, objective, compute) - kept
        kept += (sizes.num_hidden_layers - shallow) * one_more
    times = tokens / batch.num_tokens
    item = 2 if compute.dtype != torch.float32 else FLOAT32
    num_targets = len(batch.columns["target_positions"]) * times
    return replace(fixed, activations=round(kept * times), logits=round(num_targets * sizes.vocab_size * item))


def measure_saved_bytes(
    sizes: EncoderSettings, num_blocks: int, batch: Batch, objective: MaskedLM, compute: Compute
) -> int:
    """Bytes that a forward pass keeps for the backward pass, with so many blocks; weights and their casts left out."""
    shallow = sizes.model_copy(update={"num_hidden_layers": num_blocks})
    pooler = "next_sentence_label" in objective.columns
    module: nn.Module = objective.build(BertEncoder(shallow, pooler=pooler)).to(compute.device).train()
    weights = {parameter.shape for parameter in module.parameters()}
    weights |= {shape[::-1] for shape in weights}
    own = {parameter.data_ptr() for parameter in module.parameters()}
    kept: dict[int, Tensor] = {}  # by place in memory; held, so that no place is taken again

    def keep(tensor: Tensor) -> Tensor:
        place = id(tensor) if tensor.is_mkldnn else tensor.untyped_storage().data_ptr()
        is_weight = place in own or (tensor.dtype != torch.float32 and tensor.shape in weights)
        if not is_weight:
            kept.setdefault(place, tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor), compute.autocast():
        module(batch.to(compute.device))
    return sum(
        tensor.numel() * tensor.element_size() if tensor.is_mkldnn else tensor.untyped_storage().nbytes()
        for tensor in kept.values()
    )


def checkpoint_bytes(num_parameters: int) -> int:
    """A checkpoint's size: the weights and the optimizer's two moments."""
    return (1 + ADAM_MOMENTS) * FLOAT32 * num_parameters


def run_bytes(num_parameters: int, keep_last: int) -> int:
    """The disk that a run takes at its peak: the checkpoints kept, the next one being written, and the model."""
    return (keep_last + 1) * checkpoint_bytes(num_parameters) + FLOAT32 * num_parameters
