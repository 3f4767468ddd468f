"""Masked language modelling (BERT, section 3.1), of tokens, words or spans, alone or with a second objective: on the
sentences (next sentence, sentence order), on the boundaries of spans (SpanBERT, section 3.2), or both.

The loss is the mean over the masked tokens, plus `sentence_weight` times the mean over the pairs, plus
`boundary_weight` times the mean over the tokens predicted from boundaries, plus the mean over next tokens where some
sequences are read from left to right. The encoder's last block, the heads and the vocabulary logits are computed only
at the tokens that are needed, which changes no figure.

At a first reading skip what answers for reports, floors and checkpoints: in `MaskedLM` all after `build`, in
`MaskedLMModule` `scores`, `saved` and `predictions`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from unmask.batch import Batch, LossTerm
from unmask.errors import SettingsError
from unmask.models.buckets import LAST_TOKEN, NO_LABEL, TOKENS, Padding, Paddings
from unmask.models.encoder import Encoder, TokenEncoder
from unmask.models.heads.heads import MaskedLMHead
from unmask.models.hub.directory import load_model
from unmask.models.hub.source import ModelSource
from unmask.models.kernels.cross_entropy import SummedCrossEntropy
from unmask.models.settings import EncoderSettings
from unmask.models.sizes import Sizes
from unmask.objectives.base import (
    ObjectiveModule,
    Predictions,
    Saved,
    encoder_operations,
    head_operations,
    original_ids,
)
from unmask.objectives.directions import (
    NEXT_LABELS,
    NEXT_POSITIONS,
    add_next_tokens,
    draw_directions,
    leave_out_left_to_right,
    next_counts,
    next_token_terms,
    share_of_targets,
)
from unmask.objectives.floors import Floor, NoContext, at_least_once, targets_of, vocabulary_floors
from unmask.objectives.masks.masking import describe_masking, mask_targets, predict_masked
from unmask.objectives.masks.span_masking import describe_span_lengths, describe_spans, find_spans
from unmask.objectives.masks.table import MASKINGS
from unmask.objectives.second_objective import SecondObjective
from unmask.objectives.sentence_pairs import SentencePairPart
from unmask.objectives.settings import TARGET_PROB, MaskedLMSettings
from unmask.objectives.span_boundary import SpanBoundary
from unmask.tokenization.vocabulary import Vocabulary


class MaskedLM:
    """The objective: chooses and masks targets, counts them.

    Raises:
        SettingsError: the masking needs words, and the vocabulary does not mark them.
    """

    predicts_next = False

    def __init__(self, settings: MaskedLMSettings, vocabulary: Vocabulary) -> None:
        assert vocabulary.mask_id is not None, "checked by `new_objective`"
        self._masking = MASKINGS[settings.masking]
        if self._masking.needs_words and not vocabulary.marks_words:
            raise SettingsError(
                f"objective.masking={settings.masking} needs a tokenizer whose entries show where a word begins: take "
                "masking=token, or a WordPiece or byte-level tokenizer"
            )
        self._settings, self._vocabulary = settings, vocabulary
        self._mask_id, self._special_ids = vocabulary.mask_id, vocabulary.special_ids
        ordinary = torch.ones(vocabulary.size, dtype=torch.bool)
        ordinary[list(vocabulary.special_ids)] = False
        self._ordinary_ids = torch.nonzero(ordinary).squeeze(1)
        self._parts: list[SecondObjective] = []
        if settings.sentence_objective != "none":
            self._parts.append(SentencePairPart(settings.sentence_objective, settings.sentence_weight))
        if settings.span_boundary:
            self._parts.append(SpanBoundary(settings.max_boundary_targets, settings.boundary_weight))
        self.needs_pooler = any(part.is_pooled for part in self._parts)
        next_tokens = ("lm",) if settings.causal_share else ()
        self.vocabulary_terms = ("mlm", *next_tokens, *(part.term for part in self._parts if part.is_over_vocabulary))

    def prepare(self, batch: Batch) -> Batch:
        """Masks a batch; see `unmask.objectives.masks.masking.mask_targets` for the columns it gets, to which the parts
        add theirs."""
        settings = self._settings
        batch = draw_directions(batch)
        # A column in training alone, where the share changes over the run; else the last share.
        prob = float(batch.columns.get(TARGET_PROB, settings.last_target_prob))
        chosen = leave_out_left_to_right(batch, self._masking.choose(batch, prob, settings, self._vocabulary))
        prepared = mask_targets(
            batch,
            chosen,
            settings.mask_token_prob,
            settings.random_token_prob,
            self._mask_id,
            self._ordinary_ids,
            _first_of_span(batch, chosen) if self._masking.has_spans else None,
        )
        prepared = add_next_tokens(prepared, batch.input_ids)
        for part in self._parts:
            prepared = part.prepare(prepared, chosen)
        return prepared

    def counts(self, batch: Batch) -> dict[str, int]:
        """Targets of `mlm`, of `lm` where sequences are read from left to right, and of each part."""
        counts = {"mlm": len(batch.columns["target_positions"]), **next_counts(batch)}
        return counts | {part.term: part.count(batch) for part in self._parts}

    def build(self, encoder: Encoder) -> MaskedLMModule:
        settings = self._settings
        return MaskedLMModule(encoder, self._parts, settings.z_loss, has_left_to_right=settings.causal_share > 0)

    def restore_heads(self, module: ObjectiveModule, source: ModelSource) -> None:
        assert isinstance(module, MaskedLMModule), "a module of this objective"
        loaded = load_model(source)
        if loaded.masked_lm_head is not None:
            module.masked_lm_head = loaded.masked_lm_head
        for part in self._parts:
            setattr(module, part.head_name, part.restored(module.head_of(part), loaded, source.directory))

    def floors(
        self,
        token_counts: NDArray[np.int64],
        batches: Sequence[Batch] = (),
        evaluation: Mapping[str, float] | None = None,
    ) -> list[Floor]:
        shares = self._settings.mask_token_prob, self._settings.random_token_prob
        targets = targets_of(batches)
        best = NoContext.of(at_least_once(token_counts, targets), *shares, self._mask_id, self._special_ids)
        floors = vocabulary_floors("mlm", best, targets)
        return floors + [floor for part in self._parts for floor in part.floors(token_counts, batches)]

    def operations(self, sizes: Sizes, batch: Batch, length: float) -> float:
        assert isinstance(sizes, EncoderSettings), "of a family that it trains"
        settings = self._settings
        masked = (settings.target_prob + settings.last_target_prob) / 2
        targets = share_of_targets(masked, settings.causal_share)
        parts = [part.operations(sizes, batch, length) for part in self._parts]
        read = targets + sum(share for share, _ in parts)
        heads = targets * head_operations(sizes) + sum(work for _, work in parts)
        return 3 * (encoder_operations(sizes, length, read) + heads)

    def describe_sequences(self, batch: Batch, most: int) -> list[str]:
        lines = [part.describe_sequences(batch, most) for part in self._parts]
        if batch.left_to_right:
            lines.append(["read from left to right" if causal else "" for causal in batch.left_to_right[:most]])
        lines += [describe_spans(batch, most)] if self._masking.has_spans else []
        return [", ".join(filter(None, facts)) for facts in zip([""] * most, *lines, strict=True)]

    def describe_batches(self, batches: Sequence[Batch]) -> list[tuple[str, str]]:
        rows = describe_masking(batches, self._mask_id)
        rows += describe_span_lengths(batches) if self._masking.has_spans else []
        return rows + [row for part in self._parts for row in part.describe_batches(batches)]


def _first_of_span(batch: Batch, chosen: Tensor) -> Tensor:
    """(targets,) int64: the first token of each target's span."""
    first, last = find_spans(batch, chosen)
    return torch.repeat_interleave(first, last - first + 1)


