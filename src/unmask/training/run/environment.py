"""What a run works with, in `environment.json`: of each session the machine, the versions and the command."""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import platform
import subprocess
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

from unmask.errors import InputError
from unmask.io.json_files import read_object
from unmask.io.writing import write_json

ENVIRONMENT = "environment.json"

_CODE = {"git_commit": "the commit of unmask", "source_sha256": "the code of unmask"}
"""What `code_here` says besides versions, in words."""


def write_environment(
    directory: Path,
    *,
    recipe: str,
    command: Sequence[str],
    seed: int,
    device: str,
    num_threads: int,
    budget_change: Mapping[str, Any] | None = None,
) -> None:
    """Writes down what a session of a run works with, in `environment.json`: `{"sessions": [first, ..., this one]}`.

    Args:
        directory: the run directory; the sessions that a resumed run had before are kept.
        command: the words that the program was started with; only the command line of `unmask` is written down.
        device: as `Compute.describe` says it.
        budget_change: of a session that continues from a checkpoint, see `budget_changes`: its `step`, and what the
            budget `was` and is `now`; steps after it that earlier sessions took under another budget are lost.

    Raises:
        InputError: the file is there and is not what this function writes.
    """
    path = directory / ENVIRONMENT
    own = command if command[:1] == ["unmask"] else []  # not a notebook's kernel
    session = {
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "recipe": recipe,
        "command": [word.encode("utf-8", errors="backslashreplace").decode() for word in own],
        "seed": seed,
        "device": device,
        "num_threads": num_threads,
        "num_cpus": os.cpu_count(),
        "processor": _processor(),
        "platform": platform.platform(),
        **code_here(),
        **({} if budget_change is None else {"budget_change": budget_change}),
    }
    write_json(path, {"sessions": [*read_sessions(path), session]})


def read_sessions(path: Path) -> list[dict[str, Any]]:
    """The sessions in an `environment.json`, the first one first; none where there is no such file. Raises InputError
    if it is not what `write_environment` writes."""
    if not path.exists():
        return []
    try:
        sessions = read_object(path).get("sessions")
        if not (isinstance(sessions, list) and all(isinstance(session, dict) for session in sessions)):
            raise InputError("`sessions` is not a list of objects")
    except InputError as error:
        raise InputError(f"{path} is not a record of a run's sessions ({error}): fix it, or move it away") from error
    return sessions


def budget_changes(sessions: Sequence[Mapping[str, Any]]) -> list[str]:
    """Where the budget of a run was changed so that its rates are not those of its recipe from the beginning: "at step
    300, from train.steps=300 to train.steps=400"."""
    return [describe_budget_change(change) for change in changed_budgets(sessions)]


def describe_budget_change(change: Mapping[str, Any]) -> str:
    return f"at step {change['step']:,}, from {change['was']} to {change['now']}"


def changed_budgets(sessions: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The changes of `budget_changes`: each the `step` done, and what the budget `was` and is `now`."""
    found: list[Mapping[str, Any]] = []
    for change in filter(None, (session.get("budget_change") for session in sessions)):
        while found and found[-1]["step"] >= change["step"]:  # of whose steps none is left
            change = {**change, "was": found.pop()["was"]}
        if change["was"] != change["now"]:
            found.append(change)
    return found


def installed_versions() -> dict[str, str | None]:
    """Those that what is trained may depend on."""
    return {"python": platform.python_version()} | {
        name: _version(name) for name in ("unmask", "torch", "numpy", "tokenizers")
    }


def code_differences(before: Mapping[str, Any]) -> dict[str, tuple[str | None, str | None]]:
    """The versions, the commit of a checkout of `unmask` and the checksum of its source that are not those of a
    session: by name, before and now.

    What the session does not say is not compared, nor are commits unless both are known.
    """
    here = code_here()
    versions = before.get("versions")
    known = dict(versions) if isinstance(versions, dict) else {}
    now = here["versions"]
    for key, name in _CODE.items():
        if before.get(key) and here[key]:
            known[name], now[name] = before[key], here[key]
    return {name: (known[name], now[name]) for name in now if name in known and known[name] != now[name]}


def code_here() -> dict[str, Any]:
    """What `code_differences` compares, of this process."""
    source = Path(__file__)
    return {
        "git_commit": _git_commit(source),
        "source_sha256": _source_sha256(source.parents[2]),
        "versions": installed_versions(),
    }


@cache
def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


@cache
def _source_sha256(package: Path) -> str:
    """The first digits of a checksum of all modules of a package and their names."""
    digest = hashlib.sha256()
    for path in sorted(package.rglob("*.py")):
        digest.update(path.relative_to(package).as_posix().encode() + path.read_bytes())
    return digest.hexdigest()[:12]


def _processor() -> str:
    """The processor's name; on Linux, Python can get it only from this file."""
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


@cache
def _git_commit(source: Path) -> str | None:
    """The commit of the checkout that `source` is a tracked file of, with `-dirty` where files were changed since."""
    git = ["git", "-C", str(source.parent)]
    try:
        # An installed package may lie inside a checkout of something else, where it is not tracked.
        subprocess.run([*git, "ls-files", "--error-unmatch", source.name], capture_output=True, check=True, timeout=10)
        described = subprocess.run(
            [*git, "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"],
            capture_output=True,
            check=True,
            timeout=10,
            text=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return described.stdout.strip()
