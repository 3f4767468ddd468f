"""The parts of `run.py`: what each one measures, beside which peer, and against which targets.

What is judged comes first, so that a part that runs out of time lacks only the rest.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from math import sqrt
from statistics import median
from typing import Any

from gpu.cases import Case, Taken, encoder_sizes, make_weights
from gpu.ours import first_step_ours
from gpu.peers import encode_theirs, tune_theirs
from gpu.rows import (
    COMPILED,
    EAGER,
    Missing,
    Run,
    agreement,
    memory,
    named,
    reason,
    share,
    share_only,
    speed,
    train_beside,
    tuning_rows,
)
from gpu.tuning import (
    Encoded,
    Texts,
    Tuned,
    Tuning,
    encode_ours,
    finetune_words,
    inspect_ours,
    make_texts,
    make_tuning_files,
    run_command,
    tune_ours,
)
from gpu.work import encoder_flops
from measure import Row

LARGEST_LOADER_SHARE = 0.01
LONGEST_FIRST_STEP_S = 60.0


def base(run: Run) -> Iterator[Row]:
    """BERT-Base: with and without dropout at 128 and 512, memory, real lengths, the loader, the first step."""
    with_dropout = {length: run.case("base", length) for length in (128, 512)}
    ours: dict[int, Any] = {}
    for length, case in with_dropout.items():
        ours[length] = yield from share(run, case, 0.55)
        theirs = train_beside(run, case, EAGER)
        yield from speed(run, case, ours[length], theirs, EAGER, 2.0)
        if length == 128 and run.device == "cuda":
            yield from memory(run, case, ours[length], theirs)
    without = {length: run.case("base", length, dropout_prob=0.0) for length in (128, 512)}
    taken = yield from share(run, without[128], 0.60)
    theirs = train_beside(run, without[128], EAGER)
    yield from speed(run, without[128], taken, theirs, EAGER, None)
    yield from agreement(without[128], taken, theirs)
    yield from share(run, without[512], 0.60)
    yield from loader_and_first_step(run, run.case("base", 128, rows="pairs"))
    yield from share_only(run, run.case("base", 128, rows="glue"), 0.50)
    for length, case in with_dropout.items():
        yield from speed(run, case, ours[length], train_beside(run, case, COMPILED), COMPILED, 1.45)
    yield from share_only(run, run.case("base", 512, rows="pairs"), 0.50)


def loader_and_first_step(run: Run, case: Case) -> Iterator[Row]:
    """A case whose batches come from the loader, and the first step of a process that finds everything compiled."""
    ours = yield from share(run, case, 0.50, measures_loader=True)
    what = f"{case.name}: loader's share of a step"
    if isinstance(ours, Taken) and ours.loader_share is not None:
        is_met = ours.loader_share < LARGEST_LOADER_SHARE
        yield run.judged(Row(what, ours.loader_share), f"under {LARGEST_LOADER_SHARE:.0%}", is_met)
    else:
        yield Row(f"{what}, {reason(ours)}", None)
    seconds = run.attempt("first step", first_step_ours, case, time.time())
    what = f"{case.name}: first step of a process, compiled before"
    if isinstance(seconds, float):
        is_met = seconds <= LONGEST_FIRST_STEP_S
        yield run.judged(Row(what, seconds, unit="s"), f"within {LONGEST_FIRST_STEP_S:.0f} s", is_met)
    else:
        yield Row(f"{what}, {reason(seconds)}", None)


def large(run: Run) -> Iterator[Row]:
    """BERT-Large without dropout."""
    cases = {length: run.case("large", length, dropout_prob=0.0) for length in (128, 512)}
    ours: dict[int, Any] = {}
    for length, case in cases.items():
        ours[length] = yield from share(run, case, 0.62)
    for length, how in ((512, EAGER), (128, COMPILED)):
        theirs = train_beside(run, cases[length], how)
        yield from speed(run, cases[length], ours[length], theirs, how, None)
        yield from agreement(cases[length], ours[length], theirs)


def small(run: Run) -> Iterator[Row]:
    """L4 H512 without dropout."""
    for length, at_least in ((128, 0.52), (512, None)):
        case = run.case("small", length, dropout_prob=0.0)
        ours = yield from share(run, case, at_least)
        for how in (COMPILED, EAGER):
            theirs = train_beside(run, case, how)
            yield from speed(run, case, ours, theirs, how, None)
        yield from agreement(case, ours, theirs)


def objectives(run: Run) -> Iterator[Row]:
    """Each objective by its own necessary work, beside plain masked LM; the step's loss beside the plain module's."""
    for dropout_prob in (0.0, 0.1):
        plain: Any = None
        for objective in ("mlm", "rtd", "span", "causal"):
            case = run.case("base", 128, objective=objective, dropout_prob=dropout_prob)
            ours = yield from share(run, case, None if objective == "mlm" else 0.50)
            if objective == "mlm":
                plain = ours
            else:
                yield from speed(run, case, ours, plain, "ours, plain masked LM", None)
            if not dropout_prob:
                yield from agreement(case, ours, None)


def finetune(run: Run) -> Iterator[Row]:
    """The real command on real lengths; five restarts beside one run."""
    judged = {"mrpc": (COMPILED, 4.0), "sst2": (COMPILED, 6.0), "squad": (EAGER, 8.0)}
    ours: dict[str, Any] = {}
    for task, (how, at_least) in judged.items():
        tuning = _tuning(run, task)
        inspected = run.attempt(f"{task}: tokenization, losses", inspect_ours, tuning)
        ours[task] = inspected
        if not isinstance(inspected, Missing):
            out = run.folder / f"run-{task}"
            ours[task] = run.attempt_here(f"{task}: unmask finetune", tune_ours, tuning, inspected, out, run.deadline)
        if isinstance(ours[task], Tuned):
            run.note(ours[task].notes)
        theirs = run.attempt(f"{task}: transformers, {how}", tune_theirs, tuning, how == COMPILED)
        yield from tuning_rows(run, tuning, ours[task], theirs, how, at_least)
    yield from restarts(run, _tuning(run, "mrpc"))
    for task, (how, _) in judged.items():
        other = COMPILED if how == EAGER else EAGER
        theirs = run.attempt(f"{task}: transformers, {other}", tune_theirs, _tuning(run, task), other == COMPILED)
        yield from tuning_rows(run, _tuning(run, task), ours[task], theirs, other, None)


def _tuning(run: Run, task: str) -> Tuning:
    preset, longest, number = ("tiny", {"squad": 128}.get(task, 64), 64) if run.is_toy else ("base", 0, 4096)
    longest = longest or {"squad": 384}.get(task, 128)
    make_weights(run.case("base", 128))
    tuning = Tuning(
        run.folder / "tasks",
        task,
        run.folder / f"weights-{preset}-{task}",
        run.device,
        longest,
        number,
        seconds=0.5 if run.is_toy else 15.0,
    )
    make_tuning_files(tuning)
    return tuning


def inference(run: Run) -> Iterator[Row]:
    """`predict` and `features` from file to file, beside `sentence-transformers` at its best."""
    tuning = _tuning(run, "mrpc")
    texts = Texts(
        run.folder / "texts.txt", make_weights(run.case("base", 128)), tuning.model, run.device, tuning.max_length
    )
    copies = 1 if run.is_toy else 8
    lengths = tuning.longest * copies
    make_texts(texts, lengths)
    sizes = encoder_sizes(run.case("base", 128))
    batch_sizes = (16,) if run.is_toy else (64, 128, 256, 512, 1024)
    package = "sentence-transformers"
    theirs = {
        how: run.attempt(f"{package}, {how}", encode_theirs, texts, how == COMPILED, batch_sizes)
        for how in (EAGER, COMPILED)
    }
    reached = {how: its for how, its in theirs.items() if isinstance(its, Encoded)}
    best = max(reached, key=lambda how: median(reached[how].rates)) if reached else None
    for program in ("predict", "features"):
        ours = run.attempt(f"unmask {program}", encode_ours, texts, program, 2 if run.is_toy else 3)
        what = f"{program}, BERT-{'Tiny' if run.is_toy else 'Base'}, MRPC's lengths"
        if isinstance(ours, Missing):
            yield Row(f"{what}, {ours.reason}", None)
            continue
        rate = median(ours.rates)
        used = encoder_flops(sizes, lengths) / len(lengths) * rate / run.rate
        yield Row(f"{what}: share", used)
        if best is None:
            yield Row(f"{what}, {reason(theirs[EAGER])}", rate, package, unit="texts/s")
            continue
        its = median(reached[best].rates)
        row = Row(what, rate, named(package, reached[best].note), its, "texts/s", rate / its)
        yield run.judged(row, "at least 2.00x", rate / its >= 2)
        cosine = min(map(_cosine, ours.vectors, reached[best].vectors))
        yield run.judged(Row(f"{what}: cosine of the first vectors", cosine), "over .999", cosine > 0.999)


def _cosine(one: list[float], other: list[float]) -> float:
    dot = sum(a * b for a, b in zip(one, other, strict=True))
    return dot / sqrt(sum(a * a for a in one) * sum(b * b for b in other))


def restarts(run: Run, tuning: Tuning) -> Iterator[Row]:
    """The seconds of five restarts side by side, and of one run, start-up included."""
    one = run.attempt_here("one run", run_command, finetune_words(tuning, run.folder / "one", *_few(run)), run.deadline)
    words = finetune_words(tuning, run.folder / "five", "search.restarts=5", "search.parallel=5", *_few(run))
    five = run.attempt_here("five restarts", run_command, words, run.deadline)
    what = "fine-tuning, mrpc: five restarts side by side beside one run"
    if isinstance(one, Missing) or isinstance(five, Missing):
        yield Row(f"{what}, {reason(one if isinstance(one, Missing) else five)}", None)
        return
    took = five[1] / one[1]
    row = Row(f"{what} (ratio: of the seconds)", five[1], "ours, one run", one[1], "s", took)
    yield run.judged(row, "under 2 times", took < 2)


def _few(run: Run) -> tuple[str, ...]:
    return ("train.epochs=1",) if run.is_toy else ()


PARTS: dict[str, Callable[[Run], Iterator[Row]]] = {
    "base": base,
    "large": large,
    "small": small,
    "objectives": objectives,
    "finetune": finetune,
    "inference": inference,
}
