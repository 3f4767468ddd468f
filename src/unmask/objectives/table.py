"""Every pre-training objective, by the name that a recipe gives it. A recipe is read without PyTorch, so that the class
of an objective is imported when one is opened.

An objective on an encoder that no paper describes, or that cannot work, is refused; a message names what was written:
keys of the recipe, or the directory that pre-training continues from.
"""

from __future__ import annotations

from pkgutil import resolve_name
from typing import TYPE_CHECKING, Annotated, NamedTuple

from pydantic import SerializeAsAny

from unmask.config import OneOf
from unmask.errors import SettingsError
from unmask.models.families.table import ARCHITECTURES
from unmask.objectives.settings import BiLMSettings, CausalLMSettings, MaskedLMSettings, ReplacedTokenSettings
from unmask.objectives.settings_base import ObjectiveSettings, a_model_of, called
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


AnyObjective = Annotated[SerializeAsAny[ObjectiveSettings], OneOf(_settings, "objective", CALLED_OTHERWISE)]
"""`objective.*` of a recipe; without a name it is the first of the table."""


def new_objective(settings: ObjectiveSettings, vocabulary: Vocabulary) -> Objective:
    """The objective of these settings.

    Raises:
        SettingsError: the vocabulary lacks what it needs.
    """
    if settings.needs_mask and vocabulary.mask_id is None:
        raise SettingsError(
            f"objective.name={settings.name} needs a tokenizer with a mask token, and this one has none: take a "
            "tokenizer with [MASK], or the recipe of a left-to-right model, such as pretrain/gpt1_tiny"
        )
    objective: Objective = resolve_name(OBJECTIVES[settings.name].home)(settings, vocabulary)
    return objective


def families_of(objective: ObjectiveSettings | type[ObjectiveSettings]) -> tuple[str, ...]:
    """The names of the families that an objective trains."""
    return tuple(name for name, family in ARCHITECTURES.items() if objective.trains(family))


def why_not_trained(
    objective: ObjectiveSettings, architecture: str, is_causal: bool, init_from: str | None = None
) -> str | None:
    """What is wrong with an objective on an encoder; None where nothing is.

    Args:
        objective: of the recipe.
        architecture: of the encoder to train, as `ObjectiveSettings.becomes` makes it.
        is_causal: whether its tokens see only those before them; a setting in BERT, fixed in other families.
        init_from: where the encoder comes from, if not from `model.*`.
    """
    family = ARCHITECTURES[architecture]
    unfit = "both" if is_causal else "left_to_right" if family.may_be_causal else ""

    def fits(kind: ObjectiveSettings | type[ObjectiveSettings]) -> bool:
        return kind.trains(family) and kind.direction != unfit

    if fits(objective):
        return objective.why_not_trained(family, init_from)
    if not objective.trains(family):
        fitting = families_of(objective)
        instead = a_model_of(fitting if init_from is None else (*fitting, *objective.becomes), init_from)
    elif init_from is None:
        instead = f"model.causal={str(not is_causal).lower()}"
    else:
        instead = f"a model that reads {'in both directions' if is_causal else 'from left to right'} in init_from"
    others = [name for name, entry in OBJECTIVES.items() if fits(entry.settings)]
    or_another = f", or objective.name={' or '.join(others)}" if others else ""
    return (
        f"objective.name={objective.name} does not train {called(family, init_from, is_causal)}: "
        f"{objective.why_these}; take {instead}{or_another}"
    )
