"""The evidence for judging a pre-training run: its figures, its weights, its store, and its model's answers.

Everything is opened as the run itself opens it, so that the text, the masks and the labels are those that it saw.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file
from torch import Tensor, nn

from unmask.batch import IGNORE_INDEX, Batch
from unmask.doctor.floors import (
    UNIGRAM_FLOOR,
    Floor,
    Row,
    masked_lm_floors,
    sentence_floors,
    span_boundary_floors,
)
from unmask.errors import CheckpointError, UserError
from unmask.io.paths import MODEL
from unmask.models.encoder import new_encoder
from unmask.models.hub.directory import load_encoder
from unmask.models.hub.files import CONFIG
from unmask.objectives.base import Objective, ObjectiveModule
from unmask.objectives.masked_lm import MaskedLMModule
from unmask.objectives.settings import MaskedLMSettings
from unmask.objectives.table import new_objective
from unmask.packing.planning import Split
from unmask.pretraining.inputs import prepare_held_out
from unmask.pretraining.start import build_module
from unmask.pretraining.steps import build_loader
from unmask.recipe.tree import PretrainRecipe
from unmask.store.store import TokenStore
from unmask.tokenization.opening import has_tokenizer
from unmask.tokenization.tokenizer import TextTokenizer, load_tokenizer
from unmask.training.device import Compute, choose_compute
from unmask.training.run.checkpoint import (
    WEIGHTS,
    Checkpoint,
    find_checkpoint,
    list_steps,
    load_weights,
    open_checkpoint,
)
from unmask.training.run.log import LOG, METRICS, is_of_training, read_metrics

NUM_TARGETS = 2000
"""Masked positions that the model is asked about: enough that a mean loss is known to .05 nats."""
_SEQUENCES_AT_ONCE = 16

Reading = tuple[int, int]
"""(a, b): the answer is read at offset a from a target, and compared with the original token at offset b from it.
(0, 0) is what training intends."""
READINGS: tuple[Reading, ...] = ((0, 0), (0, -1), (0, 1), (-1, 0), (1, 0))


@dataclass(frozen=True)
class Record:
    """What a run has written about itself.

    Attributes:
        directory: the run's.
        training, evaluations: rows of `metrics.jsonl`.
        checkpoint: the newest intact one; None if there is none.
        damage: what is wrong with the checkpoints if none is intact.
        resumed_steps: where sessions after the first began.
        store_sizes: the documents and tokens of the store that each session opened, from `log.txt`.
    """

    directory: Path
    recipe: PretrainRecipe
    training: list[Row]
    evaluations: list[Row]
    checkpoint: Checkpoint | None
    damage: str | None
    resumed_steps: list[int]
    store_sizes: list[tuple[str, str]]

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
    log = (directory / LOG).read_text("utf-8", errors="replace") if (directory / LOG).is_file() else ""
    return Record(
        directory,
        recipe,
        training=[row for row in rows if is_of_training(row)],
        evaluations=[row for row in rows if not is_of_training(row)],
        checkpoint=checkpoint,
        damage=damage,
        resumed_steps=[int(step.replace(",", "")) for step in re.findall(r"resumed from step ([\d,]+)", log)],
        store_sizes=re.findall(r"; ([\d,]+) documents, (\S+) tokens", log),
    )


@dataclass(frozen=True)
class Answers:
    """What a model predicts at masked positions.

    Attributes:
        losses: for each reading (targets,) float32, in nats.
        mean_probabilities: (vocabulary,) float64, the mean of its answers.
        special_share: share of the tokens beside targets that packing has added.
    """

    losses: dict[Reading, Tensor]
    mean_probabilities: Tensor
    special_share: float

    @property
    def loss(self) -> float:
        return float(self.losses[0, 0].mean())


@dataclass(frozen=True)
class Evidence:
    """A run with its inputs opened.

    Attributes:
        tokenizer: the store's.
        model_tokenizer: that of the run's model; None if it has none.
        token_counts: (vocabulary,) of the store.
        batches: prepared sequences: held out, or of the training documents if nothing is.
        is_held_out: which of the two.
        module: the run's model; None if no weights are left.
        start: the same before its first step; None if that cannot be made again.
        answers, start_answers: of `module` and `start`, for masked language modelling alone; None also if the
            vocabulary does not have the store's size, or there is nothing to ask.
        floors: of the figures.
        unchanged: names of the encoder's weights that are as they were, while others have moved.
    """

    record: Record
    store: TokenStore
    tokenizer: TextTokenizer
    model_tokenizer: TextTokenizer | None
    token_counts: NDArray[np.int64]
    batches: list[Batch]
    is_held_out: bool
    module: ObjectiveModule | None = None
    start: ObjectiveModule | None = None
    answers: Answers | None = None
    start_answers: Answers | None = None
    floors: list[Floor] = field(default_factory=list)
    unchanged: list[str] = field(default_factory=list)

    @property
    def num_targets(self) -> int:
        """The tokens to predict in the batches."""
        return sum(len(batch.columns["target_positions"]) for batch in self.batches)

    def has_floor_unpassed(self) -> bool:
        """Whether the model's answers are no better than knowing only how frequent each entry is."""
        loss = None if self.answers is None else self.answers.loss
        return any(floor.name == UNIGRAM_FLOOR and not floor.is_passed_by(loss) for floor in self.floors)


