"""The kinds of tokenizer that can be trained: a kind is a training function and a line of the table here."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol

from unmask.tokenization.settings import TokenizerSettings
from unmask.tokenization.tokenizer import TextTokenizer
from unmask.tokenization.wordpiece import TrainingReport, train_wordpiece


class TrainFunction(Protocol):
    """Trains a tokenizer on documents; `unmask.tokenization.wordpiece.train_wordpiece` says what each argument is."""

    def __call__(
        self,
        texts: Iterable[str],
        settings: TokenizerSettings,
        seed: int = 0,
        on_progress: Callable[[str, int], None] | None = None,
    ) -> tuple[TextTokenizer, TrainingReport]: ...


TOKENIZERS: dict[str, TrainFunction] = {
    "wordpiece": train_wordpiece,
}
"""`TokenizerSettings.kind` -> what trains it."""


def train_tokenizer(
    texts: Iterable[str],
    settings: TokenizerSettings,
    seed: int = 0,
    on_progress: Callable[[str, int], None] | None = None,
) -> tuple[TextTokenizer, TrainingReport]:
    """Trains the kind of tokenizer that the settings name; `train_wordpiece` describes the arguments and errors."""
    return TOKENIZERS[settings.kind](texts, settings, seed, on_progress)
