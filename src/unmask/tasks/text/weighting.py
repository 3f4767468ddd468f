"""What training counts of each label: rare labels more (`task.class_weights`), and every label a little
(`task.label_smoothing`, Szegedy et al. 2016, section 7). Figures on dev and test are of the plain loss.

The weights are scikit-learn's `balanced`: examples / (labels x examples of the label), whose mean over the training
examples is 1, so that the loss stays on its scale and is divided by the number of examples, as without weights.
"""

from __future__ import annotations

from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from unmask.batch import IGNORE_INDEX
from unmask.tasks.base import TaskModule
from unmask.tasks.sequence_module import SequenceModule
from unmask.tasks.settings import TaskSettings


def weigh_labels(module: TaskModule, labels: NDArray[np.generic], num_labels: int, settings: TaskSettings) -> None:
    """Lets a classifier learn by the weighted or smoothed loss, where the settings ask for one.

    Args:
        module: a `SequenceModule`.
        labels: of the training examples: (examples,) ids, or (examples, labels) 1 or 0; `IGNORE_INDEX` where there is
            none.
    """
    smoothing, is_balanced = settings.label_smoothing, settings.class_weights == "balanced"
    if not smoothing and not is_balanced:
        return
    assert isinstance(module, SequenceModule)
    if labels.ndim == 1:
        weights = balanced_weights(labels, num_labels) if is_balanced else torch.ones(num_labels)
        module.learn_by(partial(smoothed_cross_entropy, smoothing=smoothing), weights)
        return
    columns = [balanced_weights(column, 2) if is_balanced else torch.ones(2) for column in labels.T]
    module.learn_by(partial(smoothed_binary_cross_entropy, smoothing=smoothing), torch.stack(columns, dim=1))


def balanced_weights(ids: NDArray[np.generic], num_labels: int) -> Tensor:
    """(labels,) float32; a label without an example weighs as one with a single one."""
    counts = np.bincount(ids[ids != IGNORE_INDEX].astype(np.int64), minlength=num_labels)
    return torch.from_numpy(counts.sum() / (np.count_nonzero(counts) * counts.clip(min=1))).float()


def smoothed_cross_entropy(logits: Tensor, labels: Tensor, weights: Tensor, smoothing: float) -> Tensor:
    """() from (units, labels), ids (units,) and weights (labels,)."""
    return functional.cross_entropy(
        logits, labels, weights, reduction="sum", ignore_index=IGNORE_INDEX, label_smoothing=smoothing
    )


def smoothed_binary_cross_entropy(logits: Tensor, labels: Tensor, weights: Tensor, smoothing: float) -> Tensor:
    """() from (units, labels) twice and weights (2, labels), of its absence and its presence.

    Smoothed, a label's target is `smoothing` / 2 where it is absent, and 1 less that where it is present.
    """
    present = labels.clamp(min=0)
    losses = functional.binary_cross_entropy_with_logits(
        logits,
        present * (1 - smoothing) + smoothing / 2,
        torch.where(present == 1, weights[1], weights[0]),
        reduction="none",
    )
    return losses.masked_fill(labels == IGNORE_INDEX, 0.0).sum()