def gather_evidence(record: Record) -> Evidence:
    """Opens the store, makes the batches again, loads the weights and runs the model.

    The state of PyTorch's generator is left unchanged.

    Raises:
        UserError: the store is not where the recipe says, or is damaged; the model does not load.
    """
    with torch.random.fork_rng(devices=[]):
        return _gather(record)


def _gather(record: Record) -> Evidence:
    recipe = record.recipe
    store = TokenStore(record.store_directory)
    tokenizer = load_tokenizer(store.tokenizer_directory)
    objective = new_objective(recipe.objective, tokenizer.vocabulary)
    is_held_out = Split(store, recipe.held_out, is_held_out=True).num_documents >= 2
    batches = _prepare_batches(recipe, store, tokenizer, objective, is_held_out)
    start = _build_start(recipe, objective, tokenizer)
    module = _load_module(record, objective, start)
    fits = module is not None and module.encoder.settings.vocab_size >= tokenizer.vocab_size
    if not fits:
        start = None
    compute = choose_compute("auto", "fp32")
    model = record.directory / MODEL
    token_counts = store.token_counts()
    return Evidence(
        record,
        store,
        tokenizer,
        model_tokenizer=load_tokenizer(model) if has_tokenizer(model) else None,
        token_counts=token_counts,
        batches=batches,
        is_held_out=is_held_out,
        module=module,
        start=start,
        answers=ask(module, batches, len(token_counts), compute)
        if isinstance(module, MaskedLMModule) and fits
        else None,
        start_answers=(
            ask(start, batches, len(token_counts), compute)
            if isinstance(start, MaskedLMModule) and recipe.init_from is not None
            else None
        ),
        floors=(
            [
                *masked_lm_floors(batches, token_counts, recipe.objective, tokenizer.vocabulary),
                *sentence_floors(batches, recipe.objective.sentence_objective),
                *span_boundary_floors(batches, token_counts),
            ]
            if isinstance(recipe.objective, MaskedLMSettings)
            else []
        ),
        unchanged=_find_unchanged(record, module, start),
    )


def _prepare_batches(
    recipe: PretrainRecipe, store: TokenStore, tokenizer: TextTokenizer, objective: Objective, is_held_out: bool
) -> list[Batch]:
    """What the run evaluates on, a few sequences at a time, since the logits of three places per target are kept."""
    at_once = min(_SEQUENCES_AT_ONCE, recipe.train.batch_size)
    recipe = recipe.model_copy(update={"train": recipe.train.model_copy(update={"micro_batch_size": at_once})})
    if is_held_out:
        return prepare_held_out(recipe, store, tokenizer, objective)
    loader = build_loader(recipe, store, tokenizer, held_out=False)
    return [objective.prepare(batch) for batch in loader.epoch(recipe.train.eval_sequences)]


def _build_start(recipe: PretrainRecipe, objective: Objective, tokenizer: TextTokenizer) -> ObjectiveModule | None:
    """The module as it was before the first step: it follows from the seed, or from `init_from` if that is there."""
    torch.manual_seed(recipe.seed)
    try:
        return build_module(recipe, objective, tokenizer)
    except UserError:
        return None


