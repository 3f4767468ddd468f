"""What a run writes down of the machine, the versions and the code that it works with."""

from __future__ import annotations

import importlib.metadata
import re
import subprocess
import sys
from pathlib import Path

import pytest

from support.files import write
from unmask.errors import InputError
from unmask.training.run import environment
from unmask.training.run.environment import budget_changes, read_sessions, write_environment


def test_environment_keeps_the_earlier_sessions(tmp_path: Path) -> None:
    def write(command: list[str]) -> None:
        write_environment(tmp_path, recipe="bert_tiny", command=command, seed=7, device="cpu", num_threads=2)

    path = tmp_path / "environment.json"
    assert read_sessions(path) == []
    write(["unmask", "pretrain", "bert_tiny"])
    write(["unmask", "pretrain", "bert_tiny", "--resume"])
    first, second = read_sessions(path)
    assert first["command"] == ["unmask", "pretrain", "bert_tiny"]
    assert second["command"][-1] == "--resume"
    assert second["seed"] == 7
    assert second["versions"]["python"] == ".".join(map(str, sys.version_info[:3]))
    assert second["versions"]["torch"] == importlib.metadata.version("torch")
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00", second["started"])
    assert second["processor"]


def test_the_command_of_another_program_is_not_written_down(tmp_path: Path) -> None:
    kernel = ["/usr/lib/ipykernel_launcher.py", "-f", "kernel.json"]
    write_environment(tmp_path, recipe="bert_tiny", command=kernel, seed=7, device="cpu", num_threads=2)
    [session] = read_sessions(tmp_path / "environment.json")
    assert session["command"] == []


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ([], []),
        ([(300, 3, 4), (400, 4, 5)], ["at step 300, from 3 to 4", "at step 400, from 4 to 5"]),
        ([(1300, 3, 4), (1300, 4, 5)], ["at step 1,300, from 3 to 5"]),  # no step was taken with the first
        ([(300, 3, 4), (400, 4, 5), (300, 5, 3)], []),  # nothing was saved after 300
    ],
    ids=str,
)
def test_only_changes_of_the_budget_that_steps_were_taken_with_count(
    tmp_path: Path, changes: list[tuple[int, int, int]], expected: list[str]
) -> None:
    about = {"recipe": "x", "command": [], "seed": 0, "device": "cpu", "num_threads": 1}
    write_environment(tmp_path, **about)
    for step, was, now in changes:
        write_environment(tmp_path, **about, budget_change={"step": step, "was": str(was), "now": str(now)})
        write_environment(tmp_path, **about)
    assert budget_changes(read_sessions(tmp_path / "environment.json")) == expected


@pytest.mark.parametrize("text", ["{", "[]", '{"sessions": 3}', '{"sessions": [3]}', "{}"])
def test_a_foreign_environment_file_is_refused_and_kept(tmp_path: Path, text: str) -> None:
    path = tmp_path / "environment.json"
    path.write_text(text)
    with pytest.raises(InputError, match=r"environment\.json"):
        write_environment(tmp_path, recipe="x", command=[], seed=0, device="cpu", num_threads=1)
    assert path.read_text() == text


def test_the_git_commit_is_that_of_a_tracked_source_only(tmp_path: Path) -> None:
    def git(*words: str) -> None:
        name = ["-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false"]
        subprocess.run(["git", "-C", str(tmp_path), *name, *words], check=True, capture_output=True)

    tracked, foreign = tmp_path / "tracked.py", tmp_path / "foreign.py"
    tracked.write_text("1\n")
    foreign.write_text("1\n")
    try:
        git("init")
    except FileNotFoundError:
        pytest.skip("git is not installed")
    asked = environment._git_commit.__wrapped__  # a process remembers the answer
    assert asked(tracked) is None
    git("add", "tracked.py")
    git("commit", "-m", "first")
    commit = asked(tracked)
    assert re.fullmatch("[0-9a-f]{40}", commit)
    assert asked(foreign) is None
    tracked.write_text("2\n")
    assert asked(tracked) == f"{commit}-dirty"


def test_the_checksum_of_a_package_is_of_all_its_modules_and_their_names(tmp_path: Path) -> None:
    found = []
    for name, text in (("a/b.py", "1"), ("a/b.py", "2"), ("a/note.txt", "1"), ("c.py", "")):
        write(tmp_path / name, text)
        environment._source_sha256.cache_clear()
        found.append(environment._source_sha256(tmp_path))
    assert found[1] == found[2]
    assert len(set(found)) == 3
