"""A held-out loss that stays at what is had without context: when that is reported."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

from unmask.objectives.floors import SHOWN, UNIGRAM, Floor

logger = logging.getLogger("unmask")

_CLOSE_NATS = 0.05
_LONG_SHARE = 0.1


class Plateau:
    """Reports, once, that a held-out loss has stayed at what is had without context for a tenth of the budget.

    Args:
        floors: of the run.
        term: the main loss term, which is looked at.
    """

    def __init__(self, floors: Sequence[Floor], term: str) -> None:
        values = {floor.label: floor for floor in floors if floor.is_loss and floor.term == term}
        self._floor = values.get(SHOWN, values.get(UNIGRAM))
        self._since: float | None = None
        self._is_reported = False

    def look(self, figures: Mapping[str, float], progress: float) -> None:
        """Looks at an evaluation, after a share of the budget."""
        floor = self._floor
        value = None if floor is None else figures.get(f"{floor.term}_loss")
        if floor is None or value is None or not abs(value - floor.value) <= _CLOSE_NATS:
            self._since = None
            return
        self._since = progress if self._since is None else self._since
        if self._is_reported or progress - self._since < _LONG_SHARE:
            return
        self._is_reported = True
        logger.warning(
            "for %.0f %% of the run, loss/%s on held-out text has stayed within %s of %.3f, the loss of %s: no context "
            "is learnt yet. What shortens this for small models, as far as the objective can have it: "
            "model.architecture=modernbert, objective.causal_share=.5 (without sentence pairs), optimizer.name=muon, a "
            "lower optimizer.learning_rate; pretrain/modern_mini has them, pretrain/electra_mini those for ELECTRA "
            '(docs/guides/pretraining-systems.md, "What makes a small model learn soon")',
            100 * (progress - self._since),
            floor.term,
            _CLOSE_NATS,
            floor.value,
            floor.what,
        )
