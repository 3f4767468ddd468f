"""Why a pre-training run went wrong: seven causes, each inferred from what the run, its model and its store show.

None of them is inferred from a setting alone, and each states the figures that it rests on.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from unmask.doctor.findings import Finding
from unmask.doctor.floors import Row, last_part, mean_of, series, targets_of
from unmask.doctor.run.evidence import Answers, Evidence, Reading, Record
from unmask.errors import UserError
from unmask.io.paths import model_directory
from unmask.recipe.tree import PretrainRecipe
from unmask.tokenization.opening import has_tokenizer
from unmask.tokenization.tokenizer import load_tokenizer

CLEAR_NATS = 0.5
"""A difference between mean losses over many steps that is not due to chance."""
GROWN = 6.0
"""Weights are too large at this many times their initial size: in sound runs of 150 to 5,000 steps they stay below 3,
at a hundred times the learning rate they reach 15 to 100."""
SHIFT_NATS, SHIFT_ERRORS = 0.1, 5.0
"""By how much the answers have to fit a neighbour better, in nats and in standard errors."""
FEWEST_TARGETS = 100
"""With fewer, means say too little about where the labels are."""
SAMPLED_GROUPS = 50
"""How many groups of repeated documents have their tokens compared."""


def main_loss(recipe: PretrainRecipe) -> str:
    """The loss over the vocabulary, as it stands in `metrics.jsonl`."""
    return f"loss/{recipe.objective.main_term}"


def find_causes(record: Record, evidence: Evidence | None) -> list[Finding]:
    """The causes that can be seen; the first is the likeliest.

    Args:
        evidence: None if the store or the model cannot be opened; only the figures are judged then.
    """
    found = [other_vocabulary(record, evidence)]
    found += [check(evidence) for check in CHECKS] if evidence is not None else []
    causes = [finding for finding in found if finding is not None]
    if not any(cause.name == "other-vocabulary" for cause in causes):  # that makes the loss rise too
        causes += [cause for cause in [learning_rate_too_high(record, evidence)] if cause is not None]
    return causes


def no_targets(evidence: Evidence) -> Finding | None:
    """Sequences in which the objective chooses nothing: targets are counted anew."""
    if evidence.num_targets:
        return None
    which = "held-out" if evidence.is_held_out else "training"
    told = f"not one of {sum(batch.num_sequences for batch in evidence.batches):,} {which} sequences has a target"
    advice = f"{evidence.record.recipe.objective.why_no_targets}; and train again"
    return Finding("no-targets", "fault", f"{told}: there is nothing to predict", advice)


def mask_rate_zero(evidence: Evidence) -> Finding | None:
    """Nothing to predict, or nothing hidden: targets are counted anew, and compared with what the run counted."""
    advice = "set objective.target_prob to .15 and objective.mask_token_prob to .8, as in BERT, and train again"
    num_targets, training = evidence.num_targets, evidence.record.training
    if evidence.record.recipe.objective.name != "masked_lm" or not num_targets:
        return None
    losses = series(training, "loss/mlm")
    if training and all(value == 0 for _, value in losses):
        shown = "the masked-LM loss is exactly 0" if losses else "there is no masked-LM loss"
        return Finding(
            "mask-rate-zero",
            "fault",
            f"{shown} in all {len(training)} rows: no position was ever a target, so no word has been learnt",
            f"whatever prepared the batches chose nothing: {advice}",
        )
    if np.array_equal(*targets_of(evidence.batches)):
        return Finding(
            "mask-rate-zero",
            "fault",
            f"all {num_targets:,} targets of the evaluated sequences stand in the input as they are: nothing is "
            "masked, and the model learns to copy",
            advice,
        )
    return None


def other_vocabulary(record: Record, evidence: Evidence | None) -> Finding | None:
    """The store's ids mean other entries than the model's, or than those of its own tokenizer."""
    told = _differing_store(record.store_directory)
    if told is None and evidence is not None:
        told = _differing_model(evidence) or _differing_ids(evidence) or _differing_sessions(evidence)
    if told is None:
        return None
    advice = "prepare the store again with the tokenizer of the model, or train from the beginning on this store"
    return Finding("other-vocabulary", "fault", told, advice)


def _differing_store(store: Path) -> str | None:
    """Whether a store was made with a tokenizer other than the one in it; it does not open then, so files are read."""
    try:
        made_with = json.loads((store / "manifest.json").read_bytes())["tokenizer_fingerprint"]
        fingerprint = load_tokenizer(store / "tokenizer").fingerprint()
    except (OSError, ValueError, KeyError, TypeError, UserError):
        return None  # other faults are reported when the store is opened
    if made_with == fingerprint:
        return None
    return (
        f"{store} was made with a tokenizer of fingerprint {made_with[:12]}, and holds another, {fingerprint[:12]}: "
        "its ids mean other entries than that tokenizer says"
    )


def _differing_model(evidence: Evidence) -> str | None:
    store, tokenizer, model = evidence.store, evidence.tokenizer, evidence.model_tokenizer
    if model is None or model.token_strings == tokenizer.token_strings:
        return None
    pairs = zip(model.token_strings, tokenizer.token_strings, strict=False)
    differing = sum(ours != theirs for ours, theirs in pairs) + abs(model.vocab_size - tokenizer.vocab_size)
    loss = "" if evidence.answers is None else f"; on this store the model's loss is {evidence.answers.loss:.2f}"
    return (
        f"{differing:,} of the {tokenizer.vocab_size:,} entries of {store.directory} are others than those of the "
        f"run's model (fingerprints {tokenizer.fingerprint()[:12]} and {model.fingerprint()[:12]}){loss}"
    )


def _differing_ids(evidence: Evidence) -> str | None:
    """No better than guessing evenly, although the answers have definite frequencies: those of other entries."""
    record = evidence.record
    if _knows_other_frequencies(evidence, evidence.start_answers) and not has_tokenizer(_start_directory(evidence)):
        return (
            f"{record.recipe.init_from} has no tokenizer beside it, and before the first step its answers had the "
            f"frequencies of entries other than those of {evidence.store.directory}: it learnt other ids"
        )
    logged = mean_of(last_part(series(record.training, main_loss(record.recipe))))
    has_learnt = logged is not None and logged < math.log(evidence.tokenizer.vocab_size) - CLEAR_NATS
    if has_learnt and _knows_other_frequencies(evidence, evidence.answers):
        return (
            f"the training loss was {logged:.2f} in the end, and on {evidence.store.directory} as it is now the model "
            "is no better than guessing evenly: its answers have the frequencies of other entries"
        )
    return None


def _knows_other_frequencies(evidence: Evidence, answers: Answers | None) -> bool:
    """Whether answers are far from uniform on average, and far from the frequencies of the store's entries too."""
    if answers is None:
        return False
    uniform = math.log(evidence.tokenizer.vocab_size)
    answered = answers.mean_probabilities.clamp_min(1e-12)
    frequencies = torch.from_numpy(evidence.token_counts / evidence.token_counts.sum())
    is_definite = float(-(answered * answered.log()).sum()) < uniform - CLEAR_NATS / 2
    return is_definite and min(answers.loss, float(-(frequencies * answered.log()).sum())) > uniform - 0.05


