"""ELMo's penalty lambda * ||w||^2 of the weights by which layers are mixed (Peters et al. 2018, section 3.3).

A large lambda keeps the weights alike. The penalty is a loss term of its own, counted once a batch, so that a step has
it once however it is cut; it is for training, and in no loss that is measured.
"""

from __future__ import annotations

from torch import nn

from unmask.batch import LossTerm
from unmask.errors import SettingsError
from unmask.models.heads.layer_mixture import mixture_of

_TERM = "mixture"


def check_mixes(head: nn.Module, penalty: float) -> None:
    """Raises SettingsError if there is a penalty, and the head mixes no layers."""
    if penalty and mixture_of(head) is None:
        raise SettingsError(
            f"task.mixture_penalty {penalty:g} is of the weights by which layers are mixed, and none are mixed here: "
            "leave it out, or set task.feature_layers to weighted-all-and-embeddings, for a frozen encoder under a "
            "tagger or an ELMo that classifies texts"
        )


def penalty_terms(head: nn.Module, penalty: float) -> list[LossTerm]:
    """The term `mixture`: ||w||^2, with `penalty` as its coefficient; none if that is 0."""
    mixture = mixture_of(head)
    if not penalty or mixture is None:
        return []
    return [LossTerm(_TERM, mixture.weights.square().sum(), penalty)]


def penalty_counts(penalty: float) -> dict[str, int]:
    """Of a batch, whatever is in it."""
    return {_TERM: 1} if penalty else {}
