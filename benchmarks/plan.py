"""Claim: `unmask plan RECIPE --gpu cpu` agrees within 15 % with the step that is then measured on this machine.

The peer is the measured step: real steps of the recipe, masking, forward, backward, clipping and the optimizer
included, on random tokens, as `--measure` takes them. Planned and measured steps alternate, in processor time of one
thread, and of each the quietest round counts: other work on the machine only ever adds to them.
"""

from __future__ import annotations

import time

from measure import Row, machine, parser, report

RECIPES = ("bert_tiny", "bert_mini", "modern_mini", "electra_joint_mini", "gpt1_mini")
MOST_OFF = 0.15


def measure(recipe: str, rounds: int) -> Row:
    """A recipe's planned and measured step."""
    from unmask.doctor.recipe.speed_probe import measure_speed
    from unmask.experiments.plan.costs import Speeds, step_cost
    from unmask.experiments.plan.rates import measure_bandwidth, measure_operations, measure_products
    from unmask.experiments.plan.workload import open_recipe, open_workload
    from unmask.training.device import choose_compute

    settings, names_text = open_recipe(f"pretrain/{recipe}", ["phases=[]"])
    compute = choose_compute("cpu", settings.precision)
    opened = open_workload(recipe, settings, names_text, compute)
    phase, material = opened.workload.phases[0], opened.materials[0]
    planned, measured = [], []
    for _ in range(rounds):
        speeds = Speeds(
            measure_operations(material, compute, time.process_time),
            measure_products(material.sizes.hidden_size, compute, time.process_time),
            measure_bandwidth(time.process_time),
            inside=1.0,
            across=None,
            per_node=1,
        )
        planned.append(step_cost(opened.workload, phase, 1, phase.batch_size, speeds).total)
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
