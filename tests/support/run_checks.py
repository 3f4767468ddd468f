"""What the tests of the doctor's checks of runs share."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from unmask.doctor.findings import Finding

CAUSES = {"learning-rate-too-high", "other-vocabulary", "repeated-corpus", "duplicates"}

RUN_RECIPE = """
seed: 0
device: cpu
precision: fp32
held_out: 0.2
model: {preset: tiny, hidden_size: 64, num_attention_heads: 2, max_position_embeddings: 64}
packing: {max_length: 64}
optimizer: {learning_rate: 3e-3}
schedule: {warmup_steps: 10}
train: {steps: 120, batch_size: 16, log_every: 10, eval_every: 60, eval_sequences: 200, save_every: 60}
"""
"""Of a real run that takes some seconds."""

MLM_FLOORS = {"mlm-uniform-floor", "mlm-unigram-floor", "mlm-no-context-floor", "mlm-no-context-accuracy-floor"}


def levels_of(findings: Sequence[Finding]) -> dict[str, str]:
    return {finding.name: finding.level for finding in findings}


def faults_of(findings: Sequence[Finding]) -> set[str]:
    """Those at the level of a fault, and whichever of the causes is at another level."""
    assert all(finding.message and (finding.advice or finding.level in ("good", "note")) for finding in findings)
    return {finding.name for finding in findings if finding.level == "fault" or finding.name in CAUSES}


def copy_with_store(run: Path, copy: Path, store: Path) -> None:
    """A copy of a run whose recipe names another store."""
    shutil.copytree(run, copy)
    lines = (run / "recipe.yaml").read_text(encoding="utf-8").splitlines()
    changed = [f"store: {store}" if line.startswith("store:") else line for line in lines]
    (copy / "recipe.yaml").write_text("\n".join(changed) + "\n", encoding="utf-8")
