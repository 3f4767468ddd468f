"""Metrics of tagging from counts, so that memory does not grow: of entities, with seqeval's names, and of single tags.

An entity is right if its type, first and last unit agree; tags of every scheme are read as `conlleval` and seqeval's
default mode read them. Semantic roles are counted as CoNLL-2005's scorer does: a piece C-X belongs to the last X before
it (without one it is an X), an argument is right if all its pieces are, and V, the predicate itself, does not count in
the overall figures. For KLUE-NER (Park et al. 2021) blanks are left out, and there are two more figures: F1 of
entities in seqeval's strict mode, averaged over types, and F1 of the tags of characters, averaged over tags including
O. Two things differ from KLUE's own code: tags that neither occur nor are predicted do not count as 1, and the tokens
[CLS] and [SEP] do not count as two characters tagged O. WNUT-17 (Derczynski et al. 2017) also compares surface forms:
the set of distinct (text, type) pairs of the true entities with that of the predicted ones. These sets are in memory.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from unmask.batch import IGNORE_INDEX
from unmask.io.progress import named
from unmask.tasks.encoded import EncodedExamples
from unmask.tasks.rows import wrong_prediction
from unmask.tasks.tagging.examples import TaggingExample
from unmask.tasks.tagging.schemes import Scheme, are_bio, find_entities, split_tag, to_bio

_PREDICATE_TYPE = "V"
_CONTINUED = "C-"


class MatchCounts:
    """How often each class was right, was predicted and was true."""

    def __init__(self) -> None:
        self.right: Counter[str] = Counter()
        self.predicted: Counter[str] = Counter()
        self.true: Counter[str] = Counter()

    @property
    def classes(self) -> list[str]:
        """The classes that were predicted or true, sorted."""
        return sorted(self.predicted.keys() | self.true.keys())

    def figures(self, classes: Sequence[str]) -> tuple[float, float, float]:
        """Precision, recall and F1 of some classes together; 0 where nothing was predicted or true."""
        right, predicted, true = (
            sum(counts[name] for name in classes) for counts in (self.right, self.predicted, self.true)
        )
        return _figures(right, predicted, true)

    def f1_macro(self) -> float:
        """The mean of the F1 of all classes that were predicted or true."""
        return sum(self.figures([name])[2] for name in self.classes) / max(1, len(self.classes))


class TaggingScore:
    """Accumulates metrics.

    Args:
        labels: of the task; of entities, or of anything else.
        characters: True leaves out blanks, and adds KLUE-NER's figures.
        surface_forms: True adds WNUT-17's.
        scheme: of the predictions, which are read as BIO where they are in another; with BIO, where labels end entities
            (`E-PER`), they are in IOBES.
    """

    lower_is_better: ClassVar[frozenset[str]] = frozenset()
    reliability: ClassVar[None] = None

    def __init__(
        self, labels: Sequence[str], characters: bool = False, surface_forms: bool = False, scheme: Scheme = "BIO"
    ) -> None:
        self._labels = frozenset(labels)
        self._of_entities = are_bio(labels)
        self._types = {parts[1] for parts in map(split_tag, labels) if parts is not None} - {""}
        has_ends = any(parts[0] in "ES" for parts in map(split_tag, labels) if parts is not None)
        self._converts = self._of_entities and (has_ends or scheme in ("IOB1", "IOBES"))
        self._characters = characters
        self._surface_forms = surface_forms
        self._true_forms: set[tuple[str, str]] = set()
        self._predicted_forms: set[tuple[str, str]] = set()
        self.num_examples = 0
        self._has_predicates = False
        self._tags = MatchCounts()
        self._entities = MatchCounts()
        self._strict_entities = MatchCounts()

    def add(self, examples: Sequence[TaggingExample], predictions: Sequence[Mapping[str, Any]]) -> None:
        """See `Score`; a prediction has `tags`, one for each unit, in any scheme; examples without tags are ignored."""
        for example, prediction in zip(examples, predictions, strict=True):
            if example.tags is None:
                continue
            true, predicted = list(example.tags), self._checked_tags(example, prediction)
            if self._converts:  # as the true ones were
                predicted, _ = to_bio(predicted, "BIO")
            if self._characters:
                kept = [place for place, word in enumerate(example.words) if not word.isspace()]
                true, predicted = [true[place] for place in kept], [predicted[place] for place in kept]
            self.num_examples += 1
            self._has_predicates |= example.predicate is not None
            self._tags.true.update(true)
            self._tags.predicted.update(predicted)
            self._tags.right.update(tag for tag, other in zip(true, predicted, strict=True) if tag == other)
            if self._of_entities:
                is_role = example.predicate is not None
                _count(self._entities, *(_found(tags, joins_pieces=is_role) for tags in (true, predicted)))
                if self._characters:
                    _count(self._strict_entities, *(_found(tags, strict=True) for tags in (true, predicted)))
                if self._surface_forms:
                    self._true_forms.update(_surface_forms(example, true))
                    self._predicted_forms.update(_surface_forms(example, predicted))

    def _checked_tags(self, example: TaggingExample, prediction: Mapping[str, Any]) -> list[str]:
        tags = prediction.get("tags")
        if not isinstance(tags, list) or len(tags) != len(example.units):
            raise wrong_prediction(example.source, "tags", tags, f"a list of {len(example.units)} tags, one a token")
        for place, tag in enumerate(tags):
            parts = split_tag(tag) if isinstance(tag, str) and self._of_entities else None
            if not isinstance(tag, str) or not (tag in self._labels or (parts is not None and parts[1] in self._types)):
                expected = f"one of {named(sorted(self._labels))}"
                raise wrong_prediction(example.source, f"tag {place + 1}", tag, expected)
        return tags

    def metrics(self) -> dict[str, float]:
        """For entities `overall_f1`, by which runs are compared, `_precision`, `_recall` and `_accuracy`, and
        `<type>_precision`, `_recall`, `_f1`; for characters also `entity_f1_macro` and `character_f1_macro`; for
        surface forms also `surface_precision`, `_recall` and `_f1`; for other tags `accuracy` and `f1_macro`."""
        accuracy = self._tags.right.total() / max(1, self._tags.true.total())
        if not self._of_entities:
            return {"accuracy": accuracy, "f1_macro": self._tags.f1_macro()}
        left_out = _PREDICATE_TYPE if self._has_predicates else None
        overall = self._entities.figures([name for name in self._entities.classes if name != left_out])
        metrics = {"overall_f1": overall[2]}
        metrics |= {f"overall_{name}": value for name, value in zip(_FIGURES, overall, strict=True)}
        metrics["overall_accuracy"] = accuracy
        if self._characters:
            metrics["entity_f1_macro"] = self._strict_entities.f1_macro()
            metrics["character_f1_macro"] = self._tags.f1_macro()
        if self._surface_forms:
            true, predicted = self._true_forms, self._predicted_forms
            surface = _figures(len(true & predicted), len(predicted), len(true))
            metrics |= {f"surface_{name}": value for name, value in zip(_FIGURES, surface, strict=True)}
        for label in self._entities.classes:
            figures = zip(_FIGURES, self._entities.figures([label]), strict=True)
            metrics |= {f"{label}_{name}": value for name, value in figures}
        return metrics

    def degenerate(self) -> str | None:
        if len(self._tags.predicted) != 1 or len(self._tags.true) < 2:
            return None
        (tag,) = self._tags.predicted
        what = "characters" if self._characters else "words"
        return f"all {self._tags.predicted.total():,} {what} are tagged {tag}"


def floors(labels: Sequence[str], training: EncodedExamples, dev: EncodedExamples) -> dict[str, dict[str, float]]:
    """The figures of the most frequent tag everywhere, or of O where tags are of entities; see `Task.floors`."""
    if are_bio(labels):
        num_units, num_outside = (dev.alignment[name].sum() for name in ("num_units", "num_outside"))
        return {"overall_accuracy": {"all O": float(num_outside / max(1, num_units))}, "overall_f1": {"all O": 0.0}}
    expected, most_frequent = known_labels(dev), int(np.bincount(known_labels(training)).argmax())
    share = float((expected == most_frequent).mean())
    baseline = f"all {labels[most_frequent]}"
    present = len(np.unique([*expected, most_frequent]))
    return {"accuracy": {baseline: share}, "f1_macro": {baseline: 2 * share / (1 + share) / present}}


def known_labels(labelled: EncodedExamples) -> NDArray[np.int64]:
    """The labels of all tokens that have one."""
    labels: NDArray[np.int64] = labelled.token_columns["labels"].astype(np.int64)
    return np.extract(labels != IGNORE_INDEX, labels)


_FIGURES = ("precision", "recall", "f1")


def _figures(right: int, predicted: int, true: int) -> tuple[float, float, float]:
    return right / max(1, predicted), right / max(1, true), 2 * right / max(1, predicted + true)


_Found = tuple[str, tuple[tuple[int, int], ...]]
"""A type, and the first unit and the one after the last of each piece."""


def _found(tags: Sequence[str], *, strict: bool = False, joins_pieces: bool = False) -> set[_Found]:
    found: list[tuple[str, list[tuple[int, int]]]] = []
    last: dict[str, list[tuple[int, int]]] = {}
    for entity in find_entities(tags, strict):
        label, place = entity.label, (entity.first, entity.end)
        is_piece = joins_pieces and label.startswith(_CONTINUED)
        if is_piece:
            label = label.removeprefix(_CONTINUED)
        if is_piece and label in last:
            last[label].append(place)
        else:
            last[label] = [place]
            found.append((label, last[label]))
    return {(label, tuple(places)) for label, places in found}


def _count(counts: MatchCounts, true: set[_Found], predicted: set[_Found]) -> None:
    counts.true.update(label for label, _ in true)
    counts.predicted.update(label for label, _ in predicted)
    counts.right.update(label for label, _ in true & predicted)


def _surface_forms(example: TaggingExample, tags: Sequence[str]) -> set[tuple[str, str]]:
    return {(example.between(entity.first, entity.end), entity.label) for entity in find_entities(tags)}
