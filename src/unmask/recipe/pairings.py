"""Which settings of a pre-training recipe go together: what no paper describes, or is impossible, is refused at the
start.

Each message names both settings and says what to change. Of several contradictions the root is reported: a wrong family
before the format of its sequences.
"""

from __future__ import annotations

from unmask.models.families.table import ARCHITECTURES
from unmask.objectives.settings_base import ObjectiveSettings, called
from unmask.objectives.table import why_not_trained
from unmask.packing.settings import PAIRED, PackingSettings


def contradiction(
    objective: ObjectiveSettings,
    architecture: str,
    is_causal: bool,
    packing: PackingSettings,
    init_from: str | None = None,
) -> str | None:
    """What is wrong with an objective on this encoder with sequences of this format; None if nothing is.

    Args:
        objective, packing: of the recipe.
        architecture, is_causal, init_from: see `unmask.objectives.table.why_not_trained`.
    """
    return why_not_trained(objective, architecture, is_causal, init_from) or _why_not_packed(
        objective, architecture, packing, init_from
    )


def _why_not_packed(
    objective: ObjectiveSettings, architecture: str, packing: PackingSettings, init_from: str | None
) -> str | None:
    if (objective.reads == "words") != (packing.format == "stream"):
        fix = "take packing.format=stream"
        if objective.reads != "words":
            fix = "take another format, such as packing.format=single_segment, or objective.name=bilm"
        return (
            f"objective.name={objective.name} and packing.format={packing.format} do not go together: `stream` is for "
            f"bilm, and bilm reads nothing else, since its state goes from one batch to the next; {fix}"
        )
    if ARCHITECTURES[architecture].reads_bare_text and packing.format in PAIRED:
        return (
            f"packing.format={packing.format} is not for {called(ARCHITECTURES[architecture], init_from)}, which reads "
            "text as it runs, and the format sets special tokens around two segments: take "
            "packing.format=single_segment or doc_sentences"
        )
    pairs = objective.pair_objective
    if pairs != "none" and packing.format not in PAIRED:
        return (
            f"objective.sentence_objective={pairs} needs two segments, and packing.format={packing.format} has "
            f"one: take objective.sentence_objective=none, or packing.format={' or '.join(PAIRED)}"
            f"{objective.if_default_pairs}"
        )
    return None


def why_not_tokenized(objective: ObjectiveSettings, kind: str, segmenter: str, where: str = "") -> str | None:
    """What is wrong with an objective on text of this tokenizer; None if nothing is.

    Args:
        kind, segmenter: of the tokenizer, as in `tokenizer.*`.
        where: " of ", and what has the tokenizer, if not the recipe.
    """
    if (kind == "word") != (objective.reads == "words"):
        return (
            f"objective.name={objective.name} and tokenizer.kind={kind}{where} do not go together: `word` is for bilm, "
            "and bilm reads the characters of words"
        )
    if segmenter != "none" and (wanted := objective.annotations) is not None:
        return (
            f"objective.masking={wanted} and tokenizer.segmenter={segmenter}{where} do not go together: it changes the "
            "text that the annotations are places of; take tokenizer.segmenter=none, or objective.masking=span"
        )
    return None


def unasked_pairs(objective: ObjectiveSettings, packing: PackingSettings) -> str | None:
    """A note on sequences of two segments about which the objective asks nothing; None where there are none."""
    if packing.format not in PAIRED or objective.pair_objective != "none":
        return None
    return (
        f"packing.format={packing.format} makes {PAIRED[packing.format]}, half of them with a second segment from "
        f"another document, and {objective.no_pair_objective} asks nothing about the two: fine as an ablation; "
        "packing.format=full_sentences or single_segment gives each sequence one text"
    )
