"""Claim: two processes of one core each train at .9 of twice the rate of one, within 15 % of what `unmask plan` works
out; a checkpoint a minute costs at most 5 % of the time; a run resumes at step 1,000,000 as fast as at step 10.

    python benchmarks/processes.py STORE [--recipe pretrain/modern_mini] [--steps 60] [--rounds 3] [--json FILE]

All on the CPU. Processes are bound to a core each, have one thread, and take the same steps, of 32 sequences of 128
tokens and of 128, in micro-batches of 16. Beside them two runs that know nothing of each other: what they lose, the
machine loses (its memory and caches are shared). The share of a step in which gradients are summed is measured with the
gradients of the recipe's model, without anything else: it takes as long for any batch, so a larger one hides it. The
plan is that of `unmask plan --gpu cpu --gpus 2`, of one thread, the quietest of the rounds. What a save costs comes
from runs that save every second step and runs that save none. To resume is to open the run's inputs at its checkpoint,
first batch included; reading the weights is left out.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from measure import Row, machine, num_cores, parser, report
from plan import open_plan, planned_step

SAVES_A_MINUTE = 1
SAVED_EVERY = 2
FIRST_ROWS = 20
"""Steps that are not counted: kernels are made for each new shape, and memory is taken, which two processes wait for in
turn."""


BATCHES = (32, 128)


def words_of(
    given: Namespace, out: Path, *, steps: int | None = None, save_every: int | None = None, batch: int = BATCHES[0]
) -> list[str]:
    sizes = ["phases=[]", f"train.batch_size={batch}", "train.micro_batch_size=16", "packing.max_length=128"]
    budget = ["train.epochs=null", "train.tokens=null", "train.minutes=null", f"train.steps={steps or given.steps}"]
    saved = f"train.save_every={'null' if save_every is None else save_every}"
    quiet = ["train.log_every=1", saved, "train.eval_every=null", "train.eval_sequences=1"]
    return ["pretrain", given.recipe, f"store={given.store}", *sizes, *budget, *quiet, "--out", str(out)]


def run_on_cores(commands: Sequence[Sequence[str]], *, together: bool = True) -> None:
    """Runs commands of `unmask`, each on a core of its own, as the ranks of one run or each by itself."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = str(found.getsockname()[1])
    running = []
    for rank, words in enumerate(commands):
        alone = {"OMP_NUM_THREADS": "1"}
        size = str(len(commands) if together else 1)
        rank_of = {"RANK": str(rank), "WORLD_SIZE": size, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        bound = ["taskset", "-c", str(sorted(os.sched_getaffinity(0))[rank])]
        command = [*bound, sys.executable, *words]
        running.append(subprocess.Popen(command, env={**os.environ, **alone, **rank_of}, stderr=subprocess.PIPE))
    for process in running:
        _, errors = process.communicate()
        if process.returncode:
            raise SystemExit(errors.decode())


def rate(run: Path) -> float:
    """Tokens a second, the median over the steps."""
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text("utf-8").splitlines()]
    return median(row["tokens_per_s"] for row in rows[FIRST_ROWS:] if "tokens_per_s" in row)


def trained(given: Namespace, work: Path, name: str, processes: int, **changed: int) -> Path:
    out = work / name
    run_on_cores([["-m", "unmask", *words_of(given, out, **changed)]] * processes)
    return out


def rate_of_strangers(given: Namespace, work: Path, name: str, **changed: int) -> float:
    """Tokens a second of two runs at once that know nothing of each other."""
    outs = [work / f"{name}-{number}" for number in range(2)]
    run_on_cores([["-m", "unmask", *words_of(given, out, **changed)] for out in outs], together=False)
    return sum(map(rate, outs))


def sum_alone(recipe: str, store: str, told: Path) -> None:
    """A process of two that sums the gradients of the recipe's model, and nothing else; the first writes seconds."""
    import torch

    from unmask.pretraining.inputs import open_inputs
    from unmask.recipe.loading import load_pretrain_recipe
    from unmask.training.distributed import joined_ranks

    settings = load_pretrain_recipe(recipe, [f"store={store}"])
    with joined_ranks(os.environ) as ranks, tempfile.TemporaryDirectory() as place:
        module = open_inputs(settings, Path(place), 1, None).module
        assert isinstance(module, torch.nn.Module)
        parameters = [p for p in module.parameters() if p.requires_grad]
        taken = []
        for _ in range(12):
            for p in parameters:
                p.grad = torch.ones_like(p)
            began = time.perf_counter()
            joined = ranks.join_gradients(parameters)
            assert joined is not None, "there are two processes"
            ranks.sum_gradients(joined)
            taken.append(time.perf_counter() - began)
        if ranks.is_first:
            told.write_text(str(median(taken[2:])), encoding="utf-8")


def collective_seconds(given: Namespace, work: Path) -> float:
    told = work / "collective"
    command = [str(Path(__file__).resolve()), str(given.store), "--recipe", given.recipe, "--sum-alone", str(told)]
    run_on_cores([command, command])
    return float(told.read_text("utf-8"))


