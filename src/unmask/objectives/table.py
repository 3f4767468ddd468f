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
from unmask.models.family import Family
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
    name, trained = objective.name, ARCHITECTURES[architecture]
    if not objective.trains(trained):
        fitting = families_of(objective)
        started = (*fitting, *objective.becomes)
        family = f"model.architecture={' or '.join(fitting)}" if init_from is None else a_model_of(started)
        others = " or ".join(other for other, entry in OBJECTIVES.items() if entry.settings.trains(trained))
        return (
            f"objective.name={name} and {called(architecture, init_from)} do not go together: {objective.why_these}; "
            f"take {family}, or objective.name={others}"
        )
    if objective.direction == "both" and is_causal:
        reads_both_ways = "model.causal=false" if init_from is None else "a model that reads in both directions"
        other = _other(trained, True)
        return (
            f"objective.name={name} and {_direction('model.causal=true', 'left-to-right', init_from)} do not go "
            f"together: a masked token is predicted from both sides; take "
            f"{'' if other is None else f'objective.name={other}, or '}{reads_both_ways}"
        )
    if objective.direction == "left_to_right" and trained.may_be_causal and not is_causal:
        instead = "set model.causal=true" if init_from is None else "take a model that was pre-trained left to right"
        return (
            f"objective.name={name} and {_direction('model.causal=false', 'bidirectional', init_from)} do not go "
            f"together: {objective.why_these}; {instead}, or objective.name={_other(trained, False)}"
        )
    return objective.why_not_trained(trained, init_from)


def _direction(key: str, in_words: str, init_from: str | None) -> str:
    return key if init_from is None else f"init_from={init_from}, {in_words} by its config.json,"


def _other(family: Family, is_causal: bool) -> str | None:
    """An objective that trains such an encoder, if there is one."""
    wanted = "left_to_right" if is_causal else "both"
    fitting = {name: entry.settings for name, entry in OBJECTIVES.items() if entry.settings.trains(family)}
    return next((name for name, settings in fitting.items() if settings.direction == wanted), None)
