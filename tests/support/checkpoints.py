"""Checkpoints written at once, for tests that look at what is written."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from unmask.training.optimizers.optimizer import Schedule
from unmask.training.run.checkpoint import take_snapshot
from unmask.training.run.saving import write_checkpoint
from unmask.training.settings import TrainSettings
from unmask.training.state import TrainState


def save_checkpoint(
    checkpoints: Path,
    module: nn.Module,
    optimizer: torch.optim.Optimizer,
    schedule: Schedule,
    state: TrainState,
    position: dict[str, int],
    keep_last: int,
    save_every: int | None = None,
    keep_every: int | None = None,
    recipe: dict[str, Any] | None = None,
) -> Path:
    """Writes a checkpoint, as a run does beside its steps."""
    snapshot = take_snapshot(module, optimizer, schedule, replace(state, position=position), "", recipe or {})
    settings = TrainSettings(steps=1, keep_last=keep_last, save_every=save_every, keep_every=keep_every)
    return write_checkpoint(checkpoints, snapshot, settings)
