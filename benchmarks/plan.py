"""Claim: `unmask plan RECIPE --gpu cpu` agrees within 15 % with the step that is then measured on this machine.

The peer is the measured step: real steps of the recipe, masking, forward, backward, clipping and the optimizer
included, on random tokens, as `--measure` takes them. Planned and measured steps alternate, in processor time of one
thread, and of each the quietest round counts: other work on the machine only ever adds to them.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from measure import Row, machine, parser, report

if TYPE_CHECKING:
    from unmask.experiments.plan.workload import Opened
    from unmask.training.device import Compute

RECIPES = ("bert_tiny", "bert_mini", "modern_mini", "electra_joint_mini", "gpt1_mini")
MOST_OFF = 0.15


def open_plan(recipe: str, overrides: Sequence[str]) -> tuple[Opened, Compute]:
    """What a plan for this machine's processor is worked out from."""
    from unmask.experiments.plan.workload import open_recipe, open_workload
    from unmask.training.device import choose_compute

    settings, names_text = open_recipe(recipe, overrides)
    compute = choose_compute("cpu", settings.precision)
    return open_workload(recipe, settings, names_text, compute), compute


def planned_step(opened: Opened, compute: Compute, processes: int = 1) -> float:
    """Seconds of a step of the first phase, in processes of one thread each."""
    from unmask.experiments.plan.costs import Speeds, sequences_at_once, step_cost
    from unmask.experiments.plan.hardware import LOOPBACK
    from unmask.experiments.plan.rates import measure_bandwidth, measure_operations, measure_products

    phase, material = opened.workload.phases[0], opened.materials[0]
    speeds = Speeds(
        measure_operations(material, compute, time.process_time),
        measure_products(material.sizes.hidden_size, compute, time.process_time),
        measure_bandwidth(time.process_time),
        inside=LOOPBACK.speed,
        across=None,
        per_node=processes,
    )
    at_once = sequences_at_once(phase, processes, math.inf)
    return step_cost(opened.workload, phase, processes, at_once, speeds).total


def measure(recipe: str, rounds: int) -> Row:
    """A recipe's planned and measured step."""
    from unmask.doctor.recipe.speed_probe import measure_speed

    opened, compute = open_plan(f"pretrain/{recipe}", ["phases=[]"])
    phase, material = opened.workload.phases[0], opened.materials[0]
    planned, measured = [], []
    for _ in range(rounds):
        planned.append(planned_step(opened, compute))
        probe = measure_speed(material, compute, 6.0, phase.batch_size, time.process_time)
        measured.append(probe.seconds_for(phase.tokens))
    ratio = min(planned) / min(measured)
    ratios = [ours / theirs for ours, theirs in zip(planned, measured, strict=True)]
    return Row(
        f"a step of {recipe}, {opened.workload.precision}",
        ours=min(planned),
        peer="the measured step",
        peer_figure=min(measured),
        unit="s",
        ratio=ratio,
        spread=(min(ratios), max(ratios)),
        target=f"within {MOST_OFF:.0%}",
        met=abs(ratio - 1) <= MOST_OFF,
    )


def main() -> None:
    words = parser(__doc__)
    words.add_argument("--rounds", type=int, default=5)
    words.add_argument("--recipes", nargs="+", default=list(RECIPES), help="names of recipes for pre-training")
    given = words.parse_args()
    import torch

    torch.set_num_threads(1)
    rows = [measure(recipe, given.rounds) for recipe in given.recipes]
    notes = [
        f"the ratio is planned over measured, each the quietest of {given.rounds} rounds; one thread, processor time; "
        "the spread is of single rounds"
    ]
    report("A step as planned, beside the measured one", rows, machine(1), notes, given.json)


if __name__ == "__main__":
    main()
