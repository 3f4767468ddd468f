"""How long sequences may be: a model has learned nothing about positions beyond the longest sequence it has seen."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

from unmask.config import Overrides, parse_overrides
from unmask.recipe.tree import FinetuneRecipe

logger = logging.getLogger("unmask")

_SHORTEST = 16
"""A model trained on less than this is no measure: a recipe's length stays."""


def within_trained_length(
    settings: FinetuneRecipe, trained: Sequence[int | None], recipe: str, overrides: Overrides
) -> FinetuneRecipe:
    """The settings, with the maximum length of a recipe that comes with `unmask` lowered to the longest sequence that
    the model has seen; a length that the user gives stays. The stride of windows is lowered in the same proportion,
    unless the user gives it.

    Args:
        trained: the longest sequence that each model which the run, or the search, begins with has seen; None: as
            long as it has positions.
        recipe: a file of the user's own, or a name.
        overrides: the user's.
    """
    given = parse_overrides(overrides).get("task", {})
    if Path(recipe).is_file() or "max_length" in given or settings.from_scratch:
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
        ", ".join(settings.search.checkpoints or [settings.init_from]),
        requested,
    )
    lowered = {"max_length": longest}
    if "doc_stride" in task.model_fields_set - set(given):
        lowered["doc_stride"] = max(1, task.doc_stride * longest // requested)
    return settings.model_copy(update={"task": task.model_copy(update=lowered)})


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
