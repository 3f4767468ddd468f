"""The evidence for judging a pre-training run: its figures, its weights, its store and its floors.

Everything is opened as the run itself opens it, so that text, masks and labels are those that it saw.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file
from torch import nn

from unmask.batch import Batch
from unmask.doctor.floors import Row
from unmask.errors import CheckpointError
from unmask.io.paths import MODEL
from unmask.models.hub.files import CONFIG
from unmask.objectives.base import Objective
from unmask.objectives.floors import Floor
from unmask.objectives.table import new_objective
from unmask.packing.split import Split
from unmask.pretraining.inputs import prepare_held_out
from unmask.pretraining.start import Start, build_module, open_start
from unmask.pretraining.steps import build_loader, count_targets
from unmask.recipe.tree import PretrainRecipe
from unmask.store.store import TokenStore
from unmask.tokenization.opening import Tokenizer, has_tokenizer, open_tokenizer
from unmask.training.run.checkpoint import WEIGHTS, Checkpoint, find_checkpoint
from unmask.training.run.log import METRICS, is_of_training, read_metrics

_BATCHES_ASKED = 4
"""How many batches a model is asked about."""


@dataclass(frozen=True)
class Record:
    """What a run has written about itself.

    Attributes:
        directory: the run's.
        training, evaluations: rows of `metrics.jsonl`.
        checkpoint: the newest intact one; None if there is none.
        damage: what is wrong with the checkpoints if none is intact.
    """

    directory: Path
    recipe: PretrainRecipe
    training: list[Row]
    evaluations: list[Row]
    checkpoint: Checkpoint | None
    damage: str | None

    @property
    def rows(self) -> list[Row]:
        return [*self.training, *self.evaluations]

    @property
    def store_directory(self) -> Path:
        return Path(self.recipe.store) if self.recipe.store is not None else self.directory / "store"

    @property
    def has_model(self) -> bool:
        return (self.directory / MODEL / CONFIG).is_file()


def read_record(directory: Path, recipe: PretrainRecipe) -> Record:
    """Reads what needs neither store nor model; a run that never logged has no rows.

    Raises:
        InputError: `metrics.jsonl` is damaged.
    """
    checkpoint, damage = None, None
    try:
        checkpoint = find_checkpoint(directory / "checkpoints")
    except CheckpointError as error:
        damage = str(error)
    rows: list[Row] = list(read_metrics(directory / METRICS)) if (directory / METRICS).is_file() else []
    return Record(
        directory,
        recipe,
        training=[row for row in rows if is_of_training(row)],
        evaluations=[row for row in rows if not is_of_training(row)],
        checkpoint=checkpoint,
        damage=damage,
    )


@dataclass(frozen=True)
class Evidence:
    """A run with its inputs opened.

    Attributes:
        tokenizer: the store's.
        model_tokenizer: that of the run's model; None if it has none.
        is_held_out: whether the floors are for held-out targets; else for those of the training documents.
        floors: of the figures.
        growth: how many times as large as initial ones the weights are; None if that is not known.
        start_loss: the loss over the vocabulary before the first step, of a run that goes on from a model without a
            tokenizer.
    """

    record: Record
    store: TokenStore
    tokenizer: Tokenizer
    model_tokenizer: Tokenizer | None
    is_held_out: bool
    floors: list[Floor]
    growth: float | None
    start_loss: float | None


def gather_evidence(record: Record) -> Evidence:
    """Opens the store, makes the evaluated batches again and reads the weights.

    Raises:
        UserError: the store is not where the recipe says, or is damaged.
    """
    recipe = record.recipe
    store = TokenStore(record.store_directory)
    tokenizer = open_tokenizer(store.tokenizer_directory)
    objective = new_objective(recipe.objective, tokenizer.vocabulary)
    is_held_out = Split(store, recipe.held_out, is_held_out=True).num_documents >= 2
    start = open_start(recipe)
    if is_held_out:
        batches = prepare_held_out(start, store, tokenizer, objective)
    else:
        loader = build_loader(start, store, tokenizer, held_out=False)
        batches = [objective.prepare(batch) for batch in loader.sample(recipe.train.eval_sequences)]
    evaluation = {name: value for row in record.evaluations for name, value in row.items() if value is not None}
    model = record.directory / MODEL
    return Evidence(
        record,
        store,
        tokenizer,
        open_tokenizer(model) if has_tokenizer(model) else None,
        is_held_out,
        objective.floors(count_targets(store, tokenizer), batches, evaluation) if batches else [],
        _growth(record, start, tokenizer),
        _start_loss(start, objective, tokenizer, batches),
    )


@torch.no_grad()
def _start_loss(start: Start, objective: Objective, tokenizer: Tokenizer, batches: list[Batch]) -> float | None:
    if start.source is None or start.tokenizer is not None:
        return None
    with torch.random.fork_rng(devices=[]):
        module = build_module(start, objective, tokenizer)
    assert isinstance(module, nn.Module)
    module.eval()
    scores = [module.scores(batch)[f"{start.recipe.objective.main_term}_loss"] for batch in batches[:_BATCHES_ASKED]]
    count = sum(number for _, number in scores)
    return sum(float(total) for total, _ in scores) / count if count else None


def _growth(record: Record, start: Start, tokenizer: Tokenizer) -> float | None:
    """The median over the weight matrices of their root mean square relative to that of initial ones."""
    sizes = start.sizes or start.recipe.model.resolve(tokenizer.vocab_size, tokenizer.pad_id)
    spread = getattr(sizes, "initializer_range", None)
    path = record.directory / MODEL / "model.safetensors"
    if record.checkpoint is not None and not path.is_file():
        path = record.checkpoint.directory / WEIGHTS
    if spread is None or not path.is_file():
        return None
    sizes_of = [float(weight.float().pow(2).mean().sqrt()) for weight in load_file(path).values() if weight.dim() == 2]
    return float(np.median(sizes_of) / spread)
