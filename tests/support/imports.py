"""What comes along with an import."""

from __future__ import annotations

import subprocess
import sys


def loaded_with(*modules: str) -> set[str]:
    """All that a process has imported that imported these modules."""
    look = f"import sys, {', '.join(modules)}; print(*sys.modules)"
    finished = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True)
    assert finished.returncode == 0, finished.stderr
    return set(finished.stdout.split())
