"""Every pre-training objective, by the name that a recipe gives it."""

from __future__ import annotations

from collections.abc import Callable

from unmask.objectives.masked_lm import MaskedLM
from unmask.objectives.settings import MaskedLMSettings
from unmask.tokenization.vocabulary import Vocabulary

OBJECTIVES: dict[str, Callable[[MaskedLMSettings, Vocabulary], MaskedLM]] = {
    "masked_lm": MaskedLM,
}
