"""Which settings of a pre-training recipe go together: what no paper describes, or cannot be, is refused at the start.

Each message names both settings and says what to change.
"""

from __future__ import annotations

from unmask.data.settings import PackingSettings
from unmask.models.elmo_settings import AnyModelSettings
from unmask.objectives.settings import MaskedLMSettings, ObjectiveSettings

PAIRED = ("segment_pair", "sentence_pair")
"""Formats whose sequences have two segments."""

BARE: frozenset[str] = frozenset({"gpt1", "lstm"})
"""Families that read text as it runs, without special tokens around it (Radford et al. 2018, section 4.1)."""

ARCHITECTURES: dict[str, tuple[str, ...]] = {
    "masked_lm": ("bert", "roberta", "electra"),
    "replaced_token": ("electra",),
    "causal_lm": ("bert", "gpt1", "lstm"),
    "bilm": ("elmo",),
}
"""The encoders that an objective trains."""


def contradiction(architecture: str, model: AnyModelSettings, objective: ObjectiveSettings) -> str | None:
    """What is wrong with an objective on an encoder; None where nothing is.

    Args:
        architecture: of the encoder: the recipe's, or that of `init_from`.
        model: the recipe's, where it counts.
    """
    fitting = ARCHITECTURES[objective.name]
    if architecture not in fitting:
        return (
            f"objective.name={objective.name} and model.architecture={architecture} do not go together: "
            f"{_WHY[objective.name]}; take model.architecture={' or '.join(fitting)}, or another objective"
        )
    if objective.name == "masked_lm" and model.causal:
        return (
            "objective.name=masked_lm and model.causal=true do not go together: a masked token is predicted from both "
            "sides; take objective.name=causal_lm, or model.causal=false"
        )
    if isinstance(objective, MaskedLMSettings) and architecture != "bert" and objective.sentence_objective != "none":
        return (
            f"objective.sentence_objective={objective.sentence_objective} and model.architecture={architecture} do not "
            "go together: of the families only bert has a head for it; take model.architecture=bert, with any "
            "tokenizer, or objective.sentence_objective=none"
        )
    if objective.name == "causal_lm" and architecture == "bert" and not model.causal:
        return (
            "objective.name=causal_lm and model.causal=false do not go together: the tokens of a bidirectional encoder "
            "see the one to predict; set model.causal=true, or take objective.name=masked_lm"
        )
    return None


_WHY = {
    "masked_lm": "a masked token is predicted from both sides",
    "replaced_token": "generator and discriminator share embeddings, which ELECTRA has apart from its layers",
    "causal_lm": "the tokens of a bidirectional encoder see the one to predict",
    "bilm": "its two directions are LSTMs over the characters of words",
}


def packing_contradiction(architecture: str, objective: ObjectiveSettings, packing: PackingSettings) -> str | None:
    """What is wrong with an objective on sequences of this format; None where nothing is."""
    if (objective.name == "bilm") != (packing.format == "stream"):
        return (
            f"objective.name={objective.name} and packing.format={packing.format} do not go together: `stream` is for "
            "bilm, and bilm reads nothing else, since its state goes from one batch to the next"
        )
    sentences = objective.sentence_objective if isinstance(objective, MaskedLMSettings) else "none"
    if sentences != "none" and packing.format not in PAIRED:
        return (
            f"objective.sentence_objective={sentences} needs two segments, and packing.format={packing.format} has "
            f"one: take packing.format={' or '.join(PAIRED)}, or objective.sentence_objective=none"
        )
    if architecture in BARE and packing.format in PAIRED:
        return (
            f"packing.format={packing.format} sets special tokens around two segments, and "
            f"model.architecture={architecture} reads text as it runs: take packing.format=single_segment or "
            "full_sentences"
        )
    return None
