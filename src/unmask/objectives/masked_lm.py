"""Masked language modelling (BERT, section 3.1), of tokens, words or spans, alone or with a second objective: on the
sentences (next sentence, sentence order), on the boundaries of spans (SpanBERT, section 3.2), or both.

The loss is the mean over the masked tokens, plus the mean over the pairs, plus the mean over the tokens predicted from
boundaries. The encoder's last block, the heads and the vocabulary logits are computed only at the places that are
needed, which changes no figure.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from unmask.batch import Batch, LossTerm
from unmask.errors import SettingsError
from unmask.models.bert import new_next_sentence_head
from unmask.models.buckets import LAST_TOKEN, NO_LABEL, SEQUENCES, TOKENS, Filling, Fillings
from unmask.models.encoder import Encoder
from unmask.models.heads.heads import new_masked_lm_head
from unmask.models.heads.span_boundary_head import SpanBoundaryHead, new_span_boundary_head, restore_span_boundary
from unmask.models.hub.directory import load_model
from unmask.models.kernels.cross_entropy import SummedCrossEntropy, summed_cross_entropy
from unmask.objectives.base import ObjectiveModule, Saved
from unmask.objectives.encoders import why_not_trained
from unmask.objectives.floors import NoContext
from unmask.objectives.masking import choose_tokens, choose_words, mask_targets
from unmask.objectives.sentence_pairs import sentence_scores, sentence_term
from unmask.objectives.settings import MaskedLMSettings
from unmask.objectives.span_boundary import with_boundaries
from unmask.objectives.span_masking import choose_annotated, choose_spans, find_spans
from unmask.packing.settings import LABEL_COLUMNS, SentenceQuestion
from unmask.tokenization.vocabulary import Vocabulary

SENTENCE_OBJECTIVE = "unmask_sentence_objective"
"""The key in `config.json` that says what the sentence head was trained for, where it is not the next sentence."""


SPAN_MASKINGS = ("span", "entity", "noun_phrase")
"""Maskings in which a whole span is masked, replaced or left together (SpanBERT, section 3.1)."""


class MaskedLM:
    """The objective: chooses and masks targets, counts them.

    Args:
        settings: rates, what is chosen, the second objectives.
        vocabulary: facts about the tokenizer's entries.

    Raises:
        SettingsError: the vocabulary has no mask token, or the masking needs words and the vocabulary does not mark
            them.
    """

    perplexities: tuple[str, ...] = ("mlm_loss",)

    def __init__(self, settings: MaskedLMSettings, vocabulary: Vocabulary) -> None:
        if vocabulary.mask_id is None:
            raise SettingsError(
                "objective.name=masked_lm needs a tokenizer with a mask token, and this one has none: take a tokenizer "
                "with [MASK], or the recipe of a left-to-right model, such as pretrain/gpt1_tiny"
            )
        if settings.masking != "token" and not vocabulary.marks_words:
            raise SettingsError(
                f"objective.masking={settings.masking} needs a tokenizer whose entries tell where a word begins: take "
                "masking=token, or a WordPiece or byte-level tokenizer"
            )
        self._settings = settings
        self._mask_id, self._special_ids = vocabulary.mask_id, vocabulary.special_ids
        self._continuation = torch.from_numpy(vocabulary.continuation)
        ordinary = torch.ones(vocabulary.size, dtype=torch.bool)
        ordinary[list(vocabulary.special_ids)] = False
        self._ordinary_ids = torch.nonzero(ordinary).squeeze(1)
        self.columns: tuple[str, ...] = ("special_tokens_mask",)
        if settings.masking in ("entity", "noun_phrase"):
            self.columns += (settings.masking,)
        if settings.sentence_objective != "none":
            self.columns += (LABEL_COLUMNS[settings.sentence_objective],)
        self.needs_pooler = settings.sentence_objective != "none"

    def prepare(self, batch: Batch) -> Batch:
        """Masks a batch; see `unmask.objectives.masking.mask_targets` for the columns it gets, and
        `unmask.objectives.span_boundary.with_boundaries` for those that spans add.

        Raises:
            SettingsError: the masking goes by annotations, and the batch has none.
        """
        settings = self._settings
        chosen = self._choose(batch)
        prepared = mask_targets(
            batch,
            chosen,
            settings.mask_token_prob,
            settings.random_token_prob,
            self._mask_id,
            self._ordinary_ids,
            _first_of_span(batch, chosen) if settings.masking in SPAN_MASKINGS else None,
        )
        return with_boundaries(prepared, chosen, settings.max_boundary_targets) if settings.span_boundary else prepared

    def _choose(self, batch: Batch) -> Tensor:
        """(tokens,) bool, True for a target."""
        settings, prob = self._settings, self._settings.target_prob
        if settings.masking == "token":
            return choose_tokens(batch, prob)
        if settings.masking == "whole_word":
            return choose_words(batch, prob, self._continuation)
        if settings.masking == "span":
            return choose_spans(batch, prob, self._continuation, settings.span_length_prob, settings.max_span_words)
        annotation = batch.columns.get(settings.masking)
        if annotation is None:
            raise SettingsError(
                f"objective.masking={settings.masking} needs a store with annotations of this kind: give each document "
                f'of a .jsonl corpus `spans: [[start, end, "{settings.masking}"], ...]`, in characters of its text, '
                "and prepare the store anew; or take another masking"
            )
        return choose_annotated(batch, prob, self._continuation, annotation)

    def counts(self, batch: Batch) -> dict[str, int]:
        """Targets of `mlm` and, if they are in use, of `nsp` or `sop`, and of `sbo`."""
        counts = {"mlm": len(batch.columns["target_positions"])}
        if self._settings.sentence_objective != "none":
            counts[self._settings.sentence_objective] = batch.num_sequences
        if self._settings.span_boundary:
            counts["sbo"] = len(batch.columns["boundary_targets"])
        return counts

    def build(self, encoder: Encoder) -> MaskedLMModule:
        """The module that learns, with fresh heads on `encoder`.

        Raises:
            SettingsError: the encoder is causal, or its family has no masked-LM head or none for the sentences.
        """
        sizes, sentences = encoder.settings, self._settings.sentence_objective
        wrong = why_not_trained(self._settings, sizes.architecture, sizes.is_causal)
        if wrong is not None:
            raise SettingsError(wrong)
        return MaskedLMModule(
            encoder,
            None if sentences == "none" else sentences,
            self._settings.max_boundary_targets if self._settings.span_boundary else None,
        )

    def restore_heads(self, module: ObjectiveModule, directory: Path) -> None:
        """Loads the heads of a model directory, if it has them, into a fresh module.

        A sentence head that was trained for the other sentence objective is not loaded.

        Raises:
            ModelError: as in `load_model`, or the boundary head is damaged or of another model.
        """
        assert isinstance(module, MaskedLMModule), "a module of this objective"
        loaded = load_model(directory)
        if loaded.masked_lm_head is not None:
            module.masked_lm_head = loaded.masked_lm_head
        trained_for = (loaded.config or {}).get(SENTENCE_OBJECTIVE, "nsp")
        if loaded.next_sentence_head is not None and module.sentence_objective == trained_for:
            module.next_sentence_head = loaded.next_sentence_head
        if module.span_boundary_head is not None:
            restore_span_boundary(directory, module.span_boundary_head)

    def floors(self, token_counts: NDArray[np.int64]) -> dict[str, dict[str, float]]:
        """The floors, without context, of every loss over the vocabulary and of its accuracy, as if every token of the
        store were equally likely to be a target.

        The boundary head does not read its target, so without context it has only the frequencies, whatever is shown
        there: the tokens beside the span are context.
        """
        settings = self._settings
        shares = settings.mask_token_prob, settings.random_token_prob
        floors = NoContext.of(token_counts, *shares, self._mask_id, self._special_ids).floors("mlm")
        if settings.span_boundary:
            floors |= NoContext.of(token_counts, 1.0, 0.0, self._mask_id, self._special_ids).floors("sbo")
        return floors


def _first_of_span(batch: Batch, chosen: Tensor) -> Tensor:
    """(targets,) int64: the first token of each target's span."""
    first, last = find_spans(batch, chosen)
    return torch.repeat_interleave(first, last - first + 1)


