"""Claim: fine-tuning computes what `transformers`' Trainer computes, reaches what it reaches, and is 1.3 times as fast
on the CPU: MRPC, RTE, WNUT-17, a part of SQuAD 1.1 and CODAH.

parity: the same weights, head included, the same batches in the same order, dropout off: the loss of each of 50 steps
is within 1e-3 of the Trainer's. For SQuAD the Trainer is told to leave padding out of its softmax over positions, which
otherwise is longer the longer the other rows of the batch are. Beside it stands a control, the Trainer's own difference
where its learning rate is halved: ours must also be under a tenth of that, or the check would tell nothing. Weight
decay and clipping change too little in 50 steps to be seen so: `tests/golden/test_finetune_parity.py` compares weights
for them.
scores: dropout as in the checkpoint, each side with heads and orders of its own, 5 seeds: 0 lies in the 95 % interval
of the difference of the means on dev (Welch), and both stand beside what guessing gets.
speed: examples a second of the training loop, batches made and collated included, the same batches on both sides, by
turns.

Both sides get the same token ids, fp32, the same threads, and the same AdamW (fused), decay groups, clipping and linear
schedule; the Trainer pads each batch to its own longest example, with the library's collators, and uses its default
fused attention. Scores are counted by the same code. The exit code is 1 where parity fails.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from importlib.metadata import version
from pathlib import Path
from statistics import mean, median, stdev
from typing import TYPE_CHECKING

from finetune_sides import Done, Protocol, Setup, Wanted, build_ours, build_theirs, open_material, save_start
from measure import Row, compare, in_own_process, interleave, machine, num_cores, parser, report

if TYPE_CHECKING:
    from unmask.tasks.encoded import EncodedExamples

PARTS = ("parity", "scores", "speed")
LARGEST_DIFFERENCE = 1e-3
TARGET = 1.3
WARM_STEPS = 3
"""Steps before the clock is read: the first ones allocate."""

PROTOCOLS = {
    "mrpc": Protocol("tasks/mrpc/train.tsv", "tasks/mrpc/dev.tsv", "f1"),
    "rte": Protocol("tasks/rte/train.tsv", "tasks/rte/dev.tsv", "accuracy"),
    "wnut17": Protocol("tasks/wnut17/train.conll", "tasks/wnut17/dev.conll", "overall_f1"),
    "squad1": Protocol("tasks/squad1/dev-v1.1.json", "tasks/squad1/dev-v1.1.json", "f1", max_length=384, epochs=2),
    "codah": Protocol("tasks/codah/fold_0/train.tsv", "tasks/codah/fold_0/dev.tsv", "accuracy", batch_size=16),
}


def check_parity(setup: Setup, peer: str, steps: int) -> Row:
    """The losses of the same steps from the same weights, dropout off."""
    print(f"{setup.name}: {steps} steps on both sides, dropout off", file=sys.stderr)
    wanted = Wanted(seed=0, steps=steps, start=save_start(setup, seed=0))
    with in_own_process(build_ours, setup) as run:
        ours = run(wanted).losses
    with in_own_process(build_theirs, setup) as run:
        theirs = run(wanted).losses
        control = largest_difference(theirs, run(replace(wanted, rate_factor=0.5)).losses)
    difference = largest_difference(ours, theirs)
    return Row(
        f"{setup.name}: loss, mean of {len(ours)} steps from {ours[0]:.3f}",
        mean(ours),
        peer,
        mean(theirs),
        target=f"each step within {LARGEST_DIFFERENCE:g} (largest {difference:.1e}; at half the rate {control:.1e})",
        met=difference <= min(LARGEST_DIFFERENCE, control / 10),
    )


def largest_difference(some: Sequence[float], others: Sequence[float]) -> float:
    return max(abs(one - other) for one, other in zip(some, others, strict=True))


def compare_scores(setup: Setup, peer: str, seeds: int) -> Row:
    """The figure on dev of several seeds on each side, and the interval of the difference of their means."""
    metric = setup.protocol.metric
    figures: list[list[float]] = []
    for name, build in (("ours", build_ours), ("peer", build_theirs)):
        figures.append([])
        with in_own_process(build, setup) as run:
            for seed in range(seeds):
                figures[-1].append(run(Wanted(seed, measured=True)).figures[metric])
                print(f"{setup.name}, {name}, seed {seed}: {metric} {figures[-1][-1]:.4f}", file=sys.stderr)
    low, high = difference_interval(*figures)
    material = open_material(setup)
    floors = material.task.floors(material.training, _whole(window.encoded for window in material.dev)).get(metric, {})
    told = "".join(f"; {what} {value:.4g}" for what, value in floors.items())
    spread = " and ".join(f"{stdev(side):.2g}" if seeds > 1 else "0" for side in figures)
    return Row(
        f"{setup.name}: {metric} on dev, mean of {seeds} seeds",
        mean(figures[0]),
        peer,
        mean(figures[1]),
        target=f"0 in the 95 % interval of the difference, {low:+.3g} to {high:+.3g}; sd {spread}{told}",
        met=low <= 0 <= high,
    )


def difference_interval(ours: Sequence[float], theirs: Sequence[float]) -> tuple[float, float]:
    """The 95 % interval of the difference of two means, by Welch's t; everything where one run tells of no spread."""
    from scipy.stats import ttest_ind

    if min(len(ours), len(theirs)) < 2:
        return float("-inf"), float("inf")
    if stdev(ours) == stdev(theirs) == 0:
        return (mean(ours) - mean(theirs),) * 2
    interval = ttest_ind(ours, theirs, equal_var=False).confidence_interval(0.95)
    return float(interval.low), float(interval.high)