def _start_directory(evidence: Evidence) -> Path:
    assert evidence.record.recipe.init_from is not None
    return model_directory(evidence.record.recipe.init_from)


def _differing_sessions(evidence: Evidence) -> str | None:
    """As many documents as before but a different number of tokens, or a loss that jumps where a session begins."""
    record, where = evidence.record, evidence.store.directory
    for (documents, tokens), (documents_later, tokens_later) in pairwise(record.store_sizes):
        if documents == documents_later and tokens != tokens_later:
            return (
                f"{where} was replaced between two sessions: its {documents} documents were {tokens} tokens, and are "
                f"{tokens_later} now"
            )
    losses = series(record.training, main_loss(record.recipe))
    for step in record.resumed_steps:
        before = mean_of([item for item in losses if item[0] <= step][-3:])
        after = mean_of([item for item in losses if item[0] > step][:1])
        if before is not None and after is not None and after > before + CLEAR_NATS:
            return (
                f"when the run was resumed at step {step:,} its loss rose from {before:.2f} to {after:.2f}: before, "
                f"{where} was another store"
            )
    return None


def labels_shifted(evidence: Evidence) -> Finding | None:
    """Answers that fit a neighbour of the target better than the target, by more than chance."""
    answers = evidence.answers
    if answers is None or len(answers.losses[0, 0]) < FEWEST_TARGETS:
        return None
    best: tuple[float, Reading] | None = None
    for reading, losses in answers.losses.items():
        gains = answers.losses[0, 0] - losses
        gain, error = float(gains.mean()), float(gains.std()) / math.sqrt(len(gains))
        is_clear = gain > SHIFT_NATS and gain > SHIFT_ERRORS * error
        if reading != (0, 0) and is_clear and (best is None or gain > best[0]):
            best = gain, reading
    if best is not None:
        gain, (at, of) = best
        side = "right" if of - at > 0 else "left"
        told = (
            f"at masked positions the model's answers fit the token on the {side} by {gain:.2f} nats better than the "
            f"one that was masked ({float(answers.losses[at, of].mean()):.2f} against {answers.loss:.2f})"
        )
    elif (told_by_specials := _special_answers(evidence)) is not None:
        told = told_by_specials
    else:
        return None
    advice = "labels stand one place off: make sure that labels[i] is the token that stood at i before it was masked"
    return Finding("labels-shifted", "fault", told, advice)


