"""`task.window_pooling=learnt`: its weights go on in another run, and what cannot be done with them is refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from support.commands import Command

pytestmark = pytest.mark.usefixtures("one_thread", "without_report")

WINDOWS = ("task.long_text=windows", "task.max_length=6", "task.doc_stride=2")
LEARNT = (*WINDOWS, "task.window_pooling=learnt")
FAST = ("train.steps=6", "optimizer.learning_rate=1e-2", "schedule.warmup_ratio=0")
STANDING = ("keep_head=true", "optimizer.learning_rate=1e-30")
"""At which nothing moves."""


@pytest.fixture
def train(unmask: Command, place: Path, task_models: Any) -> Callable[..., Any]:
    (place / "rows.jsonl").write_text(task_models.examples["classification"], "utf-8")

    def run(out: str, *words: str) -> Any:
        given = task_models.words("classification", "rows.jsonl", *words)
        return unmask("finetune", "finetune/classification", *given, "--out", out)

    return run


def head_of(run: str) -> dict[str, Tensor]:
    return load_file(f"{run}/model/head.safetensors")


def test_another_run_goes_on_with_the_weights(train: Callable[..., Any]) -> None:
    assert train("first", *FAST, *LEARNT).code == 0
    assert head_of("first")["query"].abs().max() > 0
    assert train("second", "init_from=first", *STANDING, *LEARNT).code == 0
    assert torch.equal(head_of("second")["query"], head_of("first")["query"])
    refused = train("third", "init_from=first", *STANDING, *WINDOWS)
    assert refused.code == 2
    assert (
        "first/model was made with task.window_pooling=learnt, and the recipe has task.window_pooling=mean: set "
        in (refused.errors)
    )


@pytest.mark.parametrize("dropout", [(), ("task.classifier_dropout=0.2",)])
def test_a_plain_head_learns_to_weigh_from_now_on(train: Callable[..., Any], dropout: tuple[str, ...]) -> None:
    assert train("plain", *FAST, *WINDOWS).code == 0
    done = train("learnt", "init_from=plain", *STANDING, *LEARNT, *dropout)
    assert done.code == 0, done.errors
    before = load_file("plain/model/model.safetensors")["classifier.weight"]
    torch.testing.assert_close(head_of("learnt")["classifier.dense.weight"], before, atol=1e-9, rtol=0)


def test_what_cannot_be_done_is_refused(unmask: Command, train: Callable[..., Any]) -> None:
    assert train("learnt", *FAST, *LEARNT).code == 0
    assert train("cut", "task.max_length=6").code == 0
    refusals = {
        "windows weighed by a learnt query": ("export", "learnt", "--check", "rows.jsonl", "--out", "other"),
        "task.window_pooling cannot be set here": ("predict", "learnt", "rows.jsonl", "task.window_pooling=max"),
        "task.long_text cannot be set here": ("evaluate", "cut", "task.long_text=windows", "--data", "rows.jsonl"),
    }
    for told, asked in refusals.items():
        code, _, errors = unmask(*asked)
        assert (code, told in errors) == (2, True), (told, errors)
