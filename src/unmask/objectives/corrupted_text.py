"""What a model learns from a text that a generator has corrupted, its samples in place of the targets: which tokens
were replaced (ELECTRA, Clark et al. 2020, section 2), or what stood there before (models of section 3.4, with which
the paper compares it).

Each task has a head of its own on the encoder that is kept. The paper does not say how the losses of the two tasks that
predict tokens count beside the generator's; they are of its kind, and count once. Their heads are not saved: with them
the model would be a masked LM to `transformers` and to every command here, and it has never seen a `[MASK]`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from unmask.batch import IGNORE_INDEX, Batch
from unmask.models.buckets import IS_PADDING
from unmask.models.encoder import TokenEncoder
from unmask.models.heads.heads import CopyingHead, DiscriminatorHead, MaskedLMHead
from unmask.models.hub.source import LoadedModel
from unmask.models.kernels.cross_entropy import SummedCrossEntropy, summed_binary_cross_entropy
from unmask.models.settings import EncoderSettings
from unmask.objectives import base
from unmask.objectives.base import Saved, original_ids
from unmask.objectives.floors import Floor, copying_floors, discriminator_floors
from unmask.objectives.masks.masking import predict_masked

_ANSWERS = ("original", "replaced")  # the discriminator's labels 0 and 1


class CorruptedText(NamedTuple):
    """A prepared batch after the generator.

    Attributes:
        batch: its `input_ids` are the generator's samples at the targets; its labels are the original tokens.
        replaced: (tokens,) bool, where a sample is not the original token.
    """

    batch: Batch
    replaced: Tensor


class CorruptedTextTask(ABC):
    """What is learnt of such a text.

    Args:
        target_prob: the share of tokens that are targets.

    Attributes:
        term: of the loss.
        head_name: of its head, in the weights of a checkpoint.
        is_over_vocabulary: whether its classes are the entries of the vocabulary.
    """

    term: str
    head_name: str
    is_over_vocabulary: bool = True

    def __init__(self, target_prob: float) -> None:
        self.target_prob = target_prob

    @abstractmethod
    def new_head(self, sizes: EncoderSettings) -> nn.Module: ...

    def restored(self, head: nn.Module, loaded: LoadedModel) -> nn.Module:
        """The head of a model directory in place of a fresh one, if that has it."""
        return head

    def saved(self, encoder: TokenEncoder, head: nn.Module) -> Saved:
        """The model that is kept."""
        return Saved(encoder)

    @abstractmethod
    def count(self, batch: Batch) -> int:
        """Its targets in a prepared batch."""

    @abstractmethod
    def total(self, encoder: TokenEncoder, head: nn.Module, text: CorruptedText, entropy: SummedCrossEntropy) -> Tensor:
        """() float32, the sum of the losses; `entropy` is that of the vocabulary."""

    @abstractmethod
    def scores(self, encoder: TokenEncoder, head: nn.Module, text: CorruptedText) -> dict[str, tuple[Tensor, int]]:
        """As `ObjectiveModule.scores`, with `replaced_share`: of the tokens that it is asked about, those that were
        replaced."""

    @abstractmethod
    def predictions(
        self, encoder: TokenEncoder, head: nn.Module, text: CorruptedText, most: int, show: Callable[[int], str]
    ) -> dict[int, dict[str, Any]]:
        """As `Predictions.tokens`, for the first `most` sequences."""

    def floors(self, unigram: float, share: float | None) -> list[Floor]:
        """Of its loss and accuracy.

        Args:
            unigram: nats of knowing the entries' frequencies alone.
            share: `replaced_share` of the newest evaluation; None: there is no run yet.
        """
        return copying_floors(self.term, unigram, share)

    @abstractmethod
    def operations(self, sizes: EncoderSettings) -> tuple[float, float]:
        """The share of the tokens that its head reads, and the head's forward pass, per token shown."""