def _special_answers(evidence: Evidence) -> str | None:
    """`[CLS]` and `[SEP]` are never targets, but stand beside them: a model that expects them was given neighbours.

    This tells before a model has learnt anything from context. Not all special tokens: `[UNK]` is text.
    """
    assert evidence.answers is not None
    answers, added = evidence.answers, [evidence.tokenizer.cls_id, evidence.tokenizer.sep_id]
    share = float(answers.mean_probabilities[added].sum())
    if share < 2 * len(added) / evidence.tokenizer.vocab_size or share < 0.4 * answers.special_share:
        return None
    return (
        f"at masked positions the model gives [CLS] and [SEP] a probability of {share:.2%}, though they are never "
        f"masked, and {answers.special_share:.2%} of the tokens beside masked ones are these: it learnt neighbours"
    )


def frozen_encoder(evidence: Evidence) -> Finding | None:
    """Weights of the encoder that have not moved at all while the heads have; without targets all that move decay."""
    if not (evidence.unchanged and evidence.num_targets) or not isinstance(evidence.module, nn.Module):
        return None
    num_weights = sum(1 for _ in evidence.module.encoder.parameters())
    names = ", ".join(evidence.unchanged[:3]) + (" ..." if len(evidence.unchanged) > 3 else "")
    return Finding(
        "frozen-encoder",
        "fault" if 2 * len(evidence.unchanged) >= num_weights else "warning",
        f"{len(evidence.unchanged)} of the encoder's {num_weights} weights are bit for bit what they were before "
        f"training, while the heads have moved: {names}",
        "let them be trained: requires_grad must be True, and the optimizer has to be given them",
    )


def repeated_corpus(evidence: Evidence) -> Finding | None:
    """Documents that the store holds several times: found by the hashes of their texts, confirmed by tokens."""
    store = evidence.store
    _, first, group, counts = np.unique(store.text_hashes(), return_index=True, return_inverse=True, return_counts=True)
    share = float((counts[counts > 1].sum() - np.count_nonzero(counts > 1)) / store.num_documents)
    if (
        share < 0.05
        or "mixture" in store.manifest
        or not _are_repeated(evidence, first[counts > 1], np.flatnonzero(counts > 1), group)
    ):
        return None
    times = store.num_documents / len(counts)
    epochs = None if evidence.record.checkpoint is None else float(evidence.record.checkpoint.state["epochs"])
    passes = "" if epochs is None else f"; {epochs:.2f} passes over it are {epochs * times:.2f} over the texts"
    return Finding(
        "repeated-corpus",
        "fault" if share >= 0.5 else "warning",
        f"{store.num_documents:,} documents are {len(counts):,} different texts, each {times:.1f} times in the mean, "
        f"up to {counts.max()}{passes} (equal texts are held out together, so the evaluation is sound)",
        "take the copies out, such as with `unmask prepare`'s exact deduplication, and count epochs by texts",
    )


def _are_repeated(
    evidence: Evidence, firsts: NDArray[np.int64], groups: NDArray[np.int64], group_of_document: NDArray[np.int64]
) -> bool:
    """Whether documents of equal hashes have equal tokens, for most of a few groups spread over the store."""
    chosen = np.unique(np.linspace(0, len(groups) - 1, SAMPLED_GROUPS).astype(int))
    equal = 0
    for number in chosen.tolist():
        last = int(np.flatnonzero(group_of_document == groups[number])[-1])
        tokens = evidence.store.document(int(firsts[number])).tokens
        equal += bool(np.array_equal(tokens, evidence.store.document(last).tokens))
    return 2 * equal > len(chosen)


def learning_rate_too_high(record: Record, evidence: Evidence | None) -> Finding | None:
    """A loss that is not finite or has risen for good; or weights that have grown far too large, with a bad loss.

    A bad loss was worse than guessing evenly at some time, or ends no better than knowing frequencies. By itself that
    says little: a row may be of two sequences, and a short run learns little.
    """
    sure = [_not_finite(record.training), _rise(record.training, main_loss(record.recipe))]
    signs = [sign for sign in sure if sign is not None]
    growth = None if evidence is None else _growth(evidence)
    shown = _worse_than_chance(record, evidence)
    if evidence is not None and evidence.answers is not None and evidence.has_floor_unpassed():
        shown.append(f"with {evidence.answers.loss:.2f} the model is no better than knowing frequencies alone")
    if growth is not None and growth > GROWN and (shown or signs):
        signs += [f"weights have grown to {growth:.0f} times their initial size", *shown]
    if not signs:
        return None
    limit = record.recipe.train.max_grad_norm
    norms = [row["gradient_norm"] for row in record.training if row["gradient_norm"] is not None]
    over = 0 if limit is None else sum(norm > limit for norm in norms)
    if over:
        signs.append(f"gradients were over the clipping norm in {over:,} of {len(record.training):,} rows")
    return _too_high(
        signs,
        record.training,
        "start again with a tenth of optimizer.learning_rate (1e-4 for BERT-Base, up to 2e-3 for the smallest), or a "
        "longer warm-up",
    )


