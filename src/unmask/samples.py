"""Decoded examples of what a model predicts, for a run's report."""

from __future__ import annotations

from typing import Any

import torch

from unmask.batch import Batch
from unmask.objectives.masked_lm import MaskedLMModule
from unmask.tokenization.tokenizer import TextTokenizer


@torch.no_grad()
def masked_lm_samples(
    module: MaskedLMModule, batch: Batch, tokenizer: TextTokenizer, most: int = 8
) -> list[dict[str, Any]]:
    """The first sequences of a prepared batch, each token as the model sees it, targets with what the model says.

    Args:
        module: on the batch's device.
        batch: prepared by the objective.
        tokenizer: of the ids.
        most: sequences.

    Returns:
        What `samples.json` holds; see `unmask.report`.
    """
    module.eval()
    token_logits, labels, sentence_logits = module.logits(batch)
    probabilities, predictions = torch.softmax(token_logits.float(), -1).max(-1)
    targets = batch.columns["target_positions"].tolist()
    found = {
        place: {
            "token": tokenizer.token_strings[int(batch.input_ids[place])],
            "kind": "masked",
            "label": tokenizer.token_strings[int(label)],
            "prediction": tokenizer.token_strings[int(prediction)],
            "probability": float(probability),
            "correct": bool(label == prediction),
        }
        for place, label, prediction, probability in zip(targets, labels, predictions, probabilities, strict=True)
    }
    special = batch.columns["special_tokens_mask"].tolist()
    ids, bounds = batch.input_ids.tolist(), batch.bounds.tolist()
    samples: list[dict[str, Any]] = []
    for number in range(min(most, batch.num_sequences)):
        title = f"held-out sequence {number + 1}"
        if sentence_logits is not None:
            label = int(batch.columns["next_sentence_label"][number])
            chance = torch.softmax(sentence_logits[number].float(), -1)[0]
            title += f": {'IsNext' if label == 0 else 'NotNext'}, the model says IsNext with {float(chance):.0%}"
        text = [
            found.get(place)
            or {"token": tokenizer.token_strings[ids[place]], "kind": "special" if special[place] else "plain"}
            for place in range(bounds[number], bounds[number + 1])
        ]
        samples.append({"title": title, "text": text})
    return samples
