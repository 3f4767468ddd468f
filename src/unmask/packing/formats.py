"""The formats of sequences, by `packing.format`.

`stream` is not among them: its windows, unlike sequences, cannot be shown in any order.
"""

from __future__ import annotations

from collections.abc import Callable

from unmask.errors import InputError, SettingsError
from unmask.packing.pair_formats import SegmentPairs, SentencePairs
from unmask.packing.planning import Planner, SequenceFormat
from unmask.packing.settings import JOINED, PAIRED, PackingSettings, SentenceObjective
from unmask.packing.single_formats import DocSentences, FullSentences, SingleSegments
from unmask.packing.split import Split
from unmask.packing.templates import SequenceTemplate

SEQUENCE_FORMATS: dict[str, Callable[[int, PackingSettings, SentenceObjective], SequenceFormat]] = {
    "segment_pair": lambda longest, packing, objective: SegmentPairs(longest, objective, packing.short_sequence_prob),
    "sentence_pair": lambda longest, packing, objective: SentencePairs(longest, objective),
    "full_sentences": lambda longest, packing, objective: FullSentences(longest),
    "doc_sentences": lambda longest, packing, objective: DocSentences(longest),
    "single_segment": lambda longest, packing, objective: SingleSegments(longest),
}
"""Makes each format from the most tokens of text in a sequence, the packing settings and the sentence objective."""


def open_planner(
    split: Split, packing: PackingSettings, sentence_objective: SentenceObjective, template: SequenceTemplate, seed: int
) -> Planner:
    """What plans the sequences of a split in one of the formats.

    Args:
        packing: the format and its lengths; `copies` is ignored.
        sentence_objective: the objective of pairs; "none" for a format of one segment.

    Raises:
        InputError: the split has too few documents.
        SettingsError: special tokens leave no space for text, or there is no separator for documents in one segment.
    """
    assert packing.format in SEQUENCE_FORMATS, f"{packing.format} has a loader of its own"
    is_paired = packing.format in PAIRED
    assert is_paired or sentence_objective == "none", f"{sentence_objective} needs two segments"
    num_others = split.store.num_documents - split.num_documents
    check_documents(split.num_documents, split.name, split.store.directory, packing, sentence_objective, num_others)
    check_separator(packing, template)
    longest = template.capacity(packing.max_length, 2 if is_paired else 1)
    return Planner(split, SEQUENCE_FORMATS[packing.format](longest, packing, sentence_objective), seed)


def check_separator(packing: PackingSettings, template: SequenceTemplate) -> None:
    """Refuses a format of several documents in a segment if the tokenizer has no separator to put between them."""
    if packing.format in JOINED and template.document_separator_id is None:
        raise SettingsError(
            f"packing.format={packing.format} sets a separator token between documents, and the tokenizer has none: "
            "take packing.format=doc_sentences or single_segment, or another tokenizer"
        )


def documents_needed(packing: PackingSettings, sentence_objective: SentenceObjective) -> int:
    """How many documents a split must have: two if a random segment B comes from another document."""
    return 2 if packing.format in PAIRED and sentence_objective != "sop" else 1


def check_documents(
    num_documents: int,
    split: str,
    where: object,
    packing: PackingSettings,
    sentence_objective: SentenceObjective,
    num_others: int = 0,
) -> None:
    """Refuses a split with fewer documents than `documents_needed`, by an `InputError`.

    Args:
        split: "training" or "held-out", for the message.
        where: what they were read from, for the message.
        num_others: documents of the same text that are in the other split, as far as known.
    """
    needed = documents_needed(packing, sentence_objective)
    if num_documents >= needed:
        return
    if num_documents + num_others == 0:
        raise InputError(f"{where}: no document with text in it: give a text to learn from")
    why, fix = "needs one", "give more documents (in .txt a blank line ends one)"
    if needed == 2:
        is_asked = sentence_objective != "none"
        question = f" (objective.sentence_objective={sentence_objective})" if is_asked else ""
        why = f"{question} needs two, since a random segment B comes from another one".lstrip()
        instead = "objective.sentence_objective=none with packing.format=" if is_asked else "packing.format="
        fix += f", or take {instead}single_segment, which makes do with one"
    share = "; or change held_out, which takes the other" if num_others else ""
    raise InputError(
        f"{where}: {num_documents} {split} document(s), but packing.format={packing.format} {why}: {fix}{share}"
    )
