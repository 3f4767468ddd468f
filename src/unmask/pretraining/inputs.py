"""What a pre-training run reads, opened and checked to fit together: text, tokenizer, objective, weights, batches."""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from unmask.batch import Batch
from unmask.io.paths import CHECKPOINTS
from unmask.objectives.base import Objective, ObjectiveModule
from unmask.packing.formats import documents_needed
from unmask.packing.sharing import WHOLE, Share
from unmask.packing.split import Split
from unmask.pretraining.initial_weights import adjust_random_weights, build_module
from unmask.pretraining.own_store import check_tokenizer, open_objective, open_store
from unmask.pretraining.start import Start, open_start
from unmask.pretraining.steps import PretrainingSteps, build_loader, count_targets
from unmask.pretraining.vocabulary import describe_new_entries
from unmask.recipe.pairings import unasked_pairs
from unmask.recipe.tree import PretrainRecipe
from unmask.store.store import TokenStore
from unmask.store.unknown_tokens import unknown_warning
from unmask.tasks.minimal_pairs.reading import Paradigm, read_paradigms, sample
from unmask.tokenization.opening import Tokenizer, open_tokenizer
from unmask.training.run.checkpoint import Checkpoint, find_checkpoint, load_weights
from unmask.training.run.resuming import check_unchanged
from unmask.training.settings import batch_too_small

logger = logging.getLogger("unmask")


@dataclass(frozen=True)
class PretrainingInputs:
    """What a run needs, opened and checked to fit together.

    Attributes:
        store, tokenizer, objective: what is learnt, and how.
        module: with its initial weights.
        checkpoint: what the run continues from; None at its beginning.
        steps: the batches, from there on.
        held_out: masked batches to evaluate on; empty where nothing is held out.
        pairs: minimal pairs to evaluate on; empty where none are given.
        trained_length: of the model at the run's end; see `unmask.pretraining.start.Start`.
    """

    store: TokenStore
    tokenizer: Tokenizer
    objective: Objective
    module: ObjectiveModule
    checkpoint: Checkpoint | None
    steps: PretrainingSteps
    held_out: list[Batch]
    pairs: list[Paradigm]
    trained_length: int | None

    @cached_property
    def target_counts(self) -> NDArray[np.int64]:
        """(vocabulary,) how often each entry can be a target; the whole store is read for it."""
        return count_targets(self.store, self.tokenizer)


def open_inputs(
    settings: PretrainRecipe, directory: Path, workers: int, checkpoint: Checkpoint | None, share: Share = WHOLE
) -> PretrainingInputs:
    """Opens everything that a run needs; makes the store from the corpus where there is none yet.

    The first step's batches are made too, so that damage to what they are read from is reported before the run begins.

    Args:
        checkpoint: what the run continues from.

    Raises:
        UserError: an input is missing, damaged, or does not fit the others.
    """
    start = open_start(settings)
    store = open_store(start, directory, workers, begun=checkpoint is not None)
    check_unchanged(directory, {"store": store.fingerprint()}, {"store": store.directory})
    tokenizer = open_tokenizer(store.tokenizer_directory)
    check_tokenizer(settings, tokenizer, store.directory)
    objective = open_objective(settings, tokenizer, store.directory)
    pairs = [] if settings.eval.pairs is None else read_paradigms(settings.eval.pairs)
    torch.manual_seed(settings.seed)
    module = build_module(start, objective, tokenizer)
    if checkpoint is None:
        log_remarks(start, store, tokenizer)
    inputs = PretrainingInputs(
        store,
        tokenizer,
        objective,
        module,
        checkpoint,
        PretrainingSteps(start, store, tokenizer, checkpoint, share),
        prepare_held_out(start, store, tokenizer, objective),
        sample(pairs, settings.eval.pairs_sample),
        start.trained_length(),
    )
    if checkpoint is None:
        adjust_random_weights(module, settings, lambda: inputs.target_counts)
    return inputs


def with_store(settings: PretrainRecipe, store: str) -> PretrainRecipe:
    """The recipe on a store that has been made of its corpus."""
    return settings.model_copy(update={"corpus": None, "store": store})


def joined_again(inputs: PretrainingInputs, settings: PretrainRecipe, directory: Path) -> PretrainingInputs:
    """The inputs of a run that has ended with its model in parts, opened anew with all of it, from the last checkpoint;
    on the processor."""
    checkpoint = find_checkpoint(directory / CHECKPOINTS)
    assert checkpoint is not None, "the last step has been saved"
    again = open_inputs(with_store(settings, str(inputs.store.directory)), directory, 1, checkpoint)
    load_weights(checkpoint, again.module)
    return again


def log_remarks(start: Start, store: TokenStore, tokenizer: Tokenizer) -> None:
    """Logs what is special about the model's entries, and what is allowed but hardly intended."""
    settings = start.recipe
    notes = [unasked_pairs(settings.objective, settings.packing)]
    if settings.init_from is not None:
        notes.insert(0, describe_new_entries(start, tokenizer))
    for note in filter(None, notes):
        logger.info(note)
    warnings = [
        unknown_warning(store),
        batch_too_small(settings.optimizer, max(cut.batch_size for cut in settings.cuts)),
    ]
    for warning in filter(None, warnings):
        logger.warning(warning)


def prepare_held_out(start: Start, store: TokenStore, tokenizer: Tokenizer, objective: Objective) -> list[Batch]:
    """At most `train.eval_sequences` held-out sequences, as long as those of the last phase, masked once and for all;
    none if too few documents are held out."""
    settings = start.recipe
    split = Split(store, settings.held_out, is_held_out=True)
    phase = settings.all_phases[-1]
    needed = documents_needed(settings.packing, settings.objective.pair_objective)
    if split.num_documents < needed:
        if settings.held_out > 0:
            how_many = f"{store.num_documents:,} documents, drawn by their texts' hashes, is {split.num_documents}"
            why = "pairs need two" if needed == 2 else "one is needed"
            fix = "give more documents" if store.num_documents < 2 * needed else _enough_held_out(store, needed)
            logger.warning("held_out=%s of %s, and %s: nothing is evaluated; %s", settings.held_out, how_many, why, fix)
        return []
    loader = build_loader(start, store, tokenizer, held_out=True, phase=phase)
    batches = [objective.prepare(batch) for batch in loader.sample(settings.train.eval_sequences)]
    if not batches:
        packing = phase.packing(settings.packing)
        logger.warning(
            f"held_out={settings.held_out} of {store.num_documents:,} documents is {split.num_documents:,}, too little "
            f"text for a sequence of packing.format={packing.format} and packing.max_length={packing.max_length}: "
            "nothing is evaluated; set held_out higher, or give more documents"
        )
    return batches


def _enough_held_out(store: TokenStore, needed: int) -> str:
    """Which share holds out `needed` documents, rounded up to thousandths, for a message."""
    last = int(np.partition(store.text_hashes(), needed - 1)[needed - 1])
    return f"set held_out={math.ceil((last + 1) / 2**32 * 1000) / 1000}, or higher"
