"""`unmask --help` answers at once because it imports nothing heavy: a test of what is imported, not of time."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

HEAVY = {"torch", "numpy", "pydantic", "tokenizers", "sklearn", "matplotlib", "unmask.recipe"}


def imported_by(*command: str) -> set[str]:
    """The modules that a Python process imports, as its own list on standard error says."""
    finished = subprocess.run([sys.executable, "-X", "importtime", *command], capture_output=True, text=True)
    assert finished.returncode == 0, finished.stderr.splitlines()[-1]
    return set(re.findall(r"^import time: +\d+ \| +\d+ \| +(\S+)$", finished.stderr, flags=re.MULTILINE))


def test_help_imports_nothing_heavy() -> None:
    imported = imported_by("-m", "unmask", "--help")
    assert "unmask.cli" in imported
    assert not imported & HEAVY


@pytest.mark.parametrize("command", ["pretrain", "predict", "info"])
def test_help_of_a_command_imports_nothing_heavy(command: str) -> None:
    imported = imported_by("-m", "unmask", command, "--help")
    assert not imported & (HEAVY - {"pydantic"})  # some versions of typer read a command's options with pydantic


def test_the_list_is_complete() -> None:
    assert imported_by("-c", "import numpy") >= {"numpy"}
