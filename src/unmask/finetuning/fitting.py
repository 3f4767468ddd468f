"""What follows from the model that is fine-tuned, where the user says nothing: how long sequences may be, and how large
the learning rate is."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from unmask.config import Overrides, parse_overrides
from unmask.io.paths import model_directory
from unmask.models.hub.source import ModelSource, open_source
from unmask.recipe.tree import FinetuneRecipe
from unmask.training.settings import TrainSettings

logger = logging.getLogger("unmask")

_SHORTEST = 16
"""A model trained on less than this is no measure: a recipe's length stays."""

RATES = {128: 5e-4, 256: 3e-4, 512: 1e-4}
"""The largest hidden size -> the peak rate up to there: 3e-4 is ELECTRA-Small's (Clark et al. 2020, appendix B), and
Turc et al. 2019 chose among rates up to it for their small BERTs; the others by our own small models."""
WIDE_RATE = 5e-5
"""Of wider ones (Devlin et al. 2019, appendix A.3)."""


def rate_for(width: int) -> float:
    """The usual peak rate of AdamW for an encoder of this hidden size."""
    return next((rate for widest, rate in RATES.items() if width <= widest), WIDE_RATE)


def fit_to_models(
    settings: FinetuneRecipe, recipe: str, overrides: Overrides
) -> tuple[FinetuneRecipe, list[ModelSource]]:
    """The settings, with what a recipe that comes with `unmask` leaves to the models that the run, or the search,
    begins with: sequences as long as these have seen, and a rate for their size. What the user gives stays, on the
    command line or in a file of her own.

    Args:
        recipe: a file of the user's own, or a name.
        overrides: the user's.

    Returns:
        The settings, and the models: of `search.checkpoints`, or `init_from`.

    Raises:
        ModelError: one cannot be opened.
    """
    sources = [open_source(model_directory(each)) for each in settings.checkpoints]
    if not Path(recipe).is_file():
        given = parse_overrides(overrides)
        settings = _with_length(settings, [source.trained_length for source in sources], given.get("task", {}))
        width = max(source.settings.hidden_size for source in sources)
        settings = _with_rate(settings, width, given.get("optimizer", {}))
    return settings, sources


def _with_length(settings: FinetuneRecipe, trained: Sequence[int | None], given: Mapping[str, Any]) -> FinetuneRecipe:
    """The maximum length lowered to the longest sequence that the models have seen, unless the user gives it: they have
    learned nothing about positions beyond. The stride of windows is lowered in the same proportion, unless the user
    gives it.

    Args:
        trained: the longest sequence that each model has seen; None: as long as it has positions.
        given: the user's settings of the task.
    """
    if "max_length" in given or settings.from_scratch:
        return settings
    task, requested = settings.task, settings.task.max_length
    longest = max(_SHORTEST, min((length for length in trained if length is not None), default=requested))
    if requested <= longest:
        return settings
    logger.warning(
        "task.max_length is %s in place of the recipe's %s: %s has seen no longer sequences. task.max_length=%s reads "
        "untrained positions; `unmask pretrain pretrain/continued` with longer ones trains them",
        longest,
        requested,
        ", ".join(settings.checkpoints),
        requested,
    )
    lowered = {"max_length": longest}
    if "doc_stride" in task.model_fields_set - set(given):
        lowered["doc_stride"] = max(1, task.doc_stride * longest // requested)
    return settings.model_copy(update={"task": task.model_copy(update=lowered)})


def _with_rate(settings: FinetuneRecipe, width: int, given: Mapping[str, Any]) -> FinetuneRecipe:
    """The learning rate raised to that of a narrow encoder, unless the user gives it, or an optimizer other than
    AdamW. A search with rates of its own does not use it; its runs are resumed by others that may."""
    optimizer, rate = settings.optimizer, rate_for(width)
    is_given = "learning_rate" in given or optimizer.name != "adamw"
    if is_given or rate <= max(optimizer.learning_rate, WIDE_RATE):
        return settings
    if not settings.search.learning_rates:
        logger.warning(
            "optimizer.learning_rate is %g in place of the recipe's %g, which is for larger models than %s (%s wide); "
            "optimizer.learning_rate=%g keeps it",
            rate,
            optimizer.learning_rate,
            ", ".join(settings.checkpoints),
            width,
            optimizer.learning_rate,
        )
    return settings.model_copy(update={"optimizer": optimizer.model_copy(update={"learning_rate": rate})})


FEW_STEPS, ENOUGH_STEPS = 100, 200
"""A new head has hardly begun to learn in the first number of steps; few examples want many epochs (Mosbach et al.
2021; Zhang et al. 2021)."""


def epochs_advice(train: TrainSettings, num_examples: int, key: str = "train.epochs") -> str | None:
    """What to say of a run that is too short to learn much; None of others.

    Args:
        key: what the setting of the epochs is called.
    """
    epochs, of_epoch = train.epochs, -(-num_examples // train.batch_size)
    if epochs is None or (steps := math.ceil(epochs * of_epoch)) >= FEW_STEPS:
        return None
    more, unit = math.ceil(ENOUGH_STEPS / of_epoch), "step" if steps == 1 else "steps"
    return f"{key}={epochs:g} gives {steps} {unit}, in which little is learnt: {key}={more} gives {more * of_epoch}"


def warn_of_untrained_positions(longest: int, trained: int | None, source: object, key: str) -> None:
    """Warns where sequences are longer than those that the model has seen.

    Args:
        longest: of the sequences to train on, in tokens.
        trained: the longest sequence that the model has seen; None: as long as it has positions.
        source: the model.
        key: the setting that limits the length.
    """
    if trained is not None and longest > trained:
        logger.warning(
            "sequences have up to %s tokens, and %s has seen none over %s: its positions beyond are untrained; set "
            "%s=%s, or train them first (`unmask pretrain pretrain/continued`)",
            longest,
            source,
            trained,
            key,
            trained,
        )
