"""From a model's outputs for tokens to tags of words or characters, and entities with their places in the text."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from unmask.tasks.base import Prediction
from unmask.tasks.encoded import EncodedExamples
from unmask.tasks.tagging.examples import TaggingExample
from unmask.tasks.tagging.schemes import OUTSIDE, are_bio, find_entities, inside


def decode_sentences(
    examples: Sequence[TaggingExample], encoded: EncodedExamples, outputs: Tensor, labels: Sequence[str]
) -> list[Prediction]:
    """`tokens`, `tags` as predicted, and `entities` with the mean probability of their units.

    If a token covers several units, its tag applies to the first, and the others continue its entity. A unit without a
    token is O, or part of the entity around it unless it is a line break; if the tags are not BIO, it has the tag of
    the unit before.

    Args:
        encoded: these same examples, with the alignment of `encode_sentences`.
        outputs: (tokens, labels) float, logits.
        labels: in the order of their ids.
    """
    of_entities = are_bio(labels)
    scores, best = torch.softmax(outputs.float(), -1).max(-1)
    answering = np.flatnonzero(encoded.alignment["num_units"])
    numbers = np.repeat(encoded.examples, encoded.lengths)[answering].tolist()
    ends_entities = ("\r", "\n") if of_entities else ()
    tags: list[list[str | None]] = [
        [OUTSIDE if word in ends_entities else None for word in example.words] for example in examples
    ]
    probabilities: list[list[float | None]] = [[None] * len(example.units) for example in examples]
    for number, unit, num_units, label, score in zip(
        numbers,
        encoded.alignment["units"][answering].tolist(),
        encoded.alignment["num_units"][answering].tolist(),
        best[torch.from_numpy(answering)].tolist(),
        scores[torch.from_numpy(answering)].tolist(),
        strict=True,
    ):
        tag = labels[label]
        next_tag = inside(tag) if of_entities else tag
        tags[number][unit : unit + num_units] = [tag, *[next_tag] * (num_units - 1)]
        probabilities[number][unit : unit + num_units] = [score] * num_units
    default = None if of_entities else labels[0]
    return [
        _prediction(example, _fill_missing(sentence_tags, default), unit_scores, of_entities)
        for example, sentence_tags, unit_scores in zip(examples, tags, probabilities, strict=True)
    ]


def _fill_missing(tags: Sequence[str | None], default: str | None) -> list[str]:
    """The tags, with the missing ones filled in.

    Args:
        default: the tag to use if there is none at all; None: the tags are of entities.
    """
    coming: list[str | None] = []  # for each place the tag that is there or comes next
    for tag in reversed(tags):
        coming.append(coming[-1] if tag is None and coming else tag)
    coming.reverse()
    complete: list[str] = []
    for tag, after in zip(tags, coming, strict=True):
        before = complete[-1] if complete else None
        if tag is not None:
            complete.append(tag)
            continue
        if default is not None:
            complete.append(before or after or default)
        elif before is not None and after is not None and inside(before) == after:
            complete.append(after)
        else:
            complete.append(OUTSIDE)
    return complete


def _prediction(
    example: TaggingExample, tags: list[str], probabilities: Sequence[float | None], of_entities: bool
) -> Prediction:
    entities = []
    for entity in find_entities(tags) if of_entities else []:
        known = [score for score in probabilities[entity.first : entity.end] if score is not None]
        entities.append(
            {
                "label": entity.label,
                "start": example.units[entity.first][0],
                "end": example.units[entity.end - 1][1],
                "text": example.between(entity.first, entity.end),
                "score": sum(known) / len(known),
            }
        )
    return {"tokens": example.words, "tags": tags, "entities": entities}
