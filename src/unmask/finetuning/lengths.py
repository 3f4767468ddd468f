"""How long sequences may be: a model has learned nothing about positions beyond the longest sequence it has seen."""

from __future__ import annotations

import logging
from pathlib import Path

from unmask.config import Overrides, parse_overrides
from unmask.io.paths import model_directory
from unmask.models.hub.config import TRAINED_LENGTH
from unmask.models.hub.files import CONFIG, read_config
from unmask.recipe.tree import FinetuneRecipe

logger = logging.getLogger("unmask")

_SHORTEST = 16
"""A model trained on less than this is no measure: a recipe's length stays."""


def trained_length(source: Path) -> int | None:
    """The longest sequence that a model has seen; None: as long as it has positions."""
    trained = read_config(source).get(TRAINED_LENGTH) if (source / CONFIG).is_file() else None
    return trained if type(trained) is int else None


def within_trained_length(settings: FinetuneRecipe, recipe: str, overrides: Overrides) -> FinetuneRecipe:
    """The settings, with the maximum length of a recipe that comes with `unmask` lowered to the longest sequence that
    the model has seen; a length that the user gives stays. The stride of windows is lowered in the same proportion.

    Args:
        recipe: a file of the user's own, or a name.
        overrides: the user's.
    """
    is_given = Path(recipe).is_file() or "max_length" in parse_overrides(overrides).get("task", {})
    if is_given or settings.from_scratch:
        return settings
    sources = settings.search.checkpoints or [settings.init_from]
    task, requested = settings.task, settings.task.max_length
    lengths = [length for source in sources if (length := trained_length(model_directory(source))) is not None]
    longest = max(_SHORTEST, min(lengths, default=requested))
    if requested <= longest:
        return settings
    logger.warning(
        "task.max_length is %s in place of the recipe's %s: %s has seen no longer sequences. task.max_length=%s reads "
        "untrained positions; `unmask pretrain pretrain/continued` with longer ones trains them",
        longest,
        requested,
        ", ".join(sources),
        requested,
    )
    lowered = {"max_length": longest}
    if "doc_stride" in task.model_fields_set:
        lowered["doc_stride"] = max(1, task.doc_stride * longest // requested)
    return settings.model_copy(update={"task": task.model_copy(update=lowered)})


def warn_of_untrained_positions(longest: int, trained: int | None, source: object, key: str) -> None:
    """Warns where sequences are longer than those that the model has seen.

    Args:
        longest: of the sequences to train on, in tokens.
        trained: see `trained_length`.
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
