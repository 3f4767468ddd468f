"""The rows of `run.py`: one run of a part with its deadline, and how both sides' figures become rows."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import mean, median
from typing import Any

from gpu.cases import Case, NotReachedError, Taken, in_time, make_weights
from gpu.ours import train_ours
from gpu.peers import train_theirs
from gpu.tuning import Tuned, Tuning
from measure import Row

EAGER, COMPILED = "eager", "torch.compile"
LARGEST_DIFFERENCE = {"fp32": 1e-4, "bf16": 1e-2}
"""Relative, of a loss: in fp32 only the order of sums differs; bf16 keeps eight bits and rounds in other places."""
LARGEST_MEMORY = 0.60
GIB = 2**30
FAILED = "failed:"
"""How the reason for a missing figure begins if it is a fault."""


@dataclass(frozen=True)
class Missing:
    """What could not be measured, and why."""

    reason: str


@dataclass
class Run:
    """A run of one part.

    Attributes:
        folder: the working folder.
        device: `cpu` or `cuda`.
        is_toy: True measures small models for moments, and judges only losses and lengths.
        deadline: by `time.monotonic`.
        rate: operations per second of a bf16 matrix product.
        notes: our sides' messages about how they compute, each once.
    """

    folder: Path
    device: str
    is_toy: bool
    deadline: float
    rate: float
    notes: list[str] = field(default_factory=list)

    def note(self, said: tuple[str, ...]) -> None:
        self.notes += [line for line in said if line not in self.notes]

    def attempt(self, what: str, function: Callable[..., Any], *arguments: Any) -> Any:
        """What the function returns in a process of its own, or why it returns nothing."""
        return self._tried(what, lambda: in_time(self.deadline, function, *arguments))

    def attempt_here(self, what: str, function: Callable[..., Any], *arguments: Any) -> Any:
        """The same in this process, for functions that keep the deadline by themselves."""
        return self._tried(what, lambda: function(*arguments))

    def _tried(self, what: str, function: Callable[[], Any]) -> Any:
        print(f"{what} ({max(0.0, self.deadline - time.monotonic()):.0f} s left)", file=sys.stderr, flush=True)
        try:
            return function()
        except NotReachedError:
            return Missing("not reached")
        except RuntimeError as error:
            print(error, file=sys.stderr)
            return Missing(f"{FAILED} {str(error).strip().splitlines()[-1][:200]}")

    def case(self, preset: str, length: int, **changes: Any) -> Case:
        """A case at full size, or its substitute at toy size."""
        if self.is_toy:
            return Case(self.folder, "tiny", length // 4, 1024, device=self.device, seconds=0.2, rounds=2, **changes)
        return Case(self.folder, preset, length, 65536, device=self.device, **changes)

    def judged(self, row: Row, target: str, is_met: bool) -> Row:
        """The row with its target; at toy size there is none."""
        return row if self.is_toy else replace(row, target=target, met=is_met)


def named(package: str, how: str) -> str:
    try:
        return f"{package} {version(package)}, {how}"
    except PackageNotFoundError:
        return f"{package}, {how}"


def share(run: Run, case: Case, at_least: float | None, measures_loader: bool = False) -> Any:
    """Measures our side, and yields its share and what was compiled late; returns the measurements."""
    if case.objective == "mlm+nsp":
        make_weights(case)
    ours = run.attempt(f"ours: {case.name}", train_ours, case, measures_loader)
    if isinstance(ours, Missing):
        yield Row(f"{case.name}: share, {ours.reason}", None)
        return ours
    run.note(ours.notes)
    used = ours.flops / median(ours.seconds) / run.rate
    row = Row(f"{case.name}: share", used)
    yield row if at_least is None else run.judged(row, f"at least {at_least:.2f}", used >= at_least)
    captured = f" ({ours.new_captures} more shapes captured)" if ours.new_captures else ""
    late = Row(f"{case.name}: graphs compiled after the warm-up{captured}", float(ours.recompilations))
    yield run.judged(late, "none", ours.recompilations == 0)
    return ours


def share_only(run: Run, case: Case, at_least: float) -> Iterator[Row]:
    ours = yield from share(run, case, at_least)
    if isinstance(ours, Taken):
        yield Row(f"{case.name}: real tokens", ours.tokens / median(ours.seconds), unit="tokens/s")


def train_beside(run: Run, case: Case, how: str) -> Any:
    return run.attempt(f"transformers, {how}: {case.name}", train_theirs, case, how == COMPILED)


def speed(run: Run, case: Case, ours: Any, theirs: Any, how: str, at_least: float | None) -> Iterator[Row]:
    """Tokens per second of both sides."""
    is_theirs = how in (EAGER, COMPILED)
    peer = named("transformers", how) if is_theirs else how
    if isinstance(theirs, Taken) and theirs.micro_batches > 1:
        peer += f", {theirs.micro_batches} micro-batches"
    figures = [its.tokens / median(its.seconds) if isinstance(its, Taken) else None for its in (ours, theirs)]
    reasons = [reason(its) for its in (ours, theirs) if not isinstance(its, Taken)]
    what = ", ".join([case.name, *reasons])
    row = Row(what, figures[0], peer, figures[1], "tokens/s")
    if reasons or not (isinstance(ours, Taken) and isinstance(theirs, Taken)):
        yield row
        return
    ratios = [its / our * ours.tokens / theirs.tokens for our, its in zip(ours.seconds, theirs.seconds, strict=True)]
    ratio = (figures[0] or 0) / (figures[1] or 1)
    row = replace(row, ratio=ratio, spread=(min(ratios), max(ratios)))
    yield row if at_least is None else run.judged(row, f"at least {at_least:.2f}x", ratio >= at_least)


def memory(run: Run, case: Case, ours: Any, theirs: Any) -> Iterator[Row]:
    """The most memory allocated by each side, and in words the most that each reserved."""
    peer = named("transformers", EAGER)
    peaks = [its.memory if isinstance(its, Taken) else None for its in (ours, theirs)]
    allocated = [None if peak is None else peak[0] / GIB for peak in peaks]
    reserved = " and ".join("?" if peak is None else f"{peak[1] / GIB:.3g}" for peak in peaks)
    what = f"{case.name}: memory allocated (reserved: {reserved} GiB)"
    row = Row(what, allocated[0], peer, allocated[1], "GiB")
    if allocated[0] is None or allocated[1] is None or theirs.micro_batches > 1:
        yield row  # smaller micro-batches take less: not comparable
        return
    used = allocated[0] / allocated[1]
    yield run.judged(row, f"at most {LARGEST_MEMORY:.0%} ({used:.0%})", used <= LARGEST_MEMORY)


def agreement(case: Case, ours: Any, theirs: Any) -> Iterator[Row]:
    """The losses of the first batch: ours as the step computes it, and the peer's, or with no peer our own in fp32."""
    if not isinstance(ours, Taken) or isinstance(theirs, Missing):
        yield Row(f"{case.name}: losses, {reason(ours if isinstance(ours, Missing) else theirs)}", None)
        return
    norms = "" if theirs is None else f"; gradient norms {ours.gradient_norm:.4g} and {theirs.gradient_norm:.4g}"
    pairs = {
        precision: (ours.losses[precision], ours.losses["fp32"] if theirs is None else theirs.losses[precision])
        for precision in (["bf16"] if theirs is None else ["fp32", "bf16"])
    }
    peer = "ours, plain module in fp32" if theirs is None else named("transformers", "first step")
    for precision, (our, its) in pairs.items():
        yield _agreed(f"{case.name}: loss of the first batch, {precision}", precision, our, its, peer, norms)


