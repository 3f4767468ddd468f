"""What loading a model directory gives: the encoder, whatever heads stand on it, and what `config.json` says."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from unmask.models.elmo.word_softmax import WordSoftmax
from unmask.models.encoder import Encoder
from unmask.models.heads.heads import (
    Classifier,
    DeepClassifier,
    DiscriminatorHead,
    HeadKind,
    MaskedLMHead,
    NextSentenceHead,
)
from unmask.models.hub.config import ProblemType, find_class


@dataclass(frozen=True)
class LoadedModel:
    """What was in a model directory; parts that its class does not have are None.

    Attributes:
        architecture: `architectures[0]` of its `config.json`.
        softmax: over words, of ELMo's language models.
        head: the one it was fine-tuned with, as `new_head` builds it.
        head_kind: of the head, or of `head_weights`.
        head_weights: of a head that `new_head` does not build but the task that saved it does, by our names.
        labels: in the order of the head's logits, from `id2label`; None where it has none.
        problem_type: of a sequence classifier, where the directory says it.
        config: all of `config.json`.
        unused: names of weights in the directory that were not asked for.
        fresh: names of weights that the directory does not have and that were newly initialised.
    """

    architecture: str
    encoder: Encoder
    masked_lm_head: MaskedLMHead | None = None
    next_sentence_head: NextSentenceHead | None = None
    discriminator_head: DiscriminatorHead | None = None
    softmax: WordSoftmax | None = None
    head: Classifier | DeepClassifier | None = None
    head_kind: HeadKind | None = None
    head_weights: Mapping[str, Tensor] | None = None
    labels: tuple[str, ...] | None = None
    problem_type: ProblemType | None = None
    config: Mapping[str, Any] | None = None
    unused: tuple[str, ...] = ()
    fresh: tuple[str, ...] = ()

    @property
    def is_causal_lm(self) -> bool:
        """Whether it predicts the next token, with a decoder tied to the word embeddings."""
        found = find_class(self.architecture)
        return found is not None and "causal_lm" in found[1].parts
