"""Runs compared with each other, and stopped at a step."""

from __future__ import annotations

import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from unmask.pretraining.run import pretrain
from unmask.training import session
from unmask.training.run import checkpoint
from unmask.training.run.log import read_metrics


def pretrain_without_report(recipe: str, words: list[str], run: Path) -> Path:
    """The run, where a fixture of many tests has made it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("unmask.pretraining.run.write_report", lambda *_, **__: None)
        pretrain(recipe, words, out=run)
    return run


def rows_of(run: Path) -> list[dict[str, Any]]:
    """All that was logged, but for how fast it went."""
    return [{k: v for k, v in row.items() if k != "tokens_per_s"} for row in read_metrics(run / "metrics.jsonl")]


def losses_of(run: Path) -> list[float]:
    return [row["loss"] for row in rows_of(run) if "loss" in row]


def examples(run: Path) -> list[int]:
    """The hashes of what was shown."""
    return [row["examples_hash"] for row in rows_of(run) if "examples_hash" in row]


def weights_of(model: Path) -> dict[str, Tensor]:
    return load_file(model / "model.safetensors")


def weight_bytes(model: Path) -> bytes:
    return (model / "model.safetensors").read_bytes()


def assert_same_weights(model: Path, other: Path) -> None:
    ours, theirs = weights_of(model), weights_of(other)
    assert ours.keys() == theirs.keys()
    for name, weight in ours.items():
        assert torch.equal(weight, theirs[name]), name


def assert_same_run(run: Path, other: Path) -> None:
    """To the last byte: figures, model, and the newest checkpoint."""
    assert rows_of(run) == rows_of(other)
    newest, same = (sorted((each / "checkpoints").iterdir())[-1].relative_to(each) for each in (run, other))
    assert newest == same
    names = [path.relative_to(other) for path in (other / "model").rglob("*") if path.is_file()]
    parts = [checkpoint.WEIGHTS, checkpoint.OPTIMIZER, checkpoint.RANDOM]
    for name in [*names, Path("results.json"), *(newest / part for part in parts)]:
        assert (run / name).read_bytes() == (other / name).read_bytes(), name


def raise_sigterm() -> None:
    signal.raise_signal(signal.SIGTERM)


def stop_at(monkeypatch: pytest.MonkeyPatch, step: int, stop: Callable[[], object] = raise_sigterm) -> None:
    """While a step is taken, a signal arrives, or what else `stop` does."""
    train = session.train

    def train_and_stop(*arguments: Any, **named: Any) -> None:
        *others, hooks = arguments

        def hook(state: Any, result: Any) -> None:
            if state.step == step:
                stop()
            hooks.on_step(state, result)

        train(*others, replace(hooks, on_step=hook), **named)

    monkeypatch.setattr(session, "train", train_and_stop)
