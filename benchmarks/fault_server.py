"""A process that has imported everything and forks one command after another, upon which faults can be brought."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

SERVER = """
import json, os, resource, signal, sys, time
from dataclasses import replace
import torch._dynamo, torch.utils.tensorboard
import unmask.cli.main
from unmask.pretraining import run
from unmask.training import session

run.write_report = lambda *_, **__: None  # takes longer than the run, and holds nothing of its own

print("ready", flush=True)
for line in sys.stdin:
    asked = json.loads(line)
    if "wait" in asked:
        print(os.waitstatus_to_exitcode(os.waitpid(asked["wait"], 0)[1]), flush=True)
        continue
    pid = os.fork()
    if not pid:
        break
    print(pid, flush=True)
else:
    sys.exit()

for number, name in ((0, os.devnull), (1, asked["output"]), (2, asked["errors"])):
    os.dup2(os.open(name, os.O_RDWR | os.O_CREAT | os.O_TRUNC), number)
if "group" in asked:
    with open(asked["group"] + "/tasks", "w") as tasks:
        tasks.write(str(os.getpid()))
if "memory" in asked:
    used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + asked["memory"],) * 2)
if "clock_back_after" in asked:
    true_time, began = time.time, time.time()
    time.time = lambda: true_time() - 86400 * (true_time() - began > asked["clock_back_after"])
if "stop_at" in asked:
    train = session.train
    def train_and_stop(*arguments, **named):
        *others, hooks = arguments
        def hook(state, result):
            if state.step == asked["stop_at"]:
                signal.raise_signal(signal.SIGTERM)
            hooks.on_step(state, result)
        train(*others, replace(hooks, on_step=hook), **named)
    session.train = train_and_stop
sys.argv = ["unmask", *asked["words"]]
unmask.cli.main.main()
"""
"""Whatever it does for a fault, a forked process then is the command, from `main` to the end of the interpreter."""


@dataclass(frozen=True)
class Ended:
    """How a command ended; the code is minus the signal where one killed it."""

    code: int
    errors: str


class Server:
    """Forks commands, for a `with` block; their output goes to files in `work`."""

    def __init__(self, work: Path) -> None:
        self._work = work
        pipe = subprocess.PIPE
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "TMPDIR": str(work)}
        command = [sys.executable, "-c", SERVER]
        self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=environment)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.communicate()

    def ask(self, **asked: Any) -> int:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(asked) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        return int(self._process.stdout.readline() if answer == "ready\n" else answer)

    def start(self, words: list[str], **how: Any) -> Process:
        """Starts `unmask` with these words; `how` is what `SERVER` reads of a request."""
        number = len(list(self._work.glob("errors-*")))
        errors = self._work / f"errors-{number}"
        errors.touch()
        pid = self.ask(words=words, output=os.devnull, errors=str(errors), **how)
        return Process(self, pid, errors)


@dataclass(frozen=True)
class Process:
    """A command under way. Until it is waited for, its number is not given to another one."""

    server: Server
    pid: int
    errors: Path

    def send(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)

    def is_alive(self) -> bool:
        return Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"

    def children(self) -> list[int]:
        return [int(word) for word in Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()]

    def wait(self) -> Ended:
        code = self.server.ask(wait=self.pid)
        ended = Ended(code, self.errors.read_text(errors="replace"))
        self.errors.unlink()
        return ended
