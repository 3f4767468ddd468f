"""Left-to-right language modelling: each token from those before it (L1 of Radford et al. 2018, section 3.1).

Every token that follows another one in its sequence is a target, special tokens too; nothing is drawn. GPT-1's decoder
is its word embeddings, without a bias, and an LSTM's likewise. BERT's left-to-right model without NSP (Devlin et al.
2019, section 5.1) has BERT's masked-LM head.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from unmask.batch import IGNORE_INDEX, Batch, LossTerm
from unmask.models.buckets import LAST_TOKEN, NO_LABEL, TOKENS, Padding, Paddings
from unmask.models.encoder import Encoder
from unmask.models.family import Part
from unmask.models.heads.heads import MaskedLMHead
from unmask.models.hub.directory import load_model
from unmask.models.hub.source import ModelSource
from unmask.models.kernels.decoder_loss import Decoder, score_decoder, summed_decoder_loss
from unmask.models.kernels.products import linear
from unmask.models.settings import EncoderSettings
from unmask.models.sizes import Sizes
from unmask.objectives.base import ObjectiveModule, Predictions, Saved, encoder_operations
from unmask.objectives.floors import Floor, NoContext, at_least_once, targets_of, vocabulary_floors
from unmask.objectives.settings import CausalLMSettings
from unmask.tokenization.vocabulary import Vocabulary

_ROWS = 512
"""How many targets have their probabilities over the whole vocabulary in memory at once."""


class CausalLM:
    """The objective; it has no settings, and needs nothing of the vocabulary."""

    needs_pooler = False
    vocabulary_terms: tuple[str, ...] = ("lm",)
    predicts_next = True

    def __init__(self, settings: CausalLMSettings, vocabulary: Vocabulary) -> None:
        del settings, vocabulary

    def prepare(self, batch: Batch) -> Batch:
        """Adds `target_positions` (targets,) int64, the tokens followed by another, and `labels` (tokens,) int64, the
        token that follows each, -100 where there is none."""
        positions = torch.arange(batch.num_tokens, device=batch.bounds.device)
        targets = positions[~torch.isin(positions, batch.last_tokens)]
        labels = torch.full_like(batch.input_ids, IGNORE_INDEX)
        labels[targets] = batch.input_ids[targets + 1]
        return batch.with_columns(target_positions=targets, labels=labels)

    def counts(self, batch: Batch) -> dict[str, int]:
        return {"lm": batch.num_tokens - batch.num_sequences}

    def build(self, encoder: Encoder) -> CausalLMModule:
        """The module that learns, with a fresh head if the encoder is a BERT."""
        return CausalLMModule(encoder)

    def restore_heads(self, module: ObjectiveModule, source: ModelSource) -> None:
        """Loads a model directory's head, a left-to-right one or a masked LM's, if the module is a BERT."""
        assert isinstance(module, CausalLMModule), "a module of this objective"
        head = None if module.masked_lm_head is None else load_model(source).masked_lm_head
        if head is not None:
            module.masked_lm_head = head

    def floors(
        self,
        token_counts: NDArray[np.int64],
        batches: Sequence[Batch] = (),
        evaluation: Mapping[str, float] | None = None,
    ) -> list[Floor]:
        targets = targets_of(batches)
        best = NoContext.of(at_least_once(token_counts, targets))
        return [floor for floor in vocabulary_floors("lm", best, targets) if floor.is_loss]

    def operations(self, sizes: Sizes, batch: Batch, length: float) -> float:
        assert isinstance(sizes, EncoderSettings), "of a family that it trains"
        targets = 1 - 1 / length  # all tokens but the first of each sequence
        transform = sizes.hidden_size**2 if sizes.family.has("masked_lm_head") else 0
        head = 2 * (transform + sizes.hidden_size * sizes.vocab_size)
        return 3 * (encoder_operations(sizes, length, targets) + targets * head)

    def describe_sequences(self, batch: Batch, most: int) -> list[str]:
        return ["each token from those before it"] * most

    def describe_batches(self, batches: Sequence[Batch]) -> list[tuple[str, str]]:
        return []


class CausalLMModule(ObjectiveModule):
    """A left-to-right encoder with a decoder over the vocabulary.

    Args:
        encoder: whose tokens see only those before them.
    """

    encoder: Encoder
    masked_lm_head: MaskedLMHead | None

    def __init__(self, encoder: Encoder) -> None:
        super().__init__()
        self.encoder = encoder
        assert not encoder.reads_words, "ELMo's language models have a softmax of their own"
        sizes = encoder.settings
        self.masked_lm_head = MaskedLMHead(sizes) if sizes.family.has("masked_lm_head") else None

    @property
    def paddings(self) -> Paddings:
        """How the columns that `forward` reads are padded to a bucket."""
        return {"labels": Padding(TOKENS, NO_LABEL), "target_positions": Padding("targets", LAST_TOKEN)}

    def forward(self, batch: Batch) -> list[LossTerm]:
        """The term `lm`."""
        decoder, labels = self.decoder(batch)
        return [LossTerm("lm", summed_decoder_loss(decoder, labels))]

    def scores(self, batch: Batch) -> dict[str, tuple[Tensor, int]]:
        """`lm_loss` and `lm_accuracy`."""
        decoder, labels = self.decoder(batch)
        losses, right = score_decoder(decoder, labels)
        return {"lm_loss": (losses.sum(), len(labels)), "lm_accuracy": (right.sum(), len(labels))}

    def decoder(self, batch: Batch) -> tuple[Decoder, Tensor]:
        """What the logits at the targets are computed from, and the targets' labels (targets,) int64."""
        targets = batch.columns["target_positions"]
        hidden = self.encoder(batch, targets)
        return next_token_decoder(self.encoder, self.masked_lm_head, hidden), batch.columns["labels"][targets]

    def predictions(self, batch: Batch, most: int, show: Callable[[int], str]) -> Predictions:
        return predict_next(batch, most, *self.decoder(batch), show)

    def saved(self) -> dict[str, Saved]:
        """The encoder with its decoder."""
        heads: dict[Part, MaskedLMHead] = {}
        if self.masked_lm_head is not None:
            heads["masked_lm_head"] = self.masked_lm_head
        return {"": Saved(self.encoder, heads, causal_lm=True)}


