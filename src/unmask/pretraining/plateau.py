"""A held-out loss that stays at what is had without context: when it is reported, and what is advised."""

from __future__ import annotations

import logging
import shlex
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from unmask.config import build_settings, merge, parse_overrides
from unmask.errors import SettingsError
from unmask.models.family import Family
from unmask.models.settings import ModelSettings
from unmask.objectives.floors import SHOWN, UNIGRAM, Floor
from unmask.packing.settings import PAIRED
from unmask.recipe.tree import PretrainRecipe
from unmask.training.run.checkpoint import Checkpoint
from unmask.training.settings import TrainSettings

logger = logging.getLogger("unmask")

_CLOSE_NATS = 0.05
_LONG_SHARE = 0.1


class Plateau:
    """Reports, once, that a held-out loss has stayed at what is had without context for a tenth of the budget.

    Args:
        floors: of the run.
        term: the main loss term, which is looked at.
        advice: settings for another run, as `plateau_advice` gives them.
    """

    def __init__(self, floors: Sequence[Floor], term: str, advice: Sequence[str]) -> None:
        self._advice = (f"{shlex.join(advice)} and " if advice else "") + "a lower optimizer.learning_rate"
        values = {floor.label: floor for floor in floors if floor.is_loss and floor.term == term}
        self._floor = values.get(SHOWN, values.get(UNIGRAM))
        self._since: float | None = None
        self._is_reported = False

    def recall(self, rows: Sequence[Mapping[str, Any]], checkpoint: Checkpoint, train: TrainSettings) -> None:
        """Looks again, in silence, at the evaluations up to a checkpoint, among the rows of `metrics.jsonl`.

        A step counts as much of the budget as the mean one before the checkpoint.
        """
        progress = train.share_done(checkpoint.done)
        for row in rows:
            figures = {name.removeprefix("eval/"): value for name, value in row.items() if name.startswith("eval/")}
            if figures and row["step"] <= checkpoint.step:
                self._take_in(figures, progress * row["step"] / checkpoint.step)

    def _take_in(self, figures: Mapping[str, float], progress: float) -> bool:
        """Takes in an evaluation; whether the loss has now stayed at its floor for long, and that was not reported."""
        floor = self._floor
        value = None if floor is None else figures.get(f"{floor.term}_loss")
        if floor is None or value is None or not abs(value - floor.value) <= _CLOSE_NATS:
            self._since = None
            return False
        self._since = progress if self._since is None else self._since
        is_new = progress - self._since >= _LONG_SHARE and not self._is_reported
        self._is_reported |= is_new
        return is_new

    def look(self, figures: Mapping[str, float], progress: float) -> None:
        """Looks at an evaluation, after a share of the budget."""
        floor = self._floor
        if self._take_in(figures, progress) and floor is not None and self._since is not None:
            logger.warning(
                "for %.0f %% of the run, loss/%s on held-out text has stayed within %s of %.3f, the loss of %s: no "
                "context is learnt yet. What shortened this on small models (docs/guides/pretraining-systems.md) and "
                "this recipe lacks, of which each may need those before it: %s",
                100 * (progress - self._since),
                floor.term,
                _CLOSE_NATS,
                floor.value,
                floor.what,
                self._advice,
            )


_SHORT = 32
"""Tokens: masked words are learnt from their neighbours sooner where there are few others."""


def plateau_advice(settings: PretrainRecipe, continued: Family | None) -> list[str]:
    """What shortened a plateau on small models and a recipe neither has nor refuses.

    Args:
        continued: the family of the model in `init_from`; None where there is none.

    Returns:
        `key=value` words, of which each may need those before it.
    """
    objective, packing, is_new = settings.objective, settings.packing, settings.init_from is None
    is_paired = packing.format in PAIRED
    train, length = settings.train, packing.max_length
    is_masked_bert = is_new and objective.main_term == "mlm" and settings.model.architecture != "modernbert"
    is_long = not settings.phases and train.minutes is None and length >= 4 * _SHORT
    as_many_tokens = train.batch_size * length // _SHORT
    model = settings.model
    has_output_bias = not isinstance(model, ModelSettings) or (  # ELMo's softmax has one
        model.family.has("masked_lm_head") and model.decoder_bias is not False
    )
    is_open = {
        f"phases=[{{until: .5, max_length: {_SHORT}, batch_size: {as_many_tokens}}}, {{until: 1}}]": (
            is_masked_bert and is_long
        ),
        "objective.sentence_objective=none": objective.pair_objective != "none",
        "packing.short_sequence_prob=0": is_paired and "short_sequence_prob" in packing.model_fields_set,
        "packing.format=full_sentences": is_paired,
        "model.architecture=modernbert": is_new and settings.model.architecture != "modernbert",
        **objective.against_plateau,
        "objective.output_bias=log_frequency": is_new and has_output_bias and objective.output_bias == "zero",
        "optimizer.name=muon": settings.optimizer.name == "adamw",
        "schedule.name=wsd": not settings.schedule.decays_at_its_end,
    }
    values, advice = {**settings.as_written(), "packing": packing.model_dump(exclude_unset=True)}, []
    for word in (word for word, is_wanted in is_open.items() if is_wanted):
        changed = merge(values, parse_overrides([word]))
        with suppress(SettingsError):
            built = build_settings(PretrainRecipe, changed, "advice")
            if continued is None or built.objective.why_not_trained(continued, settings.init_from) is None:
                values = changed
                advice.append(word)
    return advice