class Detection(CorruptedTextTask):
    """Which tokens were replaced: of all, or of the targets alone (the paper's "ELECTRA 15 %").

    Args:
        at_targets: it is asked about the targets alone.
    """

    term = "discriminator"
    head_name = "discriminator_head"
    is_over_vocabulary = False

    def __init__(self, target_prob: float, *, at_targets: bool = False) -> None:
        super().__init__(target_prob)
        self._at_targets = at_targets

    def new_head(self, sizes: EncoderSettings) -> nn.Module:
        return DiscriminatorHead(sizes)

    def restored(self, head: nn.Module, loaded: LoadedModel) -> nn.Module:
        return loaded.discriminator_head or head

    def saved(self, encoder: TokenEncoder, head: nn.Module) -> Saved:
        return Saved(encoder, {"discriminator_head": head})

    def count(self, batch: Batch) -> int:
        return len(batch.columns["target_positions"]) if self._at_targets else batch.num_tokens

    def total(self, encoder: TokenEncoder, head: nn.Module, text: CorruptedText, entropy: SummedCrossEntropy) -> Tensor:
        guesses, replaced = self._judge(encoder, head, text)
        columns = text.batch.columns
        is_padding = columns.get(IS_PADDING)
        if self._at_targets:
            is_padding = columns["labels"][columns["target_positions"]] == IGNORE_INDEX
        return summed_binary_cross_entropy(guesses, replaced, is_padding)

    def scores(self, encoder: TokenEncoder, head: nn.Module, text: CorruptedText) -> dict[str, tuple[Tensor, int]]:
        """`discriminator_loss`, `discriminator_accuracy` and `replaced_share` over the tokens that it is asked about,
        `discriminator_precision` over those called replaced (a fresh one calls none so), `discriminator_recall` over
        those that are, and `discriminator_auc`, the area under the ROC curve: over pairs of a replaced and an original
        token of one batch, the share in which the replaced one has the higher logit."""
        guesses, replaced = self._judge(encoder, head, text)
        called, number = guesses > 0, len(guesses)
        caught, num_replaced = (called & replaced).sum(), int(replaced.sum())
        ranks = guesses.argsort(stable=True).argsort()
        num_lower = ranks[replaced].sum() - num_replaced * (num_replaced - 1) // 2
        return {
            "discriminator_loss": (summed_binary_cross_entropy(guesses, replaced), number),
            "discriminator_accuracy": ((called == replaced).sum(), number),
            "discriminator_precision": (caught, int(called.sum())),
            "discriminator_recall": (caught, num_replaced),
            "discriminator_auc": (num_lower, num_replaced * (number - num_replaced)),
            "replaced_share": (replaced.sum(), number),
        }

    def predictions(
        self, encoder: TokenEncoder, head: nn.Module, text: CorruptedText, most: int, show: Callable[[int], str]
    ) -> dict[int, dict[str, Any]]:
        """What it says of each token, special ones aside."""
        batch, end = text.batch, int(text.batch.bounds[most])
        guesses, replaced = self._judge(encoder, head, text)
        places = self._places(batch)
        figures = batch.input_ids, original_ids(batch), batch.columns["special_tokens_mask"]
        rows = zip(
            places.tolist(), *(each[places].tolist() for each in figures), replaced.tolist(),
            torch.sigmoid(guesses.float()).tolist(), strict=True,
        )  # fmt: skip
        return {
            place: {
                "token": show(shown),
                "kind": "checked",
                "label": _ANSWERS[is_replaced],
                "prediction": _ANSWERS[chance > 0.5],
                "probability": chance,
                "correct": is_replaced == (chance > 0.5),
                **({"original": show(original)} if is_replaced else {}),
            }
            for place, shown, original, is_special, is_replaced, chance in rows
            if place < end and not is_special
        }

    def floors(self, unigram: float, share: float | None) -> list[Floor]:
        """Before a run the share of tokens that are replaced is at most that of targets; among these it may be any."""
        if share is None and self._at_targets:
            return []
        return discriminator_floors(self.target_prob, share)

    def operations(self, sizes: EncoderSettings) -> tuple[float, float]:
        read = self.target_prob if self._at_targets else 1.0
        return read, read * _discriminator_operations(sizes)

    def _places(self, batch: Batch) -> Tensor:
        """(places,) int64: the tokens that it is asked about."""
        if self._at_targets:
            return batch.columns["target_positions"]
        return torch.arange(batch.num_tokens, device=batch.input_ids.device)

    def _judge(self, encoder: TokenEncoder, head: nn.Module, text: CorruptedText) -> tuple[Tensor, Tensor]:
        """The logits that tokens were replaced, and whether they were: (places,) float and (places,) bool."""
        if not self._at_targets:
            return head(encoder(text.batch)), text.replaced
        places = self._places(text.batch)
        return head(encoder(text.batch, places)), text.replaced[places]


class ReplaceMLM(CorruptedTextTask):
    """The original tokens at the targets: masked language modelling in which samples are shown in place of `[MASK]`."""

    term = "mlm"
    head_name = "masked_lm_head"

    def new_head(self, sizes: EncoderSettings) -> nn.Module:
        return MaskedLMHead(sizes)

    def count(self, batch: Batch) -> int:
        return len(batch.columns["target_positions"])

    def total(self, encoder: TokenEncoder, head: nn.Module, text: CorruptedText, entropy: SummedCrossEntropy) -> Tensor:
        total: Tensor = entropy(*self._logits(encoder, head, text.batch))
        return total

    def scores(self, encoder: TokenEncoder, head: nn.Module, text: CorruptedText) -> dict[str, tuple[Tensor, int]]:
        """`mlm_loss` and `mlm_accuracy` at the targets; `restored_share`: of those that were replaced, the share whose
        original it finds likeliest."""
        logits, labels = self._logits(encoder, head, text.batch)
        losses = functional.cross_entropy(logits.float(), labels, reduction="none")
        replaced = text.replaced[text.batch.columns["target_positions"]]
        return _scores_of_tokens(self.term, losses, logits.argmax(-1) == labels, replaced)

    def predictions(
        self, encoder: TokenEncoder, head: nn.Module, text: CorruptedText, most: int, show: Callable[[int], str]
    ) -> dict[int, dict[str, Any]]:
        return _predicted(text.batch, most, self._logits(encoder, head, text.batch)[0], show)

    def operations(self, sizes: EncoderSettings) -> tuple[float, float]:
        return self.target_prob, self.target_prob * base.head_operations(sizes)

    def _logits(self, encoder: TokenEncoder, head: nn.Module, batch: Batch) -> tuple[Tensor, Tensor]:
        """(targets, vocabulary) and the original tokens, (targets,) int64."""
        targets = batch.columns["target_positions"]
        return head(encoder(batch, targets), encoder.word_embeddings), batch.columns["labels"][targets]


