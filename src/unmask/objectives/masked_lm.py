"""Masked language modelling, with next-sentence prediction where the settings ask for it (BERT, section 3.1).

The loss is the mean over the masked tokens plus, with next-sentence prediction, the mean over the pairs. The encoder's
last block, the head and the vocabulary logits are computed at target positions only, which changes no figure.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from unmask.batch import Batch, LossTerm
from unmask.errors import SettingsError
from unmask.models.bert import new_masked_lm_head, new_next_sentence_head
from unmask.models.encoder import Encoder
from unmask.objectives.cross_entropy import summed_cross_entropy
from unmask.objectives.masking import choose_tokens, choose_words, mask_targets
from unmask.objectives.next_sentence import next_sentence_scores, next_sentence_term
from unmask.objectives.settings import MaskedLMSettings
from unmask.tokenization.vocabulary import Vocabulary


class MaskedLM:
    """The objective: chooses and masks targets, counts them.

    Args:
        settings: rates, what is chosen, the sentence objective.
        vocabulary: facts about the tokenizer's entries.

    Raises:
        SettingsError: whole words are asked for, and the vocabulary does not tell them.
    """

    def __init__(self, settings: MaskedLMSettings, vocabulary: Vocabulary) -> None:
        if settings.masking == "whole_word" and not vocabulary.marks_words:
            raise SettingsError(
                "objective.masking=whole_word needs a tokenizer whose entries tell where a word begins: take "
                "masking=token, or a WordPiece or byte-level tokenizer"
            )
        self._settings = settings
        self._mask_id = vocabulary.mask_id
        self._continuation = torch.from_numpy(vocabulary.continuation)
        ordinary = torch.ones(vocabulary.size, dtype=torch.bool)
        ordinary[list(vocabulary.special_ids)] = False
        self._ordinary_ids = torch.nonzero(ordinary).squeeze(1)
        self.columns: tuple[str, ...] = ("special_tokens_mask",)
        if settings.sentence_objective == "nsp":
            self.columns += ("next_sentence_label",)

    def prepare(self, batch: Batch) -> Batch:
        """Masks a batch; see `unmask.objectives.masking.mask_targets` for the columns it gets."""
        settings = self._settings
        if settings.masking == "whole_word":
            chosen = choose_words(batch, settings.target_prob, self._continuation)
        else:
            chosen = choose_tokens(batch, settings.target_prob)
        return mask_targets(
            batch, chosen, settings.mask_token_prob, settings.random_token_prob, self._mask_id, self._ordinary_ids
        )

    def counts(self, batch: Batch) -> dict[str, int]:
        """Targets of `mlm`, and of `nsp` where it is asked for."""
        counts = {"mlm": len(batch.columns["target_positions"])}
        if self._settings.sentence_objective == "nsp":
            counts["nsp"] = batch.num_sequences
        return counts

    def build(self, encoder: Encoder) -> MaskedLMModule:
        """The module that learns, with fresh heads on `encoder`."""
        return MaskedLMModule(encoder, with_next_sentence=self._settings.sentence_objective == "nsp")


class MaskedLMModule(nn.Module):
    """An encoder with the masked-LM head, and the next-sentence head where it is asked for.

    Args:
        encoder: with a pooler where `with_next_sentence` is True.
        with_next_sentence: True adds the next-sentence head and its loss term.
    """

    def __init__(self, encoder: Encoder, with_next_sentence: bool) -> None:
        super().__init__()
        self.encoder = encoder
        self.masked_lm_head = new_masked_lm_head(encoder.settings)
        self.next_sentence_head = new_next_sentence_head(encoder.settings) if with_next_sentence else None

    def forward(self, batch: Batch) -> list[LossTerm]:
        """The terms `mlm` and, where it is asked for, `nsp`."""
        token_logits, labels, sentence_logits = self.logits(batch)
        terms = [LossTerm("mlm", summed_cross_entropy(token_logits, labels), len(labels))]
        if sentence_logits is not None:
            terms.append(next_sentence_term(sentence_logits, batch.columns["next_sentence_label"]))
        return terms

    def scores(self, batch: Batch) -> dict[str, tuple[Tensor, int]]:
        """`mlm_loss`, `mlm_accuracy`, and for next-sentence prediction `nsp_loss` and `nsp_accuracy`."""
        token_logits, labels, sentence_logits = self.logits(batch)
        scores = {
            "mlm_loss": (summed_cross_entropy(token_logits, labels), len(labels)),
            "mlm_accuracy": ((token_logits.argmax(-1) == labels).sum(), len(labels)),
        }
        if sentence_logits is not None:
            scores |= next_sentence_scores(sentence_logits, batch.columns["next_sentence_label"])
        return scores

    def logits(self, batch: Batch) -> tuple[Tensor, Tensor, Tensor | None]:
        """Logits over the vocabulary at the targets, the targets' labels, and the sentence logits.

        Returns:
            (targets, vocabulary), (targets,) int64, and (sequences, 2) or None.
        """
        targets = batch.columns["target_positions"]
        labels = batch.columns["labels"][targets]
        words = self.encoder.word_embeddings
        if self.next_sentence_head is None:
            return self.masked_lm_head(self.encoder(batch, targets), words), labels, None
        hidden = self.encoder(batch, torch.cat([batch.first_tokens, targets]))
        first, masked = hidden.split([batch.num_sequences, len(targets)])
        assert self.encoder.pooler is not None, "next-sentence prediction reads the pooled first token"
        return self.masked_lm_head(masked, words), labels, self.next_sentence_head(self.encoder.pooler(first))
