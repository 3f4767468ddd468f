"""The floors that a pre-training loss must pass, from the counts of a store alone."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from unmask.doctor.findings import FigureTable
from unmask.objectives.base import Objective
from unmask.objectives.floors import SHOWN, UNIFORM, UNIGRAM, Floor, unigram_entropy


@dataclass(frozen=True)
class StoreFloors:
    """What a loss has to pass, in nats per target."""

    vocab_size: int  # of the store
    unigram: float  # the entropy of the entries: only their frequencies are known
    commonest: float  # the share of the commonest entry: the accuracy of a model that always says it
    learns: str | None  # what learns a loss over the vocabulary, in words; None: nothing does
    further: Sequence[Floor]  # of the objective, beside these

    @classmethod
    def of(cls, token_counts: NDArray[np.int64], learns: str, objective: Objective | None) -> StoreFloors:
        """Of a store, and of an objective if there is one that its tokenizer is for."""
        floors = [] if objective is None else objective.floors(token_counts)
        main = () if objective is None else objective.vocabulary_terms[:1]
        learning = learns if objective is None or main else None
        is_masked = any(floor.label == SHOWN and floor.is_loss for floor in floors)
        further = [
            floor
            for floor in floors
            if floor.label not in (UNIFORM, UNIGRAM) and (floor.label != SHOWN or (floor.term in main and is_masked))
        ]
        commonest = float(token_counts.max() / token_counts.sum())
        return cls(len(token_counts), unigram_entropy(token_counts), commonest, learning, further)

    def figures(self) -> dict[str, float]:
        """The floors by name, for a script."""
        figures = {
            "ln_vocab_size": math.log(self.vocab_size),
            "unigram_entropy": self.unigram,
            "commonest_share": self.commonest,
        }
        for floor in self.further:
            name = floor.label.replace(" ", "_")
            name = name if floor.label == SHOWN else f"{floor.term}_{name}"
            figures[name if floor.is_loss else f"{name}_accuracy"] = floor.value
        return figures

    def table(self) -> FigureTable:
        """The floors, with what each means."""
        uniform, learns = math.log(self.vocab_size), self.learns
        even = f"all {self.vocab_size:,} entries equally likely: where {learns} begins"
        losses = [floor for floor in self.further if floor.is_loss]
        of_words = [
            ("ln V", f"{uniform:.4f}", even),
            ("unigram entropy", f"{self.unigram:.4f}", "only the entries' frequencies known: to pass soon"),
            *(
                ("no context", f"{floor.value:.4f}", self._explained(floor, ".2%"))
                for floor in losses
                if floor.label == SHOWN
            ),
            ("commonest entry: accuracy", f"{self.commonest:.2%}", f"of {learns} that always says it"),
        ]
        rows = [] if learns is None else of_words
        others = [floor for floor in losses if floor.label != SHOWN]
        for floor in others:
            term = floor.term.upper() if len(floor.term) <= 3 else floor.term
            rows.append((f"{term} {floor.label}", f"{floor.value:.4f}", self._explained(floor, ".0%")))
        beginning = [floor for floor in others if floor.label == "chance"]
        if beginning:
            first = sum(floor.value for floor in beginning) + (0 if learns is None else uniform)
            rows.append(("first loss", f"{first:.4f}", "the sum that an untrained model begins at"))
        return FigureTable("Floors that a loss must pass (nats)", tuple(rows), ("floor", "value", "what it is"))

    def _explained(self, loss: Floor, form: str) -> str:
        """What a loss is, with the accuracy beside it if there is a floor of that."""
        accuracies = [floor.value for floor in self.further if not floor.is_loss and floor.term == loss.term]
        return "; accuracy ".join([loss.what, *(format(value, form) for value in accuracies[:1])])
