"""What a model can be asked: each reader finds what the model is used for, and makes of the arguments what is to be
computed, or the reply where nothing is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from unmask.errors import InputError
from unmask.inference.left_to_right.generation import Sampling
from unmask.io.paths import CHECKPOINTS
from unmask.serving.engine import looks
from unmask.serving.engine.asks import Reply
from unmask.serving.engine.batching import Work
from unmask.serving.engine.models import ServedModel
from unmask.serving.engine.uses import Continuing, GenerationUse, LikelihoodUse, MaskUse, TaskUse, TokenUse, VectorUse


class Reader(NamedTuple):
    """How something is asked.

    Attributes:
        use: what of `ServedModel` is asked, by its name there.
        function: takes it and the arguments.
    """

    use: str
    function: Callable[..., Work | Reply]

    def read(self, model: ServedModel, arguments: Sequence[Any]) -> Work | Reply:
        return self.function(model.use(self.use), *arguments)


def _fill_at_step(uses: dict[int, MaskUse], step: int, *arguments: Any) -> Work:
    if step not in uses:
        there = ", ".join(f"{each:,}" for each in uses)
        raise InputError(f"no checkpoint of step {step:,} here: there are {there}")
    return uses[step].read(*arguments)


def _continue(use: GenerationUse, prompts: Sequence[str], num_tokens: int, sampling: dict[str, Any], seed: int) -> Work:
    return use.read(prompts, Continuing(num_tokens, Sampling(**sampling), seed))


READERS = {
    "predictions": Reader("task", TaskUse.read),
    "masks": Reader("masks", MaskUse.read),
    "masks of a checkpoint": Reader(CHECKPOINTS, _fill_at_step),
    "vectors": Reader("vectors", VectorUse.read),
    "cut vectors": Reader("vectors", VectorUse.read_cut),
    "similarities": Reader("vectors", VectorUse.read_pairs),
    "scores": Reader("likelihoods", LikelihoodUse.read),
    "continuations": Reader("generation", _continue),
    "tokens": Reader("tokens", TokenUse.tokens),
    "template tokens": Reader("tokens", TokenUse.template_tokens),
    "attention": Reader("vectors", looks.attention),
    "layers": Reader("masks", looks.layers),
    "words": Reader("task", looks.words),
    "spans": Reader("task", looks.spans),
    "token scores": Reader("likelihoods", looks.token_scores),
    "checkpoints": Reader(CHECKPOINTS, looks.checkpoints),
}
