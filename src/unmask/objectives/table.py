"""Every pre-training objective, by the name that a recipe gives it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from unmask.objectives.base import Objective
from unmask.objectives.bilm import BiLM
from unmask.objectives.causal_lm import CausalLM
from unmask.objectives.masked_lm import MaskedLM
from unmask.objectives.replaced_token import ReplacedToken
from unmask.tokenization.vocabulary import Vocabulary

OBJECTIVES: dict[str, Callable[[Any, Vocabulary], Objective]] = {
    "masked_lm": MaskedLM,
    "causal_lm": CausalLM,
    "bilm": BiLM,
    "replaced_token": ReplacedToken,
}
"""Each is built from its own settings, a member of `unmask.objectives.settings.ObjectiveSettings`."""
