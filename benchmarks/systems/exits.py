"""When masked models leave the plateau on which they know frequencies alone: at which step and after how many tokens
the held-out loss is .1 nat under its floor, over several seeds. A run is ended there."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median
from typing import Any

from systems.plan import SYSTEMS, folder_of, recipe_words

UNDER_NATS = 0.1
EVALUATIONS = ("train.eval_every=100", "train.eval_sequences=500", "train.log_every=100", "train.save_every=1000")
LOOK_EVERY_S = 2.0


def exits_of(out: Path, names: Sequence[str], seeds: int, workers: int) -> None:
    """Runs each system with each seed until it has left its plateau or its budget ends, `workers` at a time."""
    for name in names:
        run = out / "exits" / f"{folder_of(name)}-floor"
        if not (run / "results.json").exists():
            _start(run, out, name, "train.epochs=null", "train.steps=1").wait()
    jobs = [(name, seed) for seed in range(1, seeds + 1) for name in names]
    with ThreadPoolExecutor(workers) as pool:
        list(pool.map(lambda job: _run_until_exit(out, *job), jobs))
    print(table_of_exits(out, names))


def _start(run: Path, out: Path, name: str, *settings: str) -> subprocess.Popen[bytes]:
    words = ["pretrain", *recipe_words(out, SYSTEMS[name]), *EVALUATIONS, *settings, "--out", str(run), "--resume"]
    log = out / "logs" / f"exit-{run.name}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    print("unmask", *words, file=sys.stderr, flush=True)
    with log.open("ab") as file:
        environment = os.environ | {"OMP_NUM_THREADS": "1"}
        return subprocess.Popen([sys.executable, "-m", "unmask", *words], stdout=file, stderr=file, env=environment)


def _run_until_exit(out: Path, name: str, seed: int) -> None:
    """A run that is ended once it has left its plateau; one that has done so before is left as it is.

    Raises:
        RuntimeError: the run ended by itself and has no results.
    """
    run = out / "exits" / f"{folder_of(name)}-{seed}"
    if (run / "results.json").exists() or _when_left(out, name, run):
        return
    process = _start(run, out, name, f"seed={seed}")
    while process.poll() is None:
        time.sleep(LOOK_EVERY_S)
        if _when_left(out, name, run):
            process.send_signal(signal.SIGTERM)
            process.wait()
            return
    if not (run / "results.json").exists():
        raise RuntimeError(f"{run} has no results: see {out / 'logs'}")


def _floor(out: Path, name: str) -> tuple[str, float]:
    """The first loss of a system, as its evaluations call it, and what is had without context: in nats."""
    results = json.loads((out / "exits" / f"{folder_of(name)}-floor" / "results.json").read_text("utf-8"))
    loss, named = next(iter(results["floors"].items()))
    return f"eval/{loss.removeprefix('loss/')}_loss", next(iter(named.values()))


def _when_left(out: Path, name: str, run: Path) -> dict[str, Any] | None:
    """The first evaluation of a run that is far enough under the floor, with the tokens shown until then."""
    metrics, (loss, floor) = run / "metrics.jsonl", _floor(out, name)
    lines = metrics.read_text("utf-8").splitlines(keepends=True) if metrics.exists() else []
    tokens = 0
    for row in (json.loads(line) for line in lines if line.endswith("\n")):
        tokens = row.get("tokens", tokens)
        if row.get(loss, floor) < floor - UNDER_NATS:
            return {"step": row["step"], "tokens": tokens, "loss": row[loss]}
    return None


def table_of_exits(out: Path, names: Sequence[str]) -> str:
    titles = [f"first evaluation {UNDER_NATS:g} nat under the floor", "seeds", "median", "of each seed", "tokens"]
    lines = [f"| {' | '.join(titles)} |", "|---" * len(titles) + "|"]
    for name in names:
        runs = sorted((out / "exits").glob(f"{folder_of(name)}-[0-9]*"))
        found = [_when_left(out, name, run) for run in runs]
        if not found:
            continue
        steps = [float("inf") if at is None else at["step"] for at in found]
        cells = ["never" if at is None else f"{at['step']:,}" for at in found]
        middle = median(steps)
        tokens = median(float("inf") if at is None else at["tokens"] / 1e6 for at in found)
        shown = ["never", ""] if middle == float("inf") else [f"step {middle:,.0f}", f"{tokens:.1f} million"]
        lines.append(f"| {name} | {len(found)} | {shown[0]} | {', '.join(cells)} | {shown[1]} |")
    return "\n".join(lines)
