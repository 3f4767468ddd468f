"""Claim: whatever goes wrong with a pre-training run, the same command with --resume ends with the bytes of the run
that nothing happened to: the same model, the same rows in `metrics.jsonl`.

Each try starts a run of a tiny model in a process of its own, brings one fault upon it, and then gives the same command
with --resume. It counts as lost if the command ends with anything but a clear message and its exit code (a kill has
none), or if the resumed run differs from the unbroken one in one byte. 0 have to be lost in every row. Moments are
random: uniform over the time that the unbroken run takes. Processes are forked from one that has imported everything,
so that a try takes seconds; a command's own start is not part of it, nor is the report that a run ends with.

Rows that need a disk, a file system or a memory limit of their own make them, which takes root on Linux.
"""

from __future__ import annotations

import math
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fault_server import Ended, Process, Server
from measure import SAMPLE_TEXT, Row, machine, num_cores, parser, report

RECIPE = """
seed: 3
device: cpu
precision: fp32
held_out: 0.3
model: {preset: tiny, hidden_size: 32, num_attention_heads: 2, max_position_embeddings: 32, vocab_size: 200}
packing: {max_length: 32}
optimizer: {learning_rate: 1e-3}
schedule: {warmup_steps: 3}
train: {steps: 24, batch_size: 8, micro_batch_size: 3, log_every: 3, eval_every: 5, save_every: 2, eval_sequences: 16}
"""
MEMORY_GROUPS = Path("/sys/fs/cgroup/memory")
UNREADABLE = ("log.txt", "tensorboard")
"""What no later session reads."""


class NotRun(Exception):  # noqa: N818  not a fault
    """A row cannot be run here; says what it needs."""


@dataclass
class Drill:
    """What the tries share: where they work, the command, and the run that nothing happened to."""

    work: Path
    server: Server
    chance: random.Random
    seconds: float = math.inf
    notes: Counter[str] = field(default_factory=Counter)

    @property
    def run(self) -> Path:
        return self.work / "run"

    def words(self, out: Path, *more: str) -> list[str]:
        recipe, store = self.work / "recipe.yaml", self.work / "store"
        return ["pretrain", str(recipe), f"store={store}", "--out", str(out), "--workers", "1", *more]

    def start(self, out: Path | None = None, *more: str, **how: Any) -> Process:
        return self.server.start(self.words(out or self.run, *more), **how)

    def moment(self) -> float:
        """Seconds after the start."""
        return self.chance.uniform(0, self.seconds)

    def interrupted(self) -> None:
        """A run with two checkpoints, stopped between rows, evaluations and checkpoints that are due."""
        _need(self.start(stop_at=7).wait(), 143)

    def at_the_ends(self, number: signal.Signals) -> list[int]:
        """The exit code where a signal comes before or after the command itself, when Python has no handler for it."""
        return [-number] if (self.run / "results.json").exists() or not self.run.exists() else []

    def check_resumed(self, out: Path | None = None, whole: str = "whole", words: list[str] | None = None) -> None:
        """Gives the command again with --resume, and compares what it ends with."""
        run = out or self.run
        _need(self.server.start([*(words or self.words(run)), "--resume"]).wait(), 0)
        differing = differences(run, self.work / whole)
        if differing:
            raise AssertionError(f"resumed, the run differs in {', '.join(differing)}")


def differences(run: Path, whole: Path) -> list[str]:
    """The files of a model that differ from another's, and `metrics.jsonl` if a row does in more than its speed."""
    from unmask.training.run.log import read_metrics

    names = [str(path.relative_to(whole)) for path in (whole / "model").iterdir()] + ["results.json"]
    found = [name for name in names if (run / name).read_bytes() != (whole / name).read_bytes()]
    rows = [
        [{key: value for key, value in row.items() if key != "tokens_per_s"} for row in read_metrics(each)]
        for each in (run / "metrics.jsonl", whole / "metrics.jsonl")
    ]
    return found + ["metrics.jsonl"] * (rows[0] != rows[1])


def _need(ended: Ended, *codes: int, message: str = "") -> Ended:
    """A process that has ended as it should: with one of these codes, without a traceback, and with a message."""
    last = [line for line in ended.errors.splitlines() if not line.startswith("the traceback")][-1:] or ["nothing"]
    if ended.code not in codes or "Traceback" in ended.errors:
        raise AssertionError(f"exit code {ended.code} where {codes} was expected: {last[0]}")
    if ended.code == 2 and not (any(line.startswith("error: ") for line in ended.errors.splitlines())):
        raise AssertionError(f"no message: {last[0]}")
    if ended.code in (130, 143) and "stopped" not in last[0]:
        raise AssertionError(f"not told how it was stopped: {last[0]}")
    if ended.code == 2 and message not in ended.errors:
        raise AssertionError(f"the message does not say {message!r}: {last[0]}")
    return ended