def _agreed(what: str, precision: str, our: float, its: float, peer: str, more: str = "") -> Row:
    """A row that judges whether two losses agree, at toy size too: size does not matter for that."""
    bound, difference = LARGEST_DIFFERENCE[precision], abs(our - its) / abs(its)
    told = f"within {bound:g} ({difference:.1e}){more}"
    return Row(what, our, peer, its, "nats", target=told, met=difference <= bound)


def tuning_rows(run: Run, tuning: Tuning, ours: Any, theirs: Any, how: str, at_least: float | None) -> Iterator[Row]:
    """Examples per second of both sides, steady and as a user waits for them; losses and lengths of both."""
    peer = named("transformers", how)
    what = f"fine-tuning, {tuning.task}, mean length {mean(tuning.longest):.0f}"
    if not (isinstance(ours, Tuned) and isinstance(theirs, Tuned)):
        reasons = [reason(its) for its in (ours, theirs) if not isinstance(its, Tuned)]
        figures = [its.steady if isinstance(its, Tuned) else None for its in (ours, theirs)]
        yield Row(", ".join([what, *reasons]), figures[0], peer, figures[1], "examples/s")
        return
    rows = {
        "as it goes, tokenization and metrics included": (ours.steady, theirs.steady),
        "steps alone": tuple(its.steps_per_s * tuning.batch_size for its in (ours, theirs)),
        "three epochs as they are waited for, compilation included": (ours.waited, theirs.waited),
    }
    told = [Row(f"{what}: {name}", our, peer, its, "examples/s", our / its) for name, (our, its) in rows.items()]
    if at_least is None:
        yield from told  # the rest is reported beside the other peer
        return
    yield run.judged(told[0], f"at least {at_least:.2f}x", ours.steady / theirs.steady >= at_least)
    yield from told[1:]
    for precision, loss in ours.losses.items():
        name = f"{what}: loss of the first batch, {precision}"
        yield _agreed(name, precision, loss, theirs.losses[precision], named("transformers", "first batch"))
    expected = tuple(tuning.longest)
    wrong = sum(a != b for side in (ours, theirs) for a, b in zip(side.token_lengths, expected, strict=True))
    row = Row(f"{what}: of another length than listed, on either side", float(wrong), unit="examples")
    yield replace(row, target="none", met=wrong == 0)


def reason(its: Any) -> str:
    return its.reason if isinstance(its, Missing) else "not measured"
