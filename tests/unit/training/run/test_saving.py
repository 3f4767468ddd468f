"""The thread that writes checkpoints: what Ctrl-C makes of one that is being written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from unmask.training.run import saving
from unmask.training.run.checkpoint import Snapshot, list_steps
from unmask.training.run.saving import CheckpointWriter
from unmask.training.settings import TrainSettings


def test_ctrl_c_while_a_checkpoint_is_waited_for_gives_it_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After another error: its block waits for what is being written."""
    writer = CheckpointWriter(tmp_path, TrainSettings(steps=1))
    shut_down = [writer._thread.shutdown]

    def interrupted() -> None:
        monkeypatch.setattr(writer._thread, "shutdown", shut_down[0])
        raise KeyboardInterrupt

    def slowly(*_: Any) -> None:
        assert writer._is_given_up.wait(10)

    monkeypatch.setattr(saving, "write_tensors", slowly)
    monkeypatch.setattr(writer._thread, "shutdown", interrupted)

    def fail() -> None:
        with writer:
            writer.write(Snapshot({"model.safetensors": {"weight": torch.zeros(3)}}, {"step": 1}))
            raise ValueError("an error of the step")

    with pytest.raises(KeyboardInterrupt):
        fail()
    assert list_steps(tmp_path) == []
    assert writer._writing is not None
    assert writer._writing.cancelled() or writer._writing.done()


def test_who_reads_a_run_reads_its_checkpoints(tmp_path: Path) -> None:
    """A colleague who resumes it, a server that runs as another user."""
    saved = {"model.safetensors": {"weight": torch.zeros(3)}}
    directory = saving.write_checkpoint(tmp_path, Snapshot(saved, {"step": 1}), TrainSettings(steps=1), lambda: False)
    modes = {file.name: file.stat().st_mode for file in directory.iterdir()}
    assert modes["model.safetensors"] == modes["state.json"]
