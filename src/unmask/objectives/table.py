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


_MASKED_LM, _REPLACED_TOKEN, _CAUSAL_LM, _BILM = (
    f"objective.name={name}" for name in ("masked_lm", "replaced_token", "causal_lm", "bilm")
)
CALLED_OTHERWISE: dict[str, str] = {
    **dict.fromkeys(("bert", "mlm"), _MASKED_LM),
    "roberta": f"{_MASKED_LM} objective.sentence_objective=none",
    "spanbert": f"{_MASKED_LM} objective.masking=span objective.span_boundary=true objective.sentence_objective=none",
    **dict.fromkeys(("sbo", "span_boundary"), f"{_MASKED_LM} objective.masking=span objective.span_boundary=true"),
    **dict.fromkeys(("wwm", "whole_word"), f"{_MASKED_LM} objective.masking=whole_word"),
    **dict.fromkeys(("nsp", "next_sentence"), f"{_MASKED_LM} objective.sentence_objective=nsp"),
    **dict.fromkeys(("sop", "sentence_order", "albert"), f"{_MASKED_LM} objective.sentence_objective=sop"),
    **dict.fromkeys(("electra", "rtd", "replaced_token_detection"), _REPLACED_TOKEN),
    **dict.fromkeys(("gpt", "gpt1", "gpt-1", "openai-gpt", "clm", "lm", "ltr", "causal", "lstm"), _CAUSAL_LM),
    **dict.fromkeys(("elmo", "bidirectional_lm"), _BILM),
}
"""What people also call an objective, by its model or for short, in lower case -> the settings that make it."""


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
