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


@pytest.mark.parametrize("arguments", [["--help"], ["pretrain", "--help"]], ids=" ".join)
def test_help_imports_nothing_heavy(arguments: list[str]) -> None:
    imported = imported_by("-m", "unmask", *arguments)
    assert "unmask.cli" in imported
    assert not imported & HEAVY


def test_the_list_is_complete() -> None:
    assert imported_by("-c", "import numpy") >= {"numpy"}
