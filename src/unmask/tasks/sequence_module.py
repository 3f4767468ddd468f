"""The module of tasks with one output for a whole text: an encoder, and a head on its summary of each sequence.

ELMo classifies texts from all its layers, or those of `task.feature_layers` (`unmask.models.elmo.classifier`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from unmask.batch import IGNORE_INDEX, Batch, LossTerm, in_parts
from unmask.errors import SettingsError
from unmask.models.buckets import IS_PADDING, NO_LABEL, SEQUENCES, TOKENS, Padding, Paddings
from unmask.models.elmo.classifier import ElmoClassifier
from unmask.models.encoder import Encoder
from unmask.models.family import HeadKind
from unmask.models.heads.bilstm import BiLstmHead
from unmask.models.heads.heads import Classifier, DeepClassifier, TwoOrderClassifier, WindowClassifier, new_head
from unmask.models.heads.layer_mixture import ELMOS
from unmask.tasks.auxiliary_lm import check_sees_no_next_token, next_token_term, num_continued
from unmask.tasks.base import TaskModule
from unmask.tasks.settings import TaskSettings

SummedLoss = Callable[[Tensor, Tensor], Tensor]
"""From outputs (sequences, outputs) and labels, some of which may be missing, to () float32."""

WeightedLoss = Callable[[Tensor, Tensor, Tensor], Tensor]
"""The same from weights of the labels, too."""

_REDUCTIONS = {"mean": "mean", "max": "amax"}
"""By `task.window_pooling`, PyTorch's names; `learnt` is the head's own."""


class SequenceModule(TaskModule):
    """An encoder and a head.

    Args:
        head: maps `encoder.summary(batch)` to outputs. A `BiLstmHead` reads all hidden states instead, an
            `ElmoClassifier` those of all layers; a `TwoOrderClassifier` adds the summaries of a unit's two rows, a
            `WindowClassifier` weighs those of its windows.
        summed_loss: the loss of the term `task`, from outputs and the column `labels`.
        auxiliary_lm_weight: coefficient of the term `lm`; 0 leaves it out.
        window_pooling: how the rows of a unit become one output: `mean` and `max` of their outputs, `learnt` by the
            head; None: a unit is one row, or the head's two.
        mixture_penalty: see `TaskModule`.
    """

    _label_weights: Tensor

    def __init__(
        self,
        encoder: Encoder,
        head: nn.Module,
        summed_loss: SummedLoss,
        auxiliary_lm_weight: float = 0.0,
        window_pooling: Literal["mean", "max", "learnt"] | None = None,
        mixture_penalty: float = 0.0,
    ) -> None:
        super().__init__(encoder, head, mixture_penalty)
        self._summed_loss = summed_loss
        self._auxiliary_lm_weight = auxiliary_lm_weight
        self._window_pooling = window_pooling
        self._mean, self._deviation = 0.0, 1.0
        self._learned_loss: WeightedLoss | None = None
        self.register_buffer("_label_weights", None, persistent=False)

    def learn_by(self, loss: WeightedLoss, weights: Tensor) -> None:
        """Lets the module, in training mode, learn by another loss than the one that is measured.

        Args:
            loss: as `summed_loss`, and from `weights`.
        """
        self._learned_loss, self._label_weights = loss, weights

    def standardise(self, values: NDArray[np.float64], is_kept: bool = False) -> None:
        """Lets a head with one output learn values with mean 0 and standard deviation 1, whatever the scale of the
        labels; `rescale` then makes it answer on their scale.

        Args:
            values: the labels of the training examples; NaN where there is none.
            is_kept: whether the head answers on the scale of the labels already.
        """
        has_bias = _last_layer(self.head).bias is not None
        mean = float(np.nanmean(values)) if has_bias else 0.0  # without a bias (GPT-1) all answers would be far off
        self._mean, self._deviation = mean, float(np.sqrt(np.nanmean(np.square(values - mean)))) or 1.0
        if is_kept:
            _rescale(self.head, -self._mean / self._deviation, 1 / self._deviation)

    @property
    def _on_scale_of_labels(self) -> bool:
        """Whether the head answers on the scale of the labels."""
        return (self._mean, self._deviation) == (0.0, 1.0)

    def rescale(self) -> None:
        """Makes the head answer, and the loss count, on the scale of the labels."""
        if self._on_scale_of_labels:
            return
        _rescale(self.head, self._mean, self._deviation)
        self._mean, self._deviation = 0.0, 1.0

    def cool(self, temperature: float) -> None:
        """Divides the outputs by a number, which becomes part of the head."""
        _rescale(self.head, 0.0, 1 / temperature)

    @contextmanager
    def rescaled(self) -> Iterator[None]:
        """As after `rescale` inside the context, and as before after it, to the bit."""
        if self._on_scale_of_labels:
            yield
            return
        scale, layer = (self._mean, self._deviation), _last_layer(self.head)
        kept = [parameter.detach().clone() for parameter in layer.parameters()]
        self.rescale()
        try:
            yield
        finally:
            self._mean, self._deviation = scale
            with torch.no_grad():
                for parameter, before in zip(layer.parameters(), kept, strict=True):
                    parameter.copy_(before)

    @property
    def paddings(self) -> Paddings | None:
        """How the columns that `forward` reads are padded to a bucket; None if it needs the lengths."""
        if isinstance(self.head, BiLstmHead | ElmoClassifier | TwoOrderClassifier) or self._window_pooling:
            return None
        paddings = {"labels": Padding(SEQUENCES, NO_LABEL)}
        return paddings | {IS_PADDING: Padding(TOKENS, True)} if self._auxiliary_lm_weight else paddings

    def forward(self, batch: Batch) -> list[LossTerm]:
        """The term `task` and, if its weight is not 0, `lm`, both from one pass of the encoder; or `mixture`."""
        if not self._auxiliary_lm_weight:
            return super().forward(batch)
        hidden = self.encoder(batch)
        terms = self.loss(self.of_units(self._of_rows(batch, hidden), batch), batch)
        return [*terms, next_token_term(self.encoder, hidden, batch, self._auxiliary_lm_weight)]

    def outputs(self, batch: Batch) -> Tensor:
        """(units, outputs); a unit is a sequence, the two orders of a pair, or the windows of a text."""
        if self._window_pooling and not torch.is_grad_enabled():
            return self.of_units(torch.cat([self._of_rows(part) for part in in_parts(batch)]), batch)
        return self.of_units(self._of_rows(batch), batch)

    def _of_rows(self, batch: Batch, hidden: Tensor | None = None) -> Tensor:
        """What the head gives for each sequence, or reads of it if it puts them together itself.

        Args:
            hidden: (tokens, hidden), the output of the encoder, a causal one, where it is there already.
        """
        head = self.head
        if isinstance(head, BiLstmHead):
            return head(self.encoder(batch) if hidden is None else hidden, batch.lengths)  # type: ignore[no-any-return]
        if isinstance(head, ElmoClassifier):
            return head(self.encoder.hidden_states(batch), batch)  # type: ignore[no-any-return]
        summaries = self.encoder.summary(batch) if hidden is None else hidden[batch.last_tokens]
        return summaries if isinstance(head, WindowClassifier) else head(summaries)

    def of_units(self, outputs: Tensor, batch: Batch) -> Tensor:
        """(units, outputs) from what `_of_rows` gives for their sequences."""
        is_learnt = isinstance(self.head, WindowClassifier)
        if self._window_pooling is None or ("unit_bounds" not in batch.columns and not is_learnt):
            return outputs
        bounds = batch.columns.get("unit_bounds", torch.arange(len(outputs) + 1, device=outputs.device))
        sizes = bounds.diff()  # (units,)
        units = torch.repeat_interleave(torch.arange(len(sizes), device=outputs.device), sizes)
        if is_learnt:
            answers: Tensor = self.head(outputs, units, len(sizes))
            return answers
        index = units[:, None].expand_as(outputs)
        pooled = outputs.new_zeros(len(sizes), outputs.shape[1])
        return pooled.scatter_reduce(0, index, outputs, _REDUCTIONS[self._window_pooling], include_self=False)

    def loss(self, outputs: Tensor, batch: Batch) -> list[LossTerm]:
        """The term `task` alone, as measured; `lm` and `mixture` are used only in training."""
        labels = batch.columns["labels"]
        if not self._on_scale_of_labels:
            labels = (labels - self._mean) / self._deviation
        if self.training and self._learned_loss is not None:
            total = self._learned_loss(outputs.float(), labels, self._label_weights)
        else:
            total = self._summed_loss(outputs.float(), labels)
        return [LossTerm("task", total)]

    def num_targets(self, batch: Batch) -> int:
        """Labels; missing ones are NaN, or `IGNORE_INDEX`."""
        labels = batch.columns["labels"]
        return int((~labels.isnan() if labels.is_floating_point() else labels != IGNORE_INDEX).sum())

    def counts(self, batch: Batch) -> dict[str, int]:
        """See `TaskModule`; of `lm` the sequences of more than one token."""
        return super().counts(batch) | ({"lm": num_continued(batch)} if self._auxiliary_lm_weight else {})


def _last_layer(head: nn.Module) -> nn.Linear:
    return [part for part in head.modules() if isinstance(part, nn.Linear)][-1]


@torch.no_grad()
def _rescale(head: nn.Module, mean: float, deviation: float) -> None:
    """Makes a head answer `deviation` times as much, plus `mean`."""
    output = _last_layer(head)
    output.weight *= deviation
    if output.bias is not None:
        output.bias.mul_(deviation).add_(mean)


def new_sequence_module(
    encoder: Encoder, head: nn.Module | None, num_outputs: int, summed_loss: SummedLoss, settings: TaskSettings
) -> SequenceModule:
    """The module of a task; see `Task.module`.

    Raises:
        SettingsError: next-token prediction, or a pair in both orders, is wanted of an encoder that is not causal, or
            next-token prediction of one without a decoder for it, learnt pooling of ELMo, or layers of another.
    """
    check_sees_no_next_token(encoder, settings.auxiliary_lm_weight)
    layers = settings.feature_layers
    if layers not in (None, "last") and not encoder.reads_words:
        raise SettingsError(
            f"task.feature_layers={layers}: texts are classified from chosen layers of an ELMo alone, and init_from's "
            f"encoder ({encoder.settings.architecture}) has its last one read: leave it out"
        )
    if head is None and encoder.reads_words:
        bilstm_size = settings.bilstm_size if settings.encoder_top == "bilstm" else None
        dropout_prob = settings.classifier_dropout
        head = ElmoClassifier(encoder.settings, num_outputs, dropout_prob, bilstm_size, layers or ELMOS)
    elif head is None:
        head = new_task_head("sequence_classification", encoder, num_outputs, settings)
    if settings.reads_both_orders(encoder.settings.type_vocab_size):
        if not encoder.settings.is_causal:
            raise SettingsError(
                f"task.two_orders is true, and init_from's encoder ({encoder.settings.architecture}) reads both texts "
                "of a pair at once: leave it out, or start from a causal model"
            )
        assert isinstance(head, Classifier), "every causal encoder has it"
        head = TwoOrderClassifier(head)
    pooling = settings.window_pooling if settings.long_text == "windows" else None
    if pooling == "learnt":
        if not isinstance(head, Classifier | DeepClassifier):
            raise SettingsError(
                "task.window_pooling=learnt weighs what an encoder sums windows up in, and ELMo has no such summary: "
                "choose mean or max"
            )
        head = WindowClassifier(head, encoder.settings.hidden_size)
    penalty = settings.mixture_penalty
    return SequenceModule(encoder, head, summed_loss, settings.auxiliary_lm_weight, pooling, penalty)


def new_task_head(kind: HeadKind, encoder: Encoder, num_outputs: int, settings: TaskSettings) -> nn.Module:
    """A new head; that of `task.encoder_top: bilstm` leaves the encoder's pooler unused, which is removed."""
    if settings.encoder_top == "none":
        return new_head(kind, encoder.settings, num_outputs, settings.classifier_dropout)
    encoder.pooler = None
    return BiLstmHead(kind, encoder.settings, num_outputs, settings.classifier_dropout, settings.bilstm_size)


def label_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """() from (units, labels) and ids (units,), `IGNORE_INDEX` where there is no label."""
    return functional.cross_entropy(logits, labels, reduction="sum", ignore_index=IGNORE_INDEX)