def _load_module(record: Record, objective: Objective, start: ObjectiveModule | None) -> ObjectiveModule | None:
    """The run's model, or its newest checkpoint if the run has not ended."""
    if record.has_model:
        directory = record.directory / MODEL
        module = objective.build(load_encoder(directory, pooler=objective.needs_pooler).encoder)
        objective.restore_heads(module, directory)
        return module
    if record.checkpoint is None or start is None:
        return None
    module = objective.build(new_encoder(start.encoder.settings, pooler=objective.needs_pooler))
    assert isinstance(module, nn.Module)
    try:
        load_weights(record.checkpoint, module)
    except RuntimeError:  # of other sizes: the store's vocabulary has changed
        return None
    return module


@torch.no_grad()
def ask(module: MaskedLMModule, batches: Sequence[Batch], vocab_size: int, compute: Compute) -> Answers | None:
    """Runs a module, in eval mode, over prepared batches until it has answered for `NUM_TARGETS` targets.

    Probabilities of padding rows, after the entries of the vocabulary, are left out of the mean. A target is never the
    first or the last token of a sequence, since those are special: it has two neighbours.

    Returns:
        None if the batches have no targets.
    """
    module = module.to(compute.device).eval()
    losses: dict[Reading, list[Tensor]] = {reading: [] for reading in READINGS}
    total = torch.zeros(module.encoder.settings.vocab_size, dtype=torch.float64)
    num_targets = num_special = 0
    for batch in batches:
        labels, targets = batch.columns["labels"], batch.columns["target_positions"]
        if not len(targets):
            continue
        text = torch.where(labels == IGNORE_INDEX, batch.input_ids, labels)
        places = torch.cat([targets, targets - 1, targets + 1])
        asked = batch.with_columns(labels=text, target_positions=places)
        logits, tokens, _ = module.logits(asked.to(compute.device))
        log_probabilities = torch.log_softmax(logits.float(), -1)
        answers = dict(zip((0, -1, 1), torch.split(log_probabilities, len(targets)), strict=True))
        truths = dict(zip((0, -1, 1), torch.split(tokens, len(targets)), strict=True))
        for at, of in READINGS:
            losses[at, of].append(-answers[at].gather(1, truths[of][:, None]).squeeze(1).cpu())
        total += answers[0].exp().double().sum(0).cpu()
        num_special += int(batch.columns["special_tokens_mask"][torch.cat([targets - 1, targets + 1])].sum())
        num_targets += len(targets)
        if num_targets >= NUM_TARGETS:
            break
    if not num_targets:
        return None
    return Answers(
        {reading: torch.cat(parts) for reading, parts in losses.items()},
        mean_probabilities=total[:vocab_size] / num_targets,
        special_share=num_special / (2 * num_targets),
    )


PROBED = {
    "masked_lm": "masked_lm_head.bias",
    "causal_lm": "encoder.embeddings.word.weight",
    "replaced_token": "discriminator_head.output.bias",
}
"""A weight that moves if there is anything to learn, by the objective's name."""


def _oldest_sound(checkpoints: Path, before: int) -> Checkpoint | None:
    for step in list_steps(checkpoints):
        if step < before:
            with suppress(CheckpointError):
                return open_checkpoint(checkpoints, step)
    return None


def _find_unchanged(record: Record, module: ObjectiveModule | None, start: ObjectiveModule | None) -> list[str]:
    """The encoder's weights that are bit for bit as before the first step, or as in an older checkpoint.

    Empty if the weight in `PROBED` has not moved either: then there was nothing to learn from, and any other weight
    that has moved has only decayed.
    """
    pairs: list[tuple[dict[str, Tensor], dict[str, Tensor]]] = []
    if isinstance(module, nn.Module) and isinstance(start, nn.Module):
        pairs.append((start.state_dict(), module.state_dict()))
    newest = record.checkpoint
    if newest is not None and (oldest := _oldest_sound(record.directory / "checkpoints", newest.step)) is not None:
        pairs.append((load_file(oldest.directory / WEIGHTS), load_file(newest.directory / WEIGHTS)))
    for before, after in pairs:
        same = [name for name, weight in after.items() if name in before and torch.equal(before[name], weight.cpu())]
        unchanged = [name for name in same if name.startswith("encoder.")]
        if unchanged and PROBED[record.recipe.objective.name] not in same:
            return unchanged
    return []