class AllTokensMLM(CorruptedTextTask):
    """The original tokens at all places, with a mechanism that copies what is shown: with the copy probability D of a
    token, its distribution is D on the token shown and 1 - D times the softmax over the vocabulary."""

    term = "all_tokens"
    head_name = "copying_head"

    def new_head(self, sizes: EncoderSettings) -> nn.Module:
        return CopyingHead(sizes)

    def count(self, batch: Batch) -> int:
        return batch.num_tokens

    def total(self, encoder: TokenEncoder, head: nn.Module, text: CorruptedText, entropy: SummedCrossEntropy) -> Tensor:
        losses = self._losses(text.batch, *head(encoder(text.batch), encoder.word_embeddings))
        is_padding = text.batch.columns.get(IS_PADDING)
        return (losses if is_padding is None else losses.masked_fill(is_padding, 0)).sum()

    def scores(self, encoder: TokenEncoder, head: nn.Module, text: CorruptedText) -> dict[str, tuple[Tensor, int]]:
        """`all_tokens_loss` and `all_tokens_accuracy`; `restored_share` as of `ReplaceMLM`."""
        logits, copied = head(encoder(text.batch), encoder.word_embeddings)
        likeliest = self._probabilities(text.batch, logits, copied).argmax(-1)
        right = likeliest == original_ids(text.batch)
        return _scores_of_tokens(self.term, self._losses(text.batch, logits, copied), right, text.replaced)

    def predictions(
        self, encoder: TokenEncoder, head: nn.Module, text: CorruptedText, most: int, show: Callable[[int], str]
    ) -> dict[int, dict[str, Any]]:
        """At the targets."""
        logits, copied = head(encoder(text.batch), encoder.word_embeddings)
        probabilities = self._probabilities(text.batch, logits, copied)[text.batch.columns["target_positions"]]
        return _predicted(text.batch, most, probabilities.log(), show)

    def operations(self, sizes: EncoderSettings) -> tuple[float, float]:
        return 1.0, base.head_operations(sizes) + _discriminator_operations(sizes)

    def _losses(self, batch: Batch, logits: Tensor, copied: Tensor) -> Tensor:
        """(tokens,) float32: the negative logarithm of each original's probability."""
        originals = original_ids(batch)
        drawn = functional.logsigmoid(-copied) - functional.cross_entropy(logits.float(), originals, reduction="none")
        as_shown = torch.logaddexp(functional.logsigmoid(copied), drawn)
        return -torch.where(batch.input_ids == originals, as_shown, drawn)

    def _probabilities(self, batch: Batch, logits: Tensor, copied: Tensor) -> Tensor:
        """(tokens, vocabulary) float32."""
        copies = torch.sigmoid(copied)[:, None]
        return (torch.softmax(logits.float(), -1) * (1 - copies)).scatter_add(1, batch.input_ids[:, None], copies)


def new_task(variant: str, target_prob: float) -> CorruptedTextTask:
    """The task of `objective.variant`."""
    match variant:
        case "electra":
            return Detection(target_prob)
        case "electra_15":
            return Detection(target_prob, at_targets=True)
        case "replace_mlm":
            return ReplaceMLM(target_prob)
        case "all_tokens_mlm":
            return AllTokensMLM(target_prob)
    raise AssertionError(f"checked by the settings: {variant}")


def _predicted(batch: Batch, most: int, logits: Tensor, show: Callable[[int], str]) -> dict[int, dict[str, Any]]:
    """At the targets, each with the sample that was read there."""
    predicted = predict_masked(batch, most, logits, show)
    return {place: {**each, "token": show(int(batch.input_ids[place]))} for place, each in predicted.items()}


def _scores_of_tokens(term: str, losses: Tensor, right: Tensor, replaced: Tensor) -> dict[str, tuple[Tensor, int]]:
    number = len(losses)
    return {
        f"{term}_loss": (losses.sum(), number),
        f"{term}_accuracy": (right.sum(), number),
        "restored_share": ((right & replaced).sum(), int(replaced.sum())),
        "replaced_share": (replaced.sum(), number),
    }


def _discriminator_operations(sizes: EncoderSettings) -> float:
    """The forward pass of a discriminator's head, per token."""
    return 2 * (sizes.hidden_size**2 + sizes.hidden_size)
