"""Which evaluation is the best: what early stopping and a search compare by."""

from __future__ import annotations

import logging
import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from torch import Tensor, nn

from unmask.errors import SettingsError

logger = logging.getLogger("unmask")


class Metric(NamedTuple):
    """What evaluations are compared by: the name of a figure, and its direction."""

    name: str
    lower_is_better: bool = False

    def is_better(self, value: float, than: float) -> bool:
        """Whether one value is better than another; NaN is worse than any number."""
        if math.isnan(value) or math.isnan(than):
            return not math.isnan(value)
        return value < than if self.lower_is_better else value > than


@dataclass(frozen=True)
class Best:
    """The best evaluation of a run so far; the first of equal ones.

    Attributes:
        weights: the module's parameters and buffers at the time, by name, on the CPU; one tensor under several names
            where parts of the module share it.
        evaluations_since: evaluations since then, none of them better.
        evaluations: all of the run so far.
    """

    step: int
    evaluation: Mapping[str, float]
    weights: Mapping[str, Tensor]
    evaluations_since: int = 0
    evaluations: int = 1


class Ending(NamedTuple):
    """What a run ends with.

    Attributes:
        step: its last one.
        figures: the held-out figures of the weights that it ends with, by name.
        early_stopping: the `step` of these weights, and how many `evaluations` they are the best of; empty where
            nothing was chosen.
    """

    step: int
    figures: dict[str, float]
    early_stopping: dict[str, int]


def copy_weights(module: nn.Module) -> dict[str, Tensor]:
    """A copy of all parameters and buffers, on the CPU; tensors that parts of the module share are shared in it too."""
    weights = module.state_dict(keep_vars=True)
    distinct = {id(tensor): tensor for tensor in weights.values()}
    copies = {key: tensor.detach().to("cpu", copy=True) for key, tensor in distinct.items()}
    return {name: copies[id(tensor)] for name, tensor in weights.items()}


def choose_metric(evaluation: Mapping[str, float], name: str | None, lower_is_better: Collection[str]) -> Metric:
    """The figure to compare by: `train.metric`, or where that is None the task's first, or the loss where there is
    nothing else.

    Args:
        lower_is_better: the task's metrics of which less is better.

    Raises:
        SettingsError: the task has no such figure.
    """
    if name is None:
        name = next((figure for figure in evaluation if figure != "loss"), "loss")
    if name not in evaluation:
        raise SettingsError(f"train.metric={name}: the task measures {', '.join(evaluation)}: name one of them")
    return Metric(name, name == "loss" or name in lower_is_better)


def newest_best(
    best: Best | None, step: int, evaluation: Mapping[str, float], metric: Metric, module: nn.Module
) -> Best:
    """The new evaluation with the module's weights if it is better; else `best`, with one evaluation more."""
    if best is None:
        return Best(step, evaluation, copy_weights(module))
    if metric.is_better(evaluation[metric.name], best.evaluation[metric.name]):
        return Best(step, evaluation, copy_weights(module), evaluations=best.evaluations + 1)
    return replace(best, evaluations_since=best.evaluations_since + 1, evaluations=best.evaluations + 1)


def restore_best(module: nn.Module, best: Best, step: int) -> Ending:
    """Gives the module the weights of the best evaluation of a run that ends after `step`."""
    module.load_state_dict(best.weights)
    logger.info("the model is that of step %s, the best evaluation", f"{best.step:,}")
    chosen = {"step": best.step, "evaluations": best.evaluations}
    return Ending(step, dict(best.evaluation), chosen if best.evaluations > 1 else {})