def _too_high(signs: list[str], training: Sequence[Row], advice: str) -> Finding:
    peak = max(row["learning_rate"] for row in training)
    told = f"{'; '.join(signs)}; the learning rate reached {peak:.2g}"
    return Finding("learning-rate-too-high", "fault", told, advice)


def _not_finite(training: Sequence[Row]) -> str | None:
    figures = ("loss", "gradient_norm")  # rows of steps without targets have no loss
    steps = [row["step"] for row in training if any(name in row and row[name] is None for name in figures)]
    return f"the loss or its gradient is not finite at step {steps[0]:,}" if steps else None


def unstable(training: Sequence[Row]) -> Finding | None:
    """A fine-tuning loss that is not finite or has risen for good."""
    signs = [sign for sign in (_not_finite(training), _rise(training, "loss/task")) if sign is not None]
    advice = "start again with a lower optimizer.learning_rate (2e-5 to 5e-5 for BERT-Base)"
    return _too_high(signs, training, advice) if signs else None


def _rise(training: Sequence[Row], key: str) -> str | None:
    """What to say if a loss ends clearly higher than its mean over an earlier eighth of the run."""
    losses = series(training, key)
    values = [value for _, value in losses if value is not None]
    if len(values) < 4 or len(values) < len(losses):
        return None
    *before, end = [float(part.mean()) for part in np.array_split(values, min(8, len(values)))]
    if end < min(before) + _clear_difference(values):
        return None
    return f"the loss rose from {min(before):.2f} to {end:.2f} and stayed there"


def _worse_than_chance(record: Record, evidence: Evidence | None) -> list[str]:
    """What to say about losses that were at some step clearly worse than those of a model that has learnt nothing."""
    chances = {
        "nsp": (math.log(2), "the next-sentence loss", "a coin's"),
        "sop": (math.log(2), "the sentence-order loss", "a coin's"),
    }
    if evidence is not None and record.recipe.init_from is None:
        fresh = _fresh_loss(evidence)
        chances["mlm"] = (fresh, "the masked-LM loss", "guessing evenly")
        chances["lm"] = (fresh, "the loss of language modelling", "guessing evenly")
    signs = []
    for term, (chance, what, who) in chances.items():
        figures = [(value, step) for step, value in series(record.training, f"loss/{term}") if value is not None]
        worst, step = max(figures, default=(0.0, 0))
        if worst > chance + _clear_difference([value for value, _ in figures]):
            signs.append(f"{what} was {worst:.2f} at step {step:,}, worse than {who} {chance:.2f}")
    return signs


def _clear_difference(values: Sequence[float]) -> float:
    """How far a row has to be from others to mean something: rows of a few sequences jump by more than half a nat."""
    jumps = np.abs(np.diff(values))
    return max(CLEAR_NATS, 4 * float(np.median(jumps))) if len(jumps) else CLEAR_NATS


def _fresh_loss(evidence: Evidence) -> float:
    """The expected loss of a model that has learnt nothing: logits are sums of `hidden_size` products of normalised
    activations and initial weights, and half of their variance is added to ln V."""
    loss = math.log(evidence.tokenizer.vocab_size)
    if evidence.start is not None:
        settings = evidence.start.encoder.settings
        loss += settings.hidden_size * settings.initializer_range**2 / 2
    return loss


def _growth(evidence: Evidence) -> float | None:
    """The median over weight matrices of their root mean square relative to the initial one."""
    if not (isinstance(evidence.module, nn.Module) and isinstance(evidence.start, nn.Module)):
        return None
    ratios = [
        float(after.detach().cpu().pow(2).mean().sqrt() / before.detach().cpu().pow(2).mean().sqrt())
        for before, after in zip(evidence.start.parameters(), evidence.module.parameters(), strict=True)
        if before.dim() == 2
    ]
    return float(np.median(ratios))


CHECKS: tuple[Callable[[Evidence], Finding | None], ...] = (
    no_targets,
    mask_rate_zero,
    labels_shifted,
    frozen_encoder,
    repeated_corpus,
)
