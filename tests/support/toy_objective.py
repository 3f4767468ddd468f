"""Two objectives that are not of the program, with their settings: each token's predecessor, and whether it is that."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from unmask.batch import IGNORE_INDEX, Batch, LossTerm
from unmask.models.encoder import Encoder
from unmask.models.family import Family
from unmask.models.heads.heads import MaskedLMHead
from unmask.models.hub.directory import load_model
from unmask.models.hub.source import ModelSource
from unmask.models.kernels.cross_entropy import summed_binary_cross_entropy, summed_cross_entropy
from unmask.models.settings import EncoderSettings
from unmask.models.sizes import Sizes
from unmask.objectives.base import ObjectiveModule, Predictions, Saved, encoder_operations, head_operations
from unmask.objectives.floors import Floor, NoContext, at_least_once, targets_of, vocabulary_floors
from unmask.objectives.settings_base import ObjectiveSettings
from unmask.tokenization.vocabulary import Vocabulary


class PreviousTokenSettings(ObjectiveSettings):
    why_these = "it was only tried with BERT"
    main_term = "previous"

    name: Literal["previous_token"] = "previous_token"
    distance: int = 1

    @classmethod
    def trains(cls, family: Family) -> bool:
        return family.has("next_sentence_head")


class PreviousToken:
    vocabulary_terms: tuple[str, ...] = ("previous",)
    needs_pooler = predicts_next = False

    def __init__(self, settings: PreviousTokenSettings, vocabulary: Vocabulary) -> None:
        self._distance = settings.distance

    def prepare(self, batch: Batch) -> Batch:
        targets = torch.nonzero(batch.position_ids >= self._distance).squeeze(1)
        labels = torch.full_like(batch.input_ids, IGNORE_INDEX)
        labels[targets] = batch.input_ids[targets - self._distance]
        return batch.with_columns(target_positions=targets, labels=labels)

    def counts(self, batch: Batch) -> dict[str, int]:
        return {"previous": len(batch.columns["target_positions"])}

    def build(self, encoder: Encoder) -> PreviousTokenModule:
        return PreviousTokenModule(encoder)

    def restore_heads(self, module: ObjectiveModule, source: ModelSource) -> None:
        assert isinstance(module, PreviousTokenModule)
        module.masked_lm_head = load_model(source).masked_lm_head or module.masked_lm_head

    def floors(
        self,
        token_counts: NDArray[np.int64],
        batches: Sequence[Batch] = (),
        evaluation: Mapping[str, float] | None = None,
    ) -> list[Floor]:
        targets = targets_of(batches)
        return vocabulary_floors("previous", NoContext.of(at_least_once(token_counts, targets)), targets)

    def operations(self, sizes: Sizes, batch: Batch, length: float) -> float:
        assert isinstance(sizes, EncoderSettings)
        return 3 * (encoder_operations(sizes, length, 1.0) + head_operations(sizes))

    def describe_sequences(self, batch: Batch, most: int) -> list[str]:
        return ["each token's predecessor"] * most

    def describe_batches(self, batches: Sequence[Batch]) -> list[tuple[str, str]]:
        return [("tokens looked back", str(self._distance))]


class PreviousTokenModule(ObjectiveModule):
    def __init__(self, encoder: Encoder) -> None:
        super().__init__()
        self.encoder: Any = encoder
        self.masked_lm_head = MaskedLMHead(self.encoder.settings)

    def forward(self, batch: Batch) -> list[LossTerm]:
        logits, labels = self.logits(batch)
        return [LossTerm("previous", summed_cross_entropy(logits, labels))]

    def scores(self, batch: Batch) -> dict[str, tuple[Tensor, int]]:
        logits, labels = self.logits(batch)
        return {
            "previous_loss": (summed_cross_entropy(logits, labels), len(labels)),
            "previous_accuracy": ((logits.argmax(-1) == labels).sum(), len(labels)),
        }

    def saved(self) -> dict[str, Saved]:
        return {"": Saved(self.encoder, {"masked_lm_head": self.masked_lm_head})}

    def predictions(self, batch: Batch, most: int, show: Callable[[int], str]) -> Predictions:
        return Predictions(batch.input_ids, {}, [": predecessors"] * most)

    def logits(self, batch: Batch) -> tuple[Tensor, Tensor]:
        targets = batch.columns["target_positions"]
        hidden = self.encoder(batch, targets)
        return self.masked_lm_head(hidden, self.encoder.word_embeddings), batch.columns["labels"][targets]


class RepeatedTokenSettings(PreviousTokenSettings):
    main_term = "repeated"

    name: Literal["repeated_token"] = "repeated_token"  # type: ignore[assignment]


class RepeatedToken(PreviousToken):
    """One without a loss over the vocabulary, without `labels`, and with a floor of its loss alone."""

    vocabulary_terms = ()

    def prepare(self, batch: Batch) -> Batch:
        return batch.with_columns(is_repeated=super().prepare(batch).columns["labels"] == batch.input_ids)

    def counts(self, batch: Batch) -> dict[str, int]:
        return {"repeated": batch.num_tokens}

    def build(self, encoder: Encoder) -> ObjectiveModule:  # type: ignore[override]
        return RepeatedTokenModule(encoder)

    def restore_heads(self, module: ObjectiveModule, source: ModelSource) -> None:
        pass

    def floors(self, *_: Any, **__: Any) -> list[Floor]:
        return [Floor("repeated-even-floor", "loss/repeated", "even", "saying yes half of the time", math.log(2))]


class RepeatedTokenModule(ObjectiveModule):
    def __init__(self, encoder: Encoder) -> None:
        super().__init__()
        self.encoder: Any = encoder
        self.head = nn.Linear(self.encoder.settings.hidden_size, 1)

    def forward(self, batch: Batch) -> list[LossTerm]:
        return [LossTerm("repeated", summed_binary_cross_entropy(self.logits(batch), batch.columns["is_repeated"]))]

    def scores(self, batch: Batch) -> dict[str, tuple[Tensor, int]]:
        logits, repeated = self.logits(batch), batch.columns["is_repeated"]
        return {
            "repeated_loss": (summed_binary_cross_entropy(logits, repeated), batch.num_tokens),
            "repeated_accuracy": (((logits > 0) == repeated).sum(), batch.num_tokens),
        }

    def saved(self) -> dict[str, Saved]:
        return {"": Saved(self.encoder)}

    def predictions(self, batch: Batch, most: int, show: Callable[[int], str]) -> None:
        return None

    def logits(self, batch: Batch) -> Tensor:
        return self.head(self.encoder(batch)).squeeze(1)
