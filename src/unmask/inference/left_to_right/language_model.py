"""A left-to-right language model with its tokenizer, loaded: what comes next, and how likely a text is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional

from unmask.batch import pack
from unmask.inference.precision import inference_compute
from unmask.io.paths import model_directory
from unmask.models.encoder import Encoder
from unmask.models.heads.heads import MaskedLMHead
from unmask.models.hub.config import usual_length
from unmask.models.hub.directory import load_model
from unmask.models.hub.uses import CAUSAL, check_entries
from unmask.objectives.causal_lm import next_token_decoder, next_token_log_probabilities
from unmask.tasks.encoded import BATCH_TOKENS, encoded
from unmask.tokenization.tokenizer import TextTokenizer, load_tokenizer
from unmask.training.device import Compute


@dataclass(frozen=True)
class LanguageModel:
    """A left-to-right language model with its tokenizer, in eval mode on its device.

    Attributes:
        masked_lm_head: for BERT's family; None where the word embeddings decode alone.
        prefix: ids before every text, as in pre-training: `[CLS]` for BERT's family; none for GPT-1 and LSTMs, which
            read bare text.
        window: most tokens read at once: as many as the model was pre-trained on, or has positions for.
    """

    encoder: Encoder
    masked_lm_head: MaskedLMHead | None
    tokenizer: TextTokenizer
    compute: Compute
    prefix: tuple[int, ...]
    window: int

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

    def log_probabilities(self, sequences: Sequence[Sequence[int]]) -> list[Tensor]:
        """Log-probabilities of each sequence's tokens but the first, given those before: (tokens - 1,) float32, CPU.

        Args:
            sequences: ids, at least one each; no longer than `window`.
        """
        results: list[Tensor] = [torch.zeros(0)] * len(sequences)
        rows = encoded(sequences, [len(ids) for ids in sequences])
        for chosen, packed in rows.batches_by_length(BATCH_TOKENS[self.compute.device.type]):
            batch = packed.to(self.compute.device)
            with self.compute.autocast():
                found = next_token_log_probabilities(self.encoder, self.masked_lm_head, batch)
            for number, of_sequence in zip(chosen.tolist(), found, strict=True):
                results[number] = of_sequence
        return results


def load_language_model(model: str | Path, *, device: str = "auto", precision: str = "fp32") -> LanguageModel:
    """Loads a left-to-right language model.

    Args:
        model: a model's directory, or that of the run that made it.
        device: `auto`, `cpu` or `cuda`.
        precision: `fp32` or `bf16`.

    Raises:
        ModelError: there is no such model, it does not predict the next token, or it does not load.
        SettingsError: no such device.
    """
    compute = inference_compute(device, precision)
    directory = model_directory(model)
    loaded = load_model(directory, CAUSAL)
    tokenizer = load_tokenizer(directory)
    check_entries(tokenizer.vocab_size, tokenizer.pad_id, loaded.encoder.settings, directory)
    reads_bare_text = loaded.encoder.settings.family.reads_bare_text
    prefix = () if reads_bare_text else tokenizer.template.single[0].ids
    head = None if loaded.masked_lm_head is None else loaded.masked_lm_head.to(compute.device).eval()
    window = usual_length(loaded.encoder.settings, loaded.config or {})
    return LanguageModel(loaded.encoder.to(compute.device).eval(), head, tokenizer, compute, prefix, window)