def predict_next(batch: Batch, most: int, decoder: Decoder, labels: Tensor, show: Callable[[int], str]) -> Predictions:
    """For each token of the first `most` sequences that follows another: what was expected, and the token's own
    probability; `labels` (targets,) int64."""
    targets = batch.columns["target_positions"]
    targets = targets[targets < batch.bounds[most]]
    tokens: dict[int, dict[str, Any]] = {}
    for rows in torch.split(torch.arange(len(targets), device=targets.device), _ROWS):
        probabilities = torch.softmax(linear(decoder.states[rows], decoder.weight, decoder.bias).float(), -1)
        highest, predictions = probabilities.max(-1)
        of_labels = probabilities.gather(1, labels[rows, None]).squeeze(1)
        figures = (targets[rows] + 1, labels[rows], predictions, highest, of_labels)
        for place, label, prediction, probability, of_label in zip(*(each.tolist() for each in figures), strict=True):
            tokens[place] = {
                "kind": "next",
                "label": show(label),
                "prediction": show(prediction),
                "probability": probability,
                "label_probability": of_label,
                "correct": label == prediction,
            }
    return Predictions(batch.input_ids, tokens, [""] * most)


def next_token_decoder(encoder: Encoder, head: MaskedLMHead | None, hidden: Tensor) -> Decoder:
    """The decoder of a left-to-right language model.

    Args:
        head: BERT's; None for the others, whose word embeddings decode without a bias.
        hidden: (targets, hidden), the encoder's output at the tokens before the targets.
    """
    assert not encoder.reads_words, "ELMo's language models have a softmax of their own"
    if head is None:
        return Decoder(hidden, encoder.word_embeddings)
    return Decoder(head.transform(hidden), head.decoder(encoder.word_embeddings), head.bias)


@torch.no_grad()
def next_token_log_probabilities(encoder: Encoder, head: MaskedLMHead | None, batch: Batch) -> list[Tensor]:
    """Natural logarithms of how likely the tokens of each sequence but the first are, given those before: (tokens - 1,)
    float32 on the CPU; `head` as of `next_token_decoder`."""
    decoder = next_token_decoder(encoder, head, encoder(batch))
    losses = score_decoder(decoder, batch.input_ids.roll(-1)).losses.cpu()
    return [-part[:-1] for part in torch.split(losses, list(batch.lengths))]