class MaskedLMModule(ObjectiveModule):
    """An encoder with the masked-LM head of its family, and the heads of the parts.

    Args:
        encoder: with a pooler where a part reads it.
        parts: the second objectives.
        z_loss: as in `MaskedLMSettings`.
        has_left_to_right: some sequences of the run are read from left to right.
    """

    encoder: TokenEncoder

    def __init__(
        self,
        encoder: Encoder,
        parts: Sequence[SecondObjective],
        z_loss: float = 0.0,
        *,
        has_left_to_right: bool = False,
    ) -> None:
        super().__init__()
        assert not encoder.reads_words, "it has no tokens that could be masked"
        self.encoder = encoder
        self.masked_lm_head = MaskedLMHead(encoder.settings)
        self.cross_entropy = SummedCrossEntropy()
        self._parts = tuple(parts)
        self._z_loss = z_loss
        self._has_left_to_right = has_left_to_right
        for part in parts:
            self.add_module(part.head_name, part.new_head(encoder.settings))

    def head_of(self, part: SecondObjective) -> nn.Module:
        """The head of one of its parts."""
        return self.get_submodule(part.head_name)

    @property
    def paddings(self) -> Paddings:
        """How the columns that `forward` reads are padded to a bucket."""
        paddings = {"labels": Padding(TOKENS, NO_LABEL), "target_positions": Padding("targets", LAST_TOKEN)}
        if self._has_left_to_right:
            paddings |= {NEXT_POSITIONS: Padding("next", LAST_TOKEN), NEXT_LABELS: Padding("next", NO_LABEL)}
        for part in self._parts:
            paddings |= part.paddings
        return paddings

    def forward(self, batch: Batch) -> list[LossTerm]:
        """The term `mlm`, `lm` where sequences are read from left to right, and that of each part."""
        hidden = self._read(batch)
        (logits, labels), *answers = self._answers(batch, hidden)
        terms = [LossTerm("mlm", self.cross_entropy(logits, labels, self._z_loss))]
        terms += next_token_terms(batch, self.encoder, self.masked_lm_head, hidden["lm"], self._z_loss)
        for part, (logits, labels) in zip(self._parts, answers, strict=True):
            terms.append(LossTerm(part.term, part.total(logits, labels, self.cross_entropy), part.weight))
        return terms

    def scores(self, batch: Batch) -> dict[str, tuple[Tensor, int]]:
        """The loss and the accuracy of every term but `lm`: `mlm_loss`, `mlm_accuracy`, `nsp_loss` ..."""
        (logits, labels), *answers = self.logits(batch)
        scores = scores_of("mlm", self.cross_entropy(logits, labels), logits, labels)
        for part, (logits, labels) in zip(self._parts, answers, strict=True):
            scores |= scores_of(part.term, part.total(logits, labels, self.cross_entropy), logits, labels)
        return scores

    def saved(self) -> dict[str, Saved]:
        """The encoder with its heads: what `transformers` opens, and the boundary head, which goes beside it."""
        model = Saved(self.encoder, {"masked_lm_head": self.masked_lm_head})
        for part in self._parts:
            model = part.saved(self.head_of(part), model)
        return {"": model}

    def predictions(self, batch: Batch, most: int, show: Callable[[int], str]) -> Predictions:
        (logits, _), *answers = self.logits(batch)
        of_parts = [part.titles(batch, its, most) for part, (its, _) in zip(self._parts, answers, strict=True)]
        titles = ["".join(each) for each in zip([""] * most, *of_parts, strict=True)]
        return Predictions(original_ids(batch), predict_masked(batch, most, logits, show), titles)

    def logits(self, batch: Batch) -> list[tuple[Tensor, Tensor]]:
        """Logits (targets, classes) and labels (targets,) int64: over the vocabulary at the masked tokens, then those
        of each part."""
        return self._answers(batch, self._read(batch))

    def _read(self, batch: Batch) -> dict[str, Tensor]:
        """The hidden states that each term needs, (places, hidden), from one pass of the encoder."""
        # In another order dropout zeroes other elements and sums are rounded otherwise: runs would not be repeated.
        places = {part.term: part.places(batch) for part in self._parts if part.is_pooled}
        places["mlm"] = batch.columns["target_positions"]
        places |= {part.term: part.places(batch) for part in self._parts if not part.is_pooled}
        places["lm"] = batch.columns.get(NEXT_POSITIONS, places["mlm"][:0])
        hidden = self.encoder(batch, torch.cat(list(places.values())))
        return dict(zip(places, hidden.split([len(each) for each in places.values()]), strict=True))

    def _answers(self, batch: Batch, hidden: dict[str, Tensor]) -> list[tuple[Tensor, Tensor]]:
        """Logits and labels: of the masked tokens, then of each part."""
        targets, words = batch.columns["target_positions"], self.encoder.word_embeddings
        logits = [(self.masked_lm_head(hidden["mlm"], words), batch.columns["labels"][targets])]
        for part in self._parts:
            logits.append(part.answer(self.head_of(part), hidden[part.term], batch, self.encoder))
        return logits


def scores_of(name: str, total: Tensor, logits: Tensor, labels: Tensor) -> dict[str, tuple[Tensor, int]]:
    """Sums and counts of the loss and the accuracy."""
    correct = (logits.argmax(-1) == labels).sum()
    return {f"{name}_loss": (total, len(labels)), f"{name}_accuracy": (correct, len(labels))}
