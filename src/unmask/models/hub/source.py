"""A model directory, opened: its class, its sizes and, on demand, its weights under their names; and what
loading all of it gives."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from unmask.errors import ModelError
from unmask.models.elmo.word_softmax import WordSoftmax
from unmask.models.encoder import Encoder
from unmask.models.family import Family, HeadKind, ModelClass, Part
from unmask.models.heads.answerability import AnswerabilityHead
from unmask.models.heads.heads import Classifier, DeepClassifier, DiscriminatorHead, MaskedLMHead, NextSentenceHead
from unmask.models.hub.config import HEAD_CLASS, ProblemType, read_class, trained_length
from unmask.models.hub.files import CONFIG, read_config, read_weights
from unmask.models.hub.uses import check_kind, use_of_class
from unmask.models.hub.weight_names import modernise
from unmask.models.settings import EncoderSettings
from unmask.models.sizes import Sizes


@dataclass(frozen=True)
class ModelSource:
    """A model directory, opened once and passed on.

    Attributes:
        class_name, family, model_class: `architectures[0]`, and what is known of it.
        read: gives the weights as the files have them.
    """

    directory: Path
    config: Mapping[str, Any]
    class_name: str
    family: Family
    model_class: ModelClass
    settings: Sizes
    read: Callable[[], Mapping[str, Tensor]]

    @property
    def config_path(self) -> Path:
        return self.directory / CONFIG

    @property
    def trained_length(self) -> int | None:
        """See `unmask.models.hub.config.trained_length`."""
        return trained_length(self.config)

    def check_kind(self, wanted: str | None) -> None:
        """Raises ModelError for a model of another kind; None takes any."""
        if wanted is not None:
            use = use_of_class(self.model_class, self.config)
            named = (
                self.class_name
                if self.config.get("architectures")
                else f"{self.class_name}: config.json names no architectures"
            )
            check_kind(self.directory, named, use, wanted)

    def weights(self) -> dict[str, Tensor]:
        """All weights, their names modernised, without the second copies of tied ones. Raises ModelError if a file is
        missing or damaged, or a copy differs from its original."""
        weights = modernise(self.read(), self.family.weights)
        tied = not isinstance(self.settings, EncoderSettings) or self.settings.tie_word_embeddings
        for copy, original in self.family.weights.tied.items() if tied else ():
            if copy not in weights:
                continue
            duplicate = weights.pop(copy)
            if not torch.equal(weights.setdefault(original, duplicate), duplicate):
                raise ModelError(
                    f"{self.directory}: {copy} differs from {original}; expected the same weight: they are tied"
                )
        return weights


def open_source(directory: Path) -> ModelSource:
    """Opens a directory in the Hugging Face layout, or one of Google's checkpoints as if it were in that layout. Raises
    ModelError if `config.json` is missing or damaged, or its class or one of its settings is not supported."""
    read: Callable[[], Mapping[str, Tensor]] = partial(read_weights, directory)
    if directory.is_dir() and not (directory / CONFIG).exists():
        from unmask.models.google.checkpoint import is_google_checkpoint, read_google_checkpoint

        if is_google_checkpoint(directory):
            config, weights = read_google_checkpoint(directory)
            return _source(directory, config, lambda: weights)
    return _source(directory, read_config(directory), read)


def _source(directory: Path, config: Mapping[str, Any], read: Callable[[], Mapping[str, Tensor]]) -> ModelSource:
    return ModelSource(directory, config, *read_class(directory / CONFIG, config, lambda: read().keys()), read)


PRETRAINING_HEADS: dict[Part, Callable[[Any], nn.Module]] = {
    "masked_lm_head": MaskedLMHead,
    "next_sentence_head": NextSentenceHead,
    "discriminator_head": DiscriminatorHead,
    "softmax": WordSoftmax,
}
"""What builds each head of pre-training from the encoder's settings; attributes of `LoadedModel`."""


@dataclass(frozen=True)
class LoadedModel:
    """What was in a model directory; parts that its class does not have are None.

    Attributes:
        architecture: `architectures[0]` of its `config.json`.
        softmax: over words, of ELMo's language models.
        is_causal_lm: it predicts the next token, with a decoder tied to the word embeddings.
        head: the one it was fine-tuned with, as `new_head` builds it, or one such in an `AnswerabilityHead`.
        head_kind: of the head, or of `head_weights`.
        head_weights: of any other head, which the task that saved it builds, by our names.
        labels: in the order of the head's logits, from `id2label`; None where it has none.
        problem_type: of a sequence classifier, where the directory says it.
        unused: names of weights in the directory that were not needed.
        fresh: names of weights that the directory does not have and that were newly initialised.
    """

    architecture: str
    encoder: Encoder = field(repr=False)
    masked_lm_head: MaskedLMHead | None = field(default=None, repr=False)
    next_sentence_head: NextSentenceHead | None = field(default=None, repr=False)
    discriminator_head: DiscriminatorHead | None = field(default=None, repr=False)
    softmax: WordSoftmax | None = field(default=None, repr=False)
    is_causal_lm: bool = False
    head: Classifier | DeepClassifier | AnswerabilityHead | None = field(default=None, repr=False)
    head_kind: HeadKind | None = None
    head_weights: Mapping[str, Tensor] | None = field(default=None, repr=False)
    labels: tuple[str, ...] | None = None
    problem_type: ProblemType | None = None
    config: Mapping[str, Any] = field(default_factory=dict, repr=False)
    unused: tuple[str, ...] = ()
    fresh: tuple[str, ...] = ()

    @property
    def head_class(self) -> object:
        """The name of the class of a head in a file of its own."""
        return self.config.get(HEAD_CLASS)

    @property
    def trained_length(self) -> int | None:
        """See `unmask.models.hub.config.trained_length`."""
        return trained_length(self.config)

    @property
    def heads(self) -> dict[Part, nn.Module]:
        """Those with weights of their own, by part."""
        found: dict[Part, nn.Module | None] = {part: getattr(self, part) for part in PRETRAINING_HEADS}
        if self.head_kind is not None:
            found[self.head_kind] = self.head
        return {part: head for part, head in found.items() if head is not None}
