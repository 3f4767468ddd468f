"""Which encoders an objective trains: combinations that no paper describes, or that cannot work, are refused.

A message names what was written: keys of the recipe, or the directory that pre-training goes on from.
"""

from __future__ import annotations

from collections.abc import Callable

from unmask.models.families.table import ARCHITECTURES
from unmask.models.family import Family
from unmask.objectives.settings import MaskedLMSettings, ObjectiveSettings

_TRAINS: dict[str, Callable[[Family], bool]] = {
    "masked_lm": lambda family: family.has("masked_lm_head"),
    "replaced_token": lambda family: family.has("discriminator_head"),
    "causal_lm": lambda family: family.left_to_right or family.may_be_causal,
    "bilm": lambda family: family.reads_words,
}
"""Whether an objective trains a family, by what that has."""

BECOMES: dict[tuple[str, str], str] = {("replaced_token", "bert"): "electra"}
"""The family that continued pre-training under an objective turns a model into, if that is another one."""

_WHY = {
    "masked_lm": "a masked token is predicted from both sides",
    "replaced_token": "generator and discriminator share embeddings, which ELECTRA has apart from its layers",
    "causal_lm": "the tokens of a bidirectional encoder see the one to predict",
    "bilm": "its two directions are LSTMs over the characters of words",
}


def families_of(objective: str) -> tuple[str, ...]:
    """The names of the families that an objective trains."""
    return tuple(name for name, family in ARCHITECTURES.items() if _TRAINS[objective](family))


def why_not_trained(
    objective: ObjectiveSettings, architecture: str, is_causal: bool, init_from: str | None = None
) -> str | None:
    """What is wrong with an objective on an encoder; None where nothing is.

    Args:
        objective: of the recipe.
        architecture: of the encoder to train, as `BECOMES` makes it.
        is_causal: whether its tokens see only what stands before them; a setting in BERT, fixed in other families.
        init_from: where the encoder comes from, if not from `model.*`.
    """
    name, fitting = objective.name, families_of(objective.name)
    if architecture not in fitting:
        started = (*fitting, *(before for (of, before) in BECOMES if of == name))
        family = f"model.architecture={' or '.join(fitting)}" if init_from is None else _a_model_of(started)
        others = " or ".join(other for other in _TRAINS if architecture in families_of(other))
        return (
            f"objective.name={name} and {_called(architecture, init_from)} do not go together: {_WHY[name]}; take "
            f"{family}, or objective.name={others}"
        )
    reads_both_ways = "model.causal=false" if init_from is None else "a model that reads in both directions"
    if name in ("masked_lm", "replaced_token") and is_causal:
        return (
            f"objective.name={name} and {_direction('model.causal=true', 'left-to-right', init_from)} do not go "
            "together: a masked token is predicted from both sides; take objective.name=causal_lm, or "
            f"{reads_both_ways}"
        )
    trained = ARCHITECTURES[architecture]
    asks_of_sentences = isinstance(objective, MaskedLMSettings) and objective.sentence_objective != "none"
    if asks_of_sentences and not trained.has("next_sentence_head"):
        family = "model.architecture=bert, with any tokenizer" if init_from is None else _a_model_of(("bert",))
        return (
            f"objective.sentence_objective={objective.asked_of_pairs} and {_called(architecture, init_from)} do "
            "not go together: of the families only bert has a head for it; take "
            f"objective.sentence_objective=none, or {family}"
        )
    if name == "causal_lm" and trained.may_be_causal and not is_causal:
        mend = "set model.causal=true" if init_from is None else "take a model that was pre-trained left to right"
        return (
            f"objective.name=causal_lm and {_direction('model.causal=false', 'bidirectional', init_from)} do not go "
            f"together: {_WHY[name]}; {mend}, or objective.name=masked_lm"
        )
    return None


def _called(architecture: str, init_from: str | None) -> str:
    """The family, as it was given."""
    if init_from is None:
        return f"model.architecture={architecture}"
    return f"init_from={init_from}, of the family {architecture} by its config.json,"


def _direction(key: str, in_words: str, init_from: str | None) -> str:
    return key if init_from is None else f"init_from={init_from}, {in_words} by its config.json,"


def _a_model_of(families: tuple[str, ...]) -> str:
    return f"a model of the family {' or '.join(families)} in init_from"
