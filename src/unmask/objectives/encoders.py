"""Which encoders an objective trains: combinations that no paper describes, or that cannot work, are refused.

A message names what was written: keys of the recipe, or the directory that pre-training goes on from.
"""

from __future__ import annotations

from unmask.models.families.table import ARCHITECTURES
from unmask.models.family import Family
from unmask.objectives.settings import ObjectiveSettings, a_model_of, called
from unmask.objectives.table import OBJECTIVES


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
        is_causal: whether its tokens see only what stands before them; a setting in BERT, fixed in other families.
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
        return (
            f"objective.name={name} and {_direction('model.causal=true', 'left-to-right', init_from)} do not go "
            f"together: a masked token is predicted from both sides; take objective.name={_other(trained, True)}, or "
            f"{reads_both_ways}"
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


def _other(family: Family, is_causal: bool) -> str:
    """An objective that trains such an encoder."""
    wanted = "left_to_right" if is_causal else "both"
    fitting = {name: entry.settings for name, entry in OBJECTIVES.items() if entry.settings.trains(family)}
    return next(name for name, settings in fitting.items() if settings.direction == wanted)