def _whole(parts: Iterable[EncodedExamples]) -> EncodedExamples:
    from unmask.tasks.encoded import concatenate

    return concatenate([part.without_alignment() for part in parts])


def measure_speed(setup: Setup, peer: str, rounds: int, steps: int) -> Row:
    """Examples a second; a round is the mean of some steps of a fresh run."""
    print(f"{setup.name}: speed", file=sys.stderr)
    with in_own_process(build_ours, setup) as ours, in_own_process(build_theirs, setup) as theirs:
        seed = iter(range(1_000_000))

        def seconds_a_step(run: Callable[[Wanted], Done]) -> float:
            ends = run(Wanted(next(seed) // 2, steps=WARM_STEPS + steps)).ends
            return (ends[-1] - ends[WARM_STEPS - 1]) / steps

        sides = {"ours": partial(seconds_a_step, ours), "peer": partial(seconds_a_step, theirs)}
        seconds = interleave(sides, rounds)
    row = compare(f"{setup.name}: training", seconds["ours"], peer, seconds["peer"], at_least=TARGET)
    figures = [setup.protocol.batch_size / median(seconds[side]) for side in ("ours", "peer")]
    return replace(row, ours=figures[0], peer_figure=figures[1], unit="examples/s")


def main() -> int:
    words = parser(__doc__)
    words.add_argument("--model", type=Path, required=True, help="directory of a pre-trained BERT")
    words.add_argument("--tasks", nargs="+", choices=list(PROTOCOLS), default=list(PROTOCOLS))
    words.add_argument("--part", choices=PARTS, action="append", help="all where left out")
    words.add_argument("--seeds", type=int, default=5, help="runs on each side whose scores are compared")
    words.add_argument("--steps", type=int, default=50, help="whose losses are compared")
    words.add_argument("--rounds", type=int, default=5, help="of the measurement of speed")
    words.add_argument("--round-steps", type=int, default=10, help="in a round, whose mean counts")
    words.add_argument("--learning-rate", type=float, help="of all tasks; theirs where left out")
    words.add_argument("--epochs", type=int, help="of all tasks; theirs where left out")
    words.add_argument("--max-examples", type=int, default=4000, help="of a training file, at most")
    words.add_argument("--threads", type=int, default=num_cores(), help="of each side; all cores where left out")
    given = words.parse_args()

    from unmask.tasks.splitting import split_file

    data = Path(os.environ.get("UNMASK_DATA", ""))
    if not (data / "tasks").is_dir():
        words.error("set UNMASK_DATA to a folder laid out as docs/data.md says")
    parts = given.part or PARTS
    on = machine(given.threads)
    peer = f"Trainer of transformers {version('transformers')}"
    changes = {"learning_rate": given.learning_rate, "epochs": given.epochs}
    said = {name: value for name, value in changes.items() if value is not None}
    protocols = {task: replace(PROTOCOLS[task], **said) for task in given.tasks}
    rows: dict[str, list[Row]] = {part: [] for part in PARTS}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for task, protocol in protocols.items():
            train, dev = data / protocol.train, data / protocol.dev
            if train == dev:
                train, dev, _ = split_file(train, task, folder / f"split-{task}")
            setup = Setup(task, protocol, given.model, train, dev, given.max_examples, given.threads, folder)
            if "parity" in parts:
                rows["parity"].append(check_parity(setup, peer, given.steps))
            if "scores" in parts:
                rows["scores"].append(compare_scores(setup, peer, given.seeds))
            if "speed" in parts:
                rows["speed"].append(measure_speed(setup, peer, given.rounds, given.round_steps))
    notes = [f"model: {given.model}; fp32, linear schedule with a tenth of warm-up"]
    for task, used in protocols.items():
        notes.append(
            f"{task}: {used.max_length} tokens, batches of {used.batch_size}, learning rate {used.learning_rate:g}, "
            f"{used.epochs} epochs"
        )
    report("Fine-tuning on the CPU", [row for part in PARTS for row in rows[part]], on, notes, given.json)
    return 0 if all(row.met for row in rows["parity"]) else 1


if __name__ == "__main__":
    sys.exit(main())