def killed(drill: Drill, number: int) -> None:
    """At a random moment; every second time, while a random one of the checkpoints is being written."""
    checkpoints = drill.run / "checkpoints"
    unfinished = checkpoints / f".unfinished-step-{drill.chance.randrange(2, 25, 2):08d}"
    process = drill.start()
    if number % 2:
        while process.is_alive() and not unfinished.exists():
            pass
        time.sleep(drill.chance.uniform(0, 0.005))
    else:
        time.sleep(drill.moment())
    process.send(signal.SIGKILL)
    drill.notes["after its end"] += _need(process.wait(), 0, -signal.SIGKILL).code == 0
    drill.notes["within a checkpoint"] += any(checkpoints.glob(".unfinished-*"))
    drill.check_resumed()


def stopped(drill: Drill, number: int) -> None:
    """SIGTERM."""
    process = drill.start()
    time.sleep(drill.moment())
    process.send(signal.SIGTERM)
    ended = _need(process.wait(), 0, 143, *drill.at_the_ends(signal.SIGTERM))
    drill.notes["saved a checkpoint"] += "everything is saved" in ended.errors
    drill.check_resumed()


def stopped_twice(drill: Drill, number: int) -> None:
    """Ctrl-C, and again within a fifth of a second."""
    process = drill.start()
    time.sleep(drill.moment())
    process.send(signal.SIGINT)
    time.sleep(drill.chance.uniform(0, 0.2))
    process.send(signal.SIGINT)
    _need(process.wait(), 0, 130, *drill.at_the_ends(signal.SIGINT))
    drill.check_resumed()


@contextmanager
def mounted(drill: Drill, *words: str) -> Iterator[Path]:
    """A file system of its own."""
    place = drill.work / "disk"
    place.mkdir(exist_ok=True)
    done = subprocess.run(["mount", *words, str(place)], capture_output=True, text=True)
    if done.returncode:
        raise NotRun(f"needs root to mount a file system ({done.stderr.strip()})")
    try:
        yield place
    finally:
        subprocess.run(["umount", str(place)], check=True)


def full_disk(drill: Drill, number: int) -> None:
    """A disk with less space than the run needs, by a random amount: whichever write comes then is the one to fail."""
    need = sum(path.stat().st_size + 4096 for path in (drill.work / "whole").rglob("*"))
    with mounted(drill, "-t", "tmpfs", "-o", f"size={drill.chance.randrange(4096, int(need * 1.2))}", "tmpfs") as disk:
        ended = _need(drill.start(disk / "run").wait(), 0, 2, message="the disk is full")
        told = ended.errors.splitlines()[-1].partition(str(disk))[2].split(":")[0] if ended.code else "enough space"
        drill.notes["full at " + Path(told).name] += 1
        subprocess.run(["mount", "-o", "remount,size=64m", str(disk)], check=True)
        drill.check_resumed(disk / "run")


def read_only(drill: Drill, number: int) -> None:
    """ext4, aborted at a random moment as after an error of the disk: what has not reached it by then is lost too."""
    image = drill.work / "ext4"
    if not image.exists() and shutil.which("mkfs.ext4") is None:
        raise NotRun("needs mkfs.ext4")
    image.write_bytes(b"")
    os.truncate(image, 32 << 20)
    subprocess.run(["mkfs.ext4", "-q", str(image)], check=True)
    with mounted(drill, "-o", "loop", str(image)) as disk:
        process = drill.start(disk / "run")
        time.sleep(drill.moment())
        subprocess.run(["mount", "-o", "remount,abort", str(disk)], check=True)
        _need(process.wait(), 0, 2, message="Read-only file system")
    subprocess.run(["e2fsck", "-fy", str(image)], capture_output=True)
    with mounted(drill, "-o", "loop", str(image)) as disk:
        drill.check_resumed(disk / "run")


