"""How a run begins, in one process or in several: what cannot go together is refused, then everything is opened."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from unmask.errors import SettingsError
from unmask.packing.sharing import Share
from unmask.pretraining.inputs import PretrainingInputs, open_inputs
from unmask.pretraining.measuring import check_targets, evaluator
from unmask.pretraining.steps import count_targets
from unmask.recipe.tree import PretrainRecipe
from unmask.training.device import Compute
from unmask.training.distributed import Ranks
from unmask.training.run.checkpoint import load_weights
from unmask.training.run.together import check_batch_size, check_same_device, check_same_run, open_everywhere
from unmask.training.sharding import check_sharding


class Opened(NamedTuple):
    """A run about to begin: its inputs, how often each entry is a target, and what measures the module. Only the first
    process counts, which reads the whole store: it alone reports floors."""

    inputs: PretrainingInputs
    counts: NDArray[np.int64] | None
    evaluate: Callable[[], dict[str, float]] | None


def check_ranks(settings: PretrainRecipe, compute: Compute, ranks: Ranks) -> None:
    """Refuses, by a SettingsError, a recipe that so many processes cannot train together."""
    check_same_device(compute, ranks)
    with ranks.agreeing():
        check_same_run(settings, ranks)
        check_recipe(settings, ranks)


def check_recipe(settings: PretrainRecipe, ranks: Ranks) -> None:
    """As `check_ranks`, by the number of processes alone."""
    check_batch_size(min(cut.batch_size for cut in settings.cuts), ranks)
    if settings.train.shard:
        check_sharding(settings.train, settings.optimizer, settings.cuts, ranks)
        if settings.eval.pairs is not None:
            raise SettingsError("train.shard=true and eval.pairs do not go together: measure pairs afterwards")


def begin(
    settings: PretrainRecipe,
    directory: Path,
    compute: Compute,
    workers: int,
    ranks: Ranks,
    opening: AbstractContextManager[None],
) -> Opened:
    """Opens what the run needs: in the first process, which may make a store, then in the others.

    Args:
        directory: where this process writes.
        opening: the directory of the run, which the first process opens; what goes wrong meanwhile is undone there.

    Raises:
        UserError: an input is missing, damaged, or does not fit the others, in any of the processes.
    """

    def first() -> Opened:
        opened = open_module(settings, directory, compute, workers, ranks)
        check_targets(settings, opened.inputs)
        return opened

    own_store = ranks.from_first(str(directory / "store"))
    stored = settings.model_copy(update={"corpus": None, "store": settings.store or own_store})
    return open_everywhere(
        opening,
        first,
        lambda: open_module(stored, directory, compute, workers, ranks),
        lambda opened: (str(opened.inputs.store.directory), opened.inputs.store.manifest["files"]),
        directory,
        ranks,
    )


def open_module(settings: PretrainRecipe, directory: Path, compute: Compute, workers: int, ranks: Ranks) -> Opened:
    """The inputs with the module on the device."""
    run = open_inputs(settings, directory, workers, Share(ranks.rank, ranks.size))
    compute.place(run.module)
    counts = count_targets(run.store, run.tokenizer) if ranks.is_first else None
    floors = [] if counts is None else run.objective.floors(counts, run.held_out)
    return Opened(run, counts, evaluator(settings, run, directory, floors, compute))


def joined_again(run: PretrainingInputs, settings: PretrainRecipe, directory: Path) -> PretrainingInputs:
    """The inputs of a run that has ended with its model in parts, opened anew with all of it, from the last checkpoint;
    on the processor."""
    stored = settings.model_copy(update={"corpus": None, "store": str(run.store.directory)})
    again = open_inputs(stored, directory, workers=1)
    assert again.checkpoint is not None, "the last step has been saved"
    load_weights(again.checkpoint, again.module)
    return again
