"""What a model can be asked: each reader finds what the model is used for, and makes of the arguments what is to be
computed, or the reply where nothing is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from unmask.errors import InputError
from unmask.io.paths import CHECKPOINTS
from unmask.serving.engine import looks
from unmask.serving.engine.answerers import (
    GenerationAnswerer,
    LikelihoodAnswerer,
    MaskAnswerer,
    TaskAnswerer,
    TokenAnswerer,
    VectorAnswerer,
)
from unmask.serving.engine.asks import Reply
from unmask.serving.engine.batching import Work
from unmask.serving.engine.models import ServedModel


class Reader(NamedTuple):
    """How something is asked.

    Attributes:
        answerer: what of `ServedModel` is asked, by its name there.
        function: takes it and the arguments.
    """

    answerer: str
    function: Callable[..., Work | Reply]

    def read(self, model: ServedModel, arguments: Sequence[Any]) -> Work | Reply:
        return self.function(model.answerer(self.answerer), *arguments)


def _fill_at_step(checkpoints: dict[int, MaskAnswerer], step: int, *arguments: Any) -> Work:
    if step not in checkpoints:
        there = ", ".join(f"{each:,}" for each in checkpoints)
        raise InputError(f"no checkpoint of step {step:,} here: there are {there}")
    return checkpoints[step].read(*arguments)


READERS = {
    "predictions": Reader("task", TaskAnswerer.read),
    "masks": Reader("masks", MaskAnswerer.read),
    "masks of a checkpoint": Reader(CHECKPOINTS, _fill_at_step),
    "vectors": Reader("vectors", VectorAnswerer.read),
    "cut vectors": Reader("vectors", VectorAnswerer.read_cut),
    "similarities": Reader("vectors", VectorAnswerer.read_pairs),
    "scores": Reader("likelihoods", LikelihoodAnswerer.read),
    "continuations": Reader("generation", GenerationAnswerer.read),
    "tokens": Reader("tokens", TokenAnswerer.tokens),
    "template tokens": Reader("tokens", TokenAnswerer.template_tokens),
    "attention": Reader("vectors", looks.attention),
    "layers": Reader("masks", looks.layers),
    "words": Reader("task", looks.words),
    "spans": Reader("task", looks.spans),
    "token scores": Reader("likelihoods", looks.token_scores),
    "checkpoints": Reader(CHECKPOINTS, looks.checkpoints),
}