def planned_rate(given: Namespace, batch: int) -> float:
    """Tokens a second of two processes, as `unmask plan` works them out from steps of one thread on this machine."""
    import torch

    torch.set_num_threads(1)
    opened, compute = open_plan(given.recipe, words_of(given, Path("run"), batch=batch)[2:-2])
    return opened.workload.phases[0].tokens / min(planned_step(opened, compute, 2) for _ in range(given.rounds))


def resume_seconds(given: Namespace, work: Path) -> tuple[float, float]:
    """To open a run's inputs at a checkpoint of step 10, and at the same one, moved to step 1,000,000."""
    from unmask.pretraining.inputs import open_inputs
    from unmask.recipe.loading import load_pretrain_recipe
    from unmask.training.run.checkpoint import STATE, find_checkpoint, state_digest

    run = trained(given, work, "resumed", 1, steps=10)
    words = words_of(given, run, steps=2_000_000)[2:-2]
    settings = load_pretrain_recipe(given.recipe, words)
    taken = []
    for step in (10, 1_000_000):
        place = next((run / "checkpoints").iterdir()) / STATE
        state = json.loads(place.read_text("utf-8"))
        state.pop("sha256")
        state |= {"step": step}
        state["position"] |= {"epoch": step // 40, "sequence": step % 997}
        place.write_text(json.dumps(state | {"sha256": state_digest(state)}), encoding="utf-8")
        place.parent.rename(place.parent.with_name(f"step-{step:08d}"))
        times = []
        for _ in range(3):
            began = time.perf_counter()
            checkpoint = find_checkpoint(run / "checkpoints")
            assert checkpoint is not None
            open_inputs(settings, run, 1, checkpoint)
            times.append(time.perf_counter() - began)
        taken.append(median(times))
    return taken[0], taken[1]


def main() -> None:
    words = parser(__doc__)
    words.add_argument("store", type=Path)
    words.add_argument("--recipe", default="pretrain/modern_mini")
    words.add_argument("--steps", type=int, default=60)
    words.add_argument("--rounds", type=int, default=3)
    words.add_argument("--sum-alone", type=Path, help="used by the script itself")
    given = words.parse_args()
    if given.sum_alone is not None:
        sum_alone(given.recipe, str(given.store), given.sum_alone)
        return
    if num_cores() < 2:
        raise SystemExit("two cores are needed")
    ones: dict[int, list[float]] = {batch: [] for batch in BATCHES}
    twos: dict[int, list[float]] = {batch: [] for batch in BATCHES}
    strangers = []
    saves = []
    with tempfile.TemporaryDirectory() as place:
        work = Path(place)
        for number in range(given.rounds):
            for batch in BATCHES:
                steps = FIRST_ROWS + max(20, given.steps * BATCHES[0] // batch)
                for rates, processes in ((ones, 1), (twos, 2)):
                    run = trained(given, work, f"{processes}-{batch}-{number}", processes, steps=steps, batch=batch)
                    rates[batch].append(rate(run))
                print(f"{batch} sequences: {ones[batch][-1]:,.0f} and {twos[batch][-1]:,.0f} tokens/s")
            strangers.append(rate_of_strangers(given, work, f"strangers-{number}"))
            print(f"two runs that know nothing of each other: {strangers[-1]:,.0f} tokens/s")
            began = time.perf_counter()
            trained(given, work, f"none-{number}", 1)
            without = time.perf_counter() - began
            began = time.perf_counter()
            trained(given, work, f"saving-{number}", 1, save_every=SAVED_EVERY)
            saves.append((time.perf_counter() - began - without) / (given.steps // SAVED_EVERY))
            print(f"round {number + 1}: {saves[-1]:.3f} s a save")
        collective = collective_seconds(given, work)
        early, late = resume_seconds(given, work)
        planned = {batch: planned_rate(given, batch) for batch in BATCHES}
    cost = max(0.0, median(saves)) * SAVES_A_MINUTE / 60
    rows = []
    for batch in BATCHES:
        one, two = median(ones[batch]), median(twos[batch])
        ratios = [each / (2 * alone) for alone, each in zip(ones[batch], twos[batch], strict=True)]
        rows += [
            Row(
                f"tokens/s of two processes of a core each, {batch} sequences a step",
                two,
                "twice one process",
                2 * one,
                "",
                two / (2 * one),
                (min(ratios), max(ratios)),
                "at least .90x",
                two >= 1.8 * one,
            ),
            Row(
                "the same, planned",
                planned[batch],
                "measured",
                two,
                "",
                planned[batch] / two,
                target="within 15 %",
                met=abs(two / planned[batch] - 1) <= 0.15,
            ),
            Row("of a step, summing gradients", 100 * collective * two / (batch * 128), unit="%"),
        ]
    one = median(ones[BATCHES[0]])
    rows += [
        Row(
            "tokens/s of two runs that know nothing of each other",
            median(strangers),
            "twice one",
            2 * one,
            "",
            median(strangers) / (2 * one),
        ),
        Row("a save", median(saves), unit="s"),
        Row("cost of a save a minute", 100 * cost, unit="%", target="at most 5 %", met=cost <= 0.05),
        Row("resuming at step 1,000,000", late, "at step 10", early, "s", early / late, target="as fast"),
    ]
    report(
        "Several processes, saving and resuming", rows, machine(1), [f"{given.recipe}, {given.steps} steps"], given.json
    )


if __name__ == "__main__":
    main()