def flipped_byte(drill: Drill, number: int) -> None:
    """One bit of one file, of the run and of its store in turn. Refused, the file is restored and the run resumed."""
    drill.interrupted()
    files = sorted(path for each in (drill.run, drill.work / "store") for path in each.rglob("*") if path.is_file())
    files = [path for path in files if not any(name in str(path) for name in UNREADABLE)]
    path = files[number % len(files)]
    sound = path.read_bytes()
    place = drill.chance.randrange(len(sound))
    flipped = sound[:place] + bytes([sound[place] ^ 1 << drill.chance.randrange(8)]) + sound[place + 1 :]
    path.write_bytes(flipped)
    try:
        ended = _need(drill.start(None, "--resume").wait(), 0, 2)
        if ended.code:
            drill.notes["refused"] += 1
            path.write_bytes(sound)
        elif found := differences(drill.run, drill.work / "whole"):
            raise AssertionError(f"byte {place} of {path.name}: the run differs in {', '.join(found)}")
        drill.check_resumed()
    except AssertionError as error:
        raise AssertionError(f"byte {place} of {path.name}: {error}") from error
    finally:
        if path.is_relative_to(drill.work / "store"):
            path.write_bytes(sound)


def worker_killed(drill: Drill, number: int) -> None:
    """One of two processes that prepare the corpus of the run."""
    words = [word for word in drill.words(drill.run) if not word.startswith("store=")]
    words = [*words, f"corpus={drill.work / 'corpus.jsonl'}", f"tokenizer={drill.work / 'tokenizer'}"]
    if not (drill.work / "whole_of_corpus").exists():
        _need(drill.server.start([*words, "--out", str(drill.work / "whole_of_corpus")]).wait(), 0)
    process = drill.server.start([*words, "--workers", "2"])
    while process.is_alive() and len(process.children()) < 3:  # of which the first only tracks what they share
        pass
    time.sleep(drill.chance.uniform(0, 2))
    for worker in process.children()[1:2]:
        os.kill(worker, signal.SIGKILL)
    ended = _need(process.wait(), 0, 2, message="a worker process was killed")
    drill.notes["killed at work"] += ended.code == 2
    drill.check_resumed(whole="whole_of_corpus", words=words)


def clock_set_back(drill: Drill, number: int) -> None:
    """By a day, at a random moment, as Python's `time.time` tells it; the system's own calls keep the true time."""
    process = drill.start(clock_back_after=drill.moment(), stop_at=7)
    _need(process.wait(), 0, 143)
    drill.check_resumed()


def two_runs(drill: Drill, number: int) -> None:
    """The second one, to resume or to overwrite, is refused at any moment of the first, which it does not disturb."""
    process = drill.start()
    while process.is_alive() and not (drill.run / "log.txt").exists():
        pass
    time.sleep(drill.moment() / 2)
    second = drill.start(None, ("--resume", "--overwrite")[number % 2]).wait()
    if process.is_alive():
        _need(second, 2, message="another process works there")
        drill.notes["refused"] += 1
    _need(process.wait(), 0)
    drill.check_resumed()


def other_recipe(drill: Drill, number: int) -> None:
    """Each key that a resumed run cannot change, with another value."""
    from unmask.recipe.loading import load_pretrain_recipe
    from unmask.training.run.resuming import RESUMABLE_KEYS

    drill.interrupted()
    recipe = load_pretrain_recipe(str(drill.work / "recipe.yaml"), [f"store={drill.work / 'store'}"])
    keys = dict(_leaves(recipe.model_dump()))
    changes = [(key, value) for key, value in keys.items() if key not in RESUMABLE_KEYS]
    key, value = changes[number % len(changes)]
    new = str(not value).lower() if isinstance(value, bool) else value + 1 if isinstance(value, int) else value / 2
    _need(drill.start(None, f"{key}={new}", "--resume").wait(), 2, message=key.partition(".")[0])
    drill.check_resumed()


