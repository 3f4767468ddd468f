"""What every pre-training objective promises of its training: it learns, goes on from a checkpoint, and is saved."""

from __future__ import annotations

from dataclasses import asdict, replace
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import nn

from support.checkpoints import save_checkpoint
from support.tensors import assert_equal
from unmask.batch import Batch, LossTerm
from unmask.models.hub.directory import load_encoder
from unmask.models.hub.source import open_source
from unmask.objectives.bilm import BiLMModule
from unmask.packing.loader import Position
from unmask.pretraining.checkpoint_model import save_pretrained
from unmask.training.optimizers.optimizer import Schedule, build_optimizer
from unmask.training.run.checkpoint import open_checkpoint, restore
from unmask.training.settings import OptimizerSettings, ScheduleSettings
from unmask.training.state import TrainState


def mean_loss(terms: list[LossTerm], counts: dict[str, int]) -> torch.Tensor:
    return torch.stack([term.coefficient * term.total / max(1, counts[term.name]) for term in terms]).sum()


def take_steps(case: Any, module: Any, optimizer: torch.optim.Optimizer, start: Position, number: int) -> Position:
    """Takes steps from a position on, in ragged micro-batches, and tells the next one."""
    for step in islice(replace(case.loader, micro_batch_size=3).steps(start), number):
        for batch in map(case.objective.prepare, step.batches):
            mean_loss(module(batch), case.objective.counts(batch)).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()
        start = step.after
    return start


def test_what_goes_on_from_a_checkpoint_is_what_never_stopped(case: Any, tmp_path: Path) -> None:
    """Bit for bit: all that an objective remembers is in the module's state, and masks are told by the position."""
    settings, schedule = OptimizerSettings(learning_rate=1e-2), Schedule(ScheduleSettings())
    module = case.module()
    optimizer = build_optimizer(module, settings)
    position = take_steps(case, module, optimizer, Position(), 2)
    save_checkpoint(tmp_path, module, optimizer, schedule, TrainState(step=2), asdict(position), keep_last=1)
    take_steps(case, module, optimizer, position, 2)
    resumed = case.module()
    with torch.no_grad():
        for parameter in resumed.parameters():
            parameter.zero_()
    its = build_optimizer(resumed, settings)
    state = restore(open_checkpoint(tmp_path, 2), resumed, its, schedule)
    take_steps(case, resumed, its, Position(**state.position), 2)
    assert_equal(resumed.state_dict(), module.state_dict())


def test_what_is_saved_loads_equal(case: Any, tmp_path: Path) -> None:
    module: nn.Module = case.module().eval()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.02)  # so that no weight is as fresh ones are
    save_pretrained(module, case.tokenizer, tmp_path, None)  # type: ignore[arg-type]
    torch.manual_seed(7)
    loaded = case.objective.build(load_encoder(tmp_path, pooler=case.objective.needs_pooler).encoder)
    case.objective.restore_heads(loaded, open_source(tmp_path))
    again = case.in_stage(loaded).eval()
    batch = case.batch()
    unsaved = ("masked_lm_head", "copying_head") if case.recipe.objective.name == "replaced_token" else ()
    fresh = {name: weight for name, weight in module.state_dict().items() if name.startswith(unsaved)}
    again.load_state_dict(fresh, strict=False)
    assert_equal(again.state_dict(), module.state_dict())
    with torch.no_grad():
        first, second = module(batch), again(batch)
    for term, same_term in zip(first, second, strict=True):
        assert isinstance(term, LossTerm)
        assert torch.equal(term.total, same_term.total)


@torch.no_grad()
def scores_of(module: Any, batch: Batch, terms: set[str]) -> dict[str, float]:
    """The loss and the accuracy of the terms that are trained."""
    scores = {name: float(total) / max(1, count) for name, (total, count) in module.scores(batch).items()}
    wanted = [f"{term}_{figure}" for term in terms for figure in ("loss", "accuracy")]
    return {name: scores[name] for name in wanted}


def is_learnt(scores: dict[str, float]) -> bool:
    return all(value == 1 if name.endswith("accuracy") else value < 0.1 for name, value in scores.items())


def forget(module: nn.Module) -> None:
    """Lets a module that has read a stream begin it anew, as its evaluation does."""
    if isinstance(module, BiLMModule):
        module.remembered_outputs.zero_()
        module.remembered_cells.zero_()


def test_it_learns_a_small_batch_by_heart(case: Any) -> None:
    """Left to right only one sequence can be: what follows the first token of several is not told by it. A generator
    that has learnt its batch replaces nothing any more, which the discriminator then says. Words that are in no sample
    of the softmax are never told from the right ones, so that one is judged by its own loss."""
    module, batch = case.module(), case.batches(micro_batch_size=4 if case.masks else 1)[0]
    trained = {term.name for term in module(batch)}

    def learnt(loss: float) -> bool:
        return loss < 0.1 if case.samples_words else is_learnt(scores_of(module, batch, trained))

    assert not learnt(float("inf"))
    optimizer = torch.optim.Adam(module.parameters(), lr=1e-2)
    for _ in range(160):
        for _ in range(5):
            forget(module)
            loss = mean_loss(module(batch), case.objective.counts(batch))
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        if learnt(float(loss.detach())):
            break
    assert learnt(float(loss.detach())), (float(loss.detach()), scores_of(module, batch, trained))
