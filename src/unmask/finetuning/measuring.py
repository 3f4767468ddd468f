"""Measures a fine-tuned model on dev or test, and chooses there what its task leaves open."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from unmask.inference.evaluation import warn_if_degenerate
from unmask.inference.example_sets import ExampleSet, measure
from unmask.io.progress import figures_in_a_line
from unmask.tasks.base import Score, Task, TaskModule
from unmask.tasks.sequence_module import SequenceModule
from unmask.tasks.text.metrics import LabelScore, LabelSetScore
from unmask.training.device import Compute
from unmask.training.run.log import RunLog

logger = logging.getLogger("unmask")

_FEW_TO_CALIBRATE = 100
_MOST_SHOWN = 20


@dataclass
class Measurement:
    """Measures a module in eval mode; the loop's hook calls it.

    It computes in fp32 whatever the run trains in, so that the saved model gives exactly these figures anywhere.

    Attributes:
        name: what the log calls the examples.
        log: the run's, which shows how far an evaluation is.
        figures: the newest, by name.
        score: what the figures were computed from.
        calibration: the temperature that was chosen, and the expected calibration error before it.
    """

    name: str
    task: Task[Any]
    module: TaskModule
    sets: list[ExampleSet]
    compute: Compute
    log: RunLog
    figures: dict[str, float] = field(default_factory=dict)
    score: Score[Any] | None = None
    calibration: dict[str, float] = field(default_factory=dict)

    def __call__(self) -> dict[str, float]:
        """The module's loss and the task's metrics."""
        num_examples = sum(len(each.examples) for each in self.sets)
        with self.module.rescaled(), self.log.measuring(self.name, num_examples) as progress:
            loss, self.score = measure(self.task, self.module, self.sets, self.compute, progress.advance)
        warn_if_degenerate(self.score, self.name)
        self.figures = {"loss": loss, **self.score.metrics()}
        return self.figures

    def tune(self, figures: dict[str, float]) -> Task[Any]:
        """Chooses on these examples what the task leaves open, measures again if that changes anything, and returns the
        task.

        Args:
            figures: the figures of the weights that the module has now.
        """
        if self.score is None or self.figures != figures:  # the best weights are not the last, or the run was resumed
            self()
        if self.task.settings.calibration == "temperature":
            self._calibrate()
        assert self.score is not None
        tuned = self.task.tuned(self.score)
        if tuned != self.task:
            chosen = _chosen(self.task.remembered(), tuned.remembered())
            self.task = tuned
            self()
            logger.info(
                "chosen on %s: %s; with that %s (flattered, since chosen on these examples)",
                self.name,
                chosen,
                figures_in_a_line(self.figures),
            )
        return self.task

    def _calibrate(self) -> None:
        assert isinstance(self.score, LabelScore | LabelSetScore)
        assert isinstance(self.module, SequenceModule)
        temperature, before = self.score.best_temperature(), self.score.reliability.error
        if temperature is None:
            logger.warning(
                "task.calibration changes nothing: no decision on %s is wrong, or hardly any, which does not say how "
                "sure the model may be; give more examples, or harder ones",
                self.name,
            )
            return
        loss = self.figures["loss"]
        self.module.cool(temperature)
        self()
        if self.score.num_examples < _FEW_TO_CALIBRATE:
            logger.warning(
                "a temperature (%.3g) was chosen on %s examples: how sure the model is now rests on them alone; give "
                "more, or leave out task.calibration",
                temperature,
                self.score.num_examples,
            )
        self.calibration = {"temperature": temperature, "error_before": before}
        logger.info(
            "calibrated on %s: logits divided by %.3g, for the lowest loss: %.4g before, %.4g now; "
            "expected calibration error %.3f before, %.3f now",
            self.name,
            temperature,
            loss,
            self.figures["loss"],
            before,
            self.score.reliability.error,
        )


def _chosen(before: Mapping[str, Any], after: Mapping[str, Any]) -> str:
    """What differs in the settings that a task remembers: `thresholds a 0.31 · b 0.52`, or `null_threshold 1.4`."""
    new = {name: value for name, value in after.items() if value != before.get(name)}
    return "; ".join(
        f"{name} {_first_of(value)}" if isinstance(value, Mapping) else figures_in_a_line({name: value})
        for name, value in new.items()
    )


def _first_of(figures: Mapping[str, float]) -> str:
    rest = f" and {len(figures) - _MOST_SHOWN:,} more" if len(figures) > _MOST_SHOWN else ""
    return figures_in_a_line(dict(islice(figures.items(), _MOST_SHOWN))) + rest
