"""Which recipes several processes can train together."""

from __future__ import annotations

from unmask.errors import SettingsError
from unmask.recipe.tree import PretrainRecipe
from unmask.training.device import Compute
from unmask.training.distributed import Ranks
from unmask.training.run.together import check_batch_size, check_same_device, check_same_run
from unmask.training.sharding import check_sharding


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
