"""A budget that is changed at a resume: what is refused, and whether the run is then still that of its recipe.

Recipes are here any settings with `train` and `schedule`.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from pathlib import Path
from typing import Any

from unmask.errors import SettingsError
from unmask.training.optimizers.optimizer import Schedule, Stage
from unmask.training.run.checkpoint import Checkpoint


def check_budget(directory: Path, before: Any, recipe: Any, checkpoint: Checkpoint) -> None:
    """Refuses, by a SettingsError, a budget that is less than what the run has done, which its recipe would then not
    show; and one under which a phase or stage that has begun would have begun later."""
    name, amount = recipe.train.budget
    if amount < (done := checkpoint.done[name]):
        shown = f"{done:,.2f}".removesuffix(".00")
        raise SettingsError(
            f"{directory} has done {shown} {name} already, more than train.{name}={amount}: give a larger budget to "
            f"continue, or train.steps={checkpoint.step} to end the run where it is"
        )
    _check_parts(directory, before, recipe, checkpoint)


def budget_change(before: Any, recipe: Any, checkpoint: Checkpoint) -> dict[str, Any]:
    """A change of the budget, as `environment.budget_changes` reads it: from the new one to itself where all steps so
    far were those of the new one too, as in a warm-up of so many steps: the next step is the same under both, and
    shares of the budget have not decided on any before it, as those of a warm-up or an earlier phase or stage do, or an
    evaluation at its end."""
    warmup_end, stage = checkpoint.state["warmup_end"], checkpoint.state["stage"]
    schedule = Schedule(recipe.schedule, warmup_end, None if stage is None else Stage(**stage))
    was, now = (schedule.factor(checkpoint.done, each.train) for each in (before, recipe))
    former, course = (_course(each, checkpoint) for each in (before, recipe))
    follows_shares = bool(recipe.schedule.warmup_ratio) or course[0] > 0
    # The end of the former budget was evaluated, which patience counts.
    is_evaluated = checkpoint.state["evaluated_step"] == checkpoint.step
    is_due = before.train.evaluates_at(checkpoint.step, checkpoint.done["epochs"])
    follows_shares |= before.train.patience is not None and is_evaluated and not is_due
    if math.isclose(was, now) and former == course and not follows_shares:
        before = recipe
    return {"step": checkpoint.step, "was": _budget_of(before), "now": _budget_of(recipe)}


def _course(recipe: Any, checkpoint: Checkpoint) -> tuple[int, dict[str, float]]:
    """Of a pre-training run: how many phases and stages end before the next step, and the objective's rates."""
    if not hasattr(recipe, "objective"):
        return 0, {}
    share = recipe.train.share_done(checkpoint.done)
    ends = [*(phase.until for phase in recipe.phases[:-1]), *recipe.objective.stages[:-1]]
    return sum(end <= share for end in ends), recipe.objective.rates(share, None)


def _check_parts(directory: Path, before: Any, recipe: Any, checkpoint: Checkpoint) -> None:
    """What has been trained in a phase or stage that would have begun later is not what the recipe would show.

    Budgets of different units are compared by the shares that are done of them.
    """
    share = before.train.share_done(checkpoint.done)
    if recipe.train.share_done(checkpoint.done) >= share:
        return
    begun = _find_begun_part(recipe, checkpoint, share)
    if begun is not None:
        budget, former = _budget_of(recipe), _budget_of(before)
        raise SettingsError(
            f"{directory} is in {begun}: under {budget} it would have begun later, and the run would not be the one "
            f"that its recipe describes. Either keep {former}, or begin a run of its own from the model of this one "
            f"when it has ended, with init_from={directory} and another --out"
        )


def _find_begun_part(recipe: Any, checkpoint: Checkpoint, share: float) -> str | None:
    """The phase or stage after the first one that a pre-training run is in, with the key that says when it begins."""
    untils = [phase.until for phase in getattr(recipe, "phases", ())]
    # after a roll-back, the position is still that of the phase which the next step leaves again
    phase = min(checkpoint.state["position"].get("phase", 0), bisect_right(untils, share))
    if phase > 0:
        return f"phase {phase + 1} of {len(untils)}, which follows phases.{phase - 1}.until={untils[phase - 1]}"
    stage = checkpoint.state["stage"]
    if stage is None or stage["until"] == recipe.objective.stages[0]:
        return None
    stages = recipe.objective.stages
    number = stages.index(stage["until"])
    return f"stage {number + 1} of {len(stages)}, which begins at {stages[number - 1]:.0%} of the budget"


def _budget_of(recipe: Any) -> str:
    name, amount = recipe.train.budget
    return f"train.{name}={amount}"