class MaskedLMModule(nn.Module):
    """An encoder with the masked-LM head of its family, and the heads of the second objectives.

    Args:
        encoder: with a pooler where there is a sentence objective.
        sentence_objective: None: no head for it and no loss term.
        max_boundary_targets: of a span; None: no boundary head and no loss term.
    """

    def __init__(
        self,
        encoder: Encoder,
        sentence_objective: SentenceQuestion | None = None,
        max_boundary_targets: int | None = None,
    ) -> None:
        super().__init__()
        assert not encoder.reads_words, "it has no tokens that could be masked"
        settings = encoder.settings
        self.encoder = encoder
        self.masked_lm_head = new_masked_lm_head(settings)
        self.cross_entropy = SummedCrossEntropy()
        self.sentence_objective = sentence_objective
        self.next_sentence_head = None if sentence_objective is None else new_next_sentence_head(settings)
        self.span_boundary_head: SpanBoundaryHead | None = (
            None if max_boundary_targets is None else new_span_boundary_head(settings, max_boundary_targets)
        )

    @property
    def fillings(self) -> Fillings:
        """How the columns that `forward` reads are padded in a filled batch."""
        fillings = {"labels": Filling(TOKENS, NO_LABEL), "target_positions": Filling("targets", LAST_TOKEN)}
        if self.sentence_objective is not None:
            fillings[LABEL_COLUMNS[self.sentence_objective]] = Filling(SEQUENCES, NO_LABEL)
        if self.span_boundary_head is not None:
            fillings["boundary_positions"] = Filling("boundaries", LAST_TOKEN)
            fillings["boundary_targets"] = Filling("boundary targets", LAST_TOKEN)
            fillings |= dict.fromkeys(
                ("boundary_left", "boundary_right", "boundary_places"), Filling("boundary targets", 0)
            )
        return fillings

    def forward(self, batch: Batch) -> list[LossTerm]:
        """The term `mlm` and, if they are in use, `nsp` or `sop`, and `sbo`."""
        token_logits, labels, sentence_logits, boundary_logits = self._all_logits(batch)
        terms = [LossTerm("mlm", self.cross_entropy(token_logits, labels), len(labels))]
        if self.sentence_objective is not None and sentence_logits is not None:
            its_labels = batch.columns[LABEL_COLUMNS[self.sentence_objective]]
            terms.append(sentence_term(self.sentence_objective, sentence_logits, its_labels))
        if boundary_logits is not None:
            its_labels = batch.columns["labels"][batch.columns["boundary_targets"]]
            terms.append(LossTerm("sbo", self.cross_entropy(boundary_logits, its_labels), len(its_labels)))
        return terms

    def scores(self, batch: Batch) -> dict[str, tuple[Tensor, int]]:
        """The loss and the accuracy of every term: `mlm_loss`, `mlm_accuracy`, `nsp_loss` ..."""
        token_logits, labels, sentence_logits, boundary_logits = self._all_logits(batch)
        scores = _scores("mlm", token_logits, labels)
        if self.sentence_objective is not None and sentence_logits is not None:
            its_labels = batch.columns[LABEL_COLUMNS[self.sentence_objective]]
            scores |= sentence_scores(self.sentence_objective, sentence_logits, its_labels)
        if boundary_logits is not None:
            scores |= _scores("sbo", boundary_logits, batch.columns["labels"][batch.columns["boundary_targets"]])
        return scores

    def saved(self) -> dict[str, Saved]:
        """The encoder with its heads: what `transformers` opens, and the boundary head, which goes beside it."""
        parts: dict[str, Any] = {"masked_lm_head": self.masked_lm_head}
        if self.next_sentence_head is not None:
            parts["next_sentence_head"] = self.next_sentence_head
        if self.sentence_objective == "sop":
            parts["extra_config"] = {SENTENCE_OBJECTIVE: "sop"}
        if self.span_boundary_head is not None:
            parts["span_boundary_head"] = self.span_boundary_head
        return {"": Saved(self.encoder, parts)}

    def logits(self, batch: Batch) -> tuple[Tensor, Tensor, Tensor | None]:
        """Logits over the vocabulary at the targets, the targets' labels, and the sentence logits.

        Returns:
            (targets, vocabulary), (targets,) int64, and (sequences, 2) or None.
        """
        return self._all_logits(batch)[:3]

    def _all_logits(self, batch: Batch) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
        """What `logits` returns, and the boundary head's logits (boundary targets, vocabulary), or None."""
        columns, words = batch.columns, self.encoder.word_embeddings
        targets = columns["target_positions"]
        first = batch.first_tokens if self.next_sentence_head is not None else targets[:0]
        boundaries = columns["boundary_positions"] if self.span_boundary_head is not None else targets[:0]
        places = [first, targets, boundaries]
        hidden = self.encoder(batch, torch.cat(places))
        at_first, at_targets, at_boundaries = hidden.split([len(each) for each in places])
        token_logits = self.masked_lm_head(at_targets, words)
        sentence_logits = boundary_logits = None
        if self.next_sentence_head is not None:
            assert self.encoder.pooler is not None, "sentence objectives read the pooled first token"
            sentence_logits = self.next_sentence_head(self.encoder.pooler(at_first))
        if self.span_boundary_head is not None:
            left, right = at_boundaries[columns["boundary_left"]], at_boundaries[columns["boundary_right"]]
            boundary_logits = self.span_boundary_head(left, right, columns["boundary_places"], words)
        return token_logits, columns["labels"][targets], sentence_logits, boundary_logits


def _scores(name: str, logits: Tensor, labels: Tensor) -> dict[str, tuple[Tensor, int]]:
    """Sums and counts of the loss and the accuracy over the vocabulary."""
    return {
        f"{name}_loss": (summed_cross_entropy(logits, labels), len(labels)),
        f"{name}_accuracy": ((logits.argmax(-1) == labels).sum(), len(labels)),
    }