def _leaves(values: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Numbers and booleans by their dotted keys."""
    for name, value in values.items():
        if isinstance(value, dict):
            yield from _leaves(value, f"{prefix}{name}.")
        elif isinstance(value, bool | int | float) and value:
            yield f"{prefix}{name}", value


def memory_refused(drill: Drill, number: int) -> None:
    """RLIMIT_AS, 1 MiB to 1 GiB above what the process has at its start: from then on the system refuses."""
    ended = drill.start(memory=int(2 ** drill.chance.uniform(20, 30))).wait()
    _need(ended, 0, 2, -signal.SIGABRT, -signal.SIGSEGV, message="memory")
    drill.notes[{0: "enough", 2: "told"}.get(ended.code, "crashed")] += 1
    drill.check_resumed()


def memory_gone(drill: Drill, number: int) -> None:
    """The system's own killer, at the allocation that crosses a limit of 4 to 128 MiB for what the process adds."""
    group = MEMORY_GROUPS / f"fault-drill-{os.getpid()}"
    try:
        group.mkdir()
    except OSError as error:
        raise NotRun(f"needs root and memory control groups, version 1 ({error.strerror})") from error
    try:
        (group / "memory.limit_in_bytes").write_text(str(int(2 ** drill.chance.uniform(22, 27))))
        ended = _need(drill.start(group=str(group)).wait(), 0, 2, -signal.SIGKILL)
        drill.notes["killed" if ended.code else "enough"] += 1
    finally:
        group.rmdir()
    drill.check_resumed()


FAULTS: dict[str, Callable[[Drill, int], None]] = {
    "kill": killed,
    "sigterm": stopped,
    "ctrl-c-twice": stopped_twice,
    "full-disk": full_disk,
    "read-only": read_only,
    "flipped-byte": flipped_byte,
    "worker-killed": worker_killed,
    "clock-back": clock_set_back,
    "two-runs": two_runs,
    "other-recipe": other_recipe,
    "memory-refused": memory_refused,
    "memory-gone": memory_gone,
}


def drill_row(drill: Drill, name: str, tries: int) -> tuple[Row, list[str]]:
    """The tries of one fault, each in an empty place; what the faults met, or why none was brought about; each loss."""
    losses, notes, done = list[str](), list[str](), 0
    drill.notes.clear()
    while done < tries:
        shutil.rmtree(drill.run, ignore_errors=True)
        try:
            FAULTS[name](drill, done)
        except NotRun as error:
            notes.append(f"{name}: not run: {error}")
            break
        except AssertionError as error:
            losses.append(f"{name}, try {done}: {error}")
        done += 1
        print(f"{name}: {done} of {tries}, {len(losses)} lost {losses[-1:]}", file=sys.stderr)
    if drill.notes:
        notes.append(f"{name}: " + ", ".join(f"{what} {times}" for what, times in drill.notes.most_common()))
    row = Row(name, len(losses), unit=f"lost of {done}", target="0", met=not losses) if done else Row(name, None)
    return row, [*notes, *losses]


def prepare(drill: Drill) -> None:
    """The text, the store, the recipe, and the run that nothing happens to."""
    from unmask import TokenizerSettings, train_tokenizer
    from unmask.store.preparation import prepare

    (drill.work / "text.jsonl").write_bytes(b"".join(SAMPLE_TEXT.read_bytes().splitlines(True)[:12]))
    train_tokenizer([drill.work / "text.jsonl"], drill.work / "tokenizer", TokenizerSettings(vocab_size=200))
    prepare([drill.work / "text.jsonl"], drill.work / "tokenizer", drill.work / "store")
    (drill.work / "corpus.jsonl").write_bytes(SAMPLE_TEXT.read_bytes() * 4)
    (drill.work / "recipe.yaml").write_text(RECIPE)
    for name in ("whole", "second", "third"):  # the quickest, so that few faults come after the end of a run
        began = time.perf_counter()
        _need(drill.start(drill.work / name).wait(), 0)
        drill.seconds = min(drill.seconds, time.perf_counter() - began)


def main() -> int:
    words = parser(__doc__)
    words.add_argument("--kills", type=int, default=200, metavar="N", help="tries of the row `kill`")
    words.add_argument("--tries", type=int, default=40, metavar="N", help="tries of every other row")
    words.add_argument("--rows", nargs="+", choices=FAULTS, default=list(FAULTS), metavar="NAME")
    words.add_argument("--seed", type=int, default=0, help="of the random moments")
    given = words.parse_args()
    with tempfile.TemporaryDirectory() as folder, Server(Path(folder)) as server:
        drill = Drill(Path(folder), server, random.Random(given.seed))
        prepare(drill)
        drilled = [drill_row(drill, name, given.kills if name == "kill" else given.tries) for name in given.rows]
    rows, notes = [row for row, _ in drilled], [note for _, told in drilled for note in told]
    on = machine(num_cores()) | {"an unbroken run, seconds": round(drill.seconds, 2)}
    report("Faults, and the same command with --resume", rows, on, notes, given.json)
    return int(any(row.met is False for row in rows))


if __name__ == "__main__":
    sys.exit(main())
