"""A left-to-right language model with its tokenizer, loaded: what comes next, and how likely a text is."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional

from unmask.batch import pack
from unmask.inference.opening import Opened, open_model, refuse_options
from unmask.models.hub.uses import CAUSAL
from unmask.objectives.causal_lm import next_token_decoder
from unmask.tasks.minimal_pairs.scorers import LeftToRightScorer


class LanguageModel(LeftToRightScorer):
    """A left-to-right language model with its tokenizer, in eval mode on its device, that also says what comes next."""

    @torch.no_grad()
    def next_logits(self, ids: Sequence[int]) -> Tensor:
        """(vocab,) float32 on the CPU: logits of the token after `ids` (at least one), of which the last that fit are
        read. Outputs beyond the tokenizer's entries are left out."""
        window = list(ids[-self.window :])
        batch = pack([window]).to(self.compute.device)
        with self.compute.autocast():
            hidden = self.encoder(batch, torch.tensor([len(window) - 1], device=self.compute.device))
            states, weight, bias = next_token_decoder(self.encoder, self.masked_lm_head, hidden)
            logits = functional.linear(states, weight, bias)
        return logits[0, : self.tokenizer.vocab_size].float().cpu()


def load_language_model(
    model: str | Path | Opened | LanguageModel, *, device: str | None = None, precision: str | None = None
) -> LanguageModel:
    """Loads a left-to-right language model.

    Args:
        model: a model's directory, or that of the run that made it; a loaded one is returned as it is.
        device: `auto` (None), `cpu` or `cuda`; a loaded model has its own.
        precision: `fp32` (None) or `bf16`; likewise.

    Raises:
        ModelError: there is no such model, it does not predict the next token, or it does not load.
        SettingsError: no such device or precision, or one for a loaded model.
    """
    if isinstance(model, LanguageModel):
        refuse_options(model, device=device, precision=precision)
        return model
    opened = model if isinstance(model, Opened) else open_model(model, CAUSAL, device=device, precision=precision)
    loaded, tokenizer = opened.loaded, opened.tokenizer
    assert not loaded.encoder.reads_words, "ELMo is of another kind"
    assert not tokenizer.reads_words
    return LanguageModel(loaded.encoder, loaded.masked_lm_head, tokenizer, opened.compute, opened.max_length)
