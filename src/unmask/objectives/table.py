"""Every pre-training objective, by the name that a recipe gives it. A recipe is read without PyTorch, so that the class
of an objective is imported when one is opened.
"""

from __future__ import annotations

from pkgutil import resolve_name
from typing import TYPE_CHECKING, Annotated, NamedTuple

from pydantic import SerializeAsAny

from unmask.config import OneOf
from unmask.objectives.settings import (
    BiLMSettings,
    CausalLMSettings,
    MaskedLMSettings,
    ObjectiveSettings,
    ReplacedTokenSettings,
)
from unmask.tokenization.vocabulary import Vocabulary

if TYPE_CHECKING:
    from unmask.objectives.base import Objective


class Entry(NamedTuple):
    """An objective.

    Attributes:
        settings: the class of its settings.
        home: where the class of the objective is, which is built from its settings and a `Vocabulary`.
    """

    settings: type[ObjectiveSettings]
    home: str


OBJECTIVES: dict[str, Entry] = {
    "masked_lm": Entry(MaskedLMSettings, "unmask.objectives.masked_lm:MaskedLM"),
    "causal_lm": Entry(CausalLMSettings, "unmask.objectives.causal_lm:CausalLM"),
    "bilm": Entry(BiLMSettings, "unmask.objectives.bilm:BiLM"),
    "replaced_token": Entry(ReplacedTokenSettings, "unmask.objectives.replaced_token:ReplacedToken"),
}


def _settings() -> dict[str, type[ObjectiveSettings]]:
    return {name: entry.settings for name, entry in OBJECTIVES.items()}


AnyObjective = Annotated[SerializeAsAny[ObjectiveSettings], OneOf(_settings)]
"""`objective.*` of a recipe; without a name it is the first of the table."""


def new_objective(settings: ObjectiveSettings, vocabulary: Vocabulary) -> Objective:
    """The objective of these settings.

    Raises:
        SettingsError: the vocabulary lacks what it needs.
    """
    objective: Objective = resolve_name(OBJECTIVES[settings.name].home)(settings, vocabulary)
    return objective
