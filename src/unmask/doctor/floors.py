"""The floors that a run's losses and accuracies have to pass, and whether and when they did.

A floor is the score of a model that has learnt less than it should: nothing; the frequencies of the entries; these, and
to copy what is shown at a target; or the share of the labels. BERT's loss stays near the third for a long time before
context begins to help.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from unmask.batch import Batch
from unmask.doctor.findings import Finding, Level
from unmask.objectives.floors import NoContext
from unmask.objectives.settings import MaskedLMSettings, ObjectiveSettings, ReplacedTokenSettings
from unmask.packing.settings import LABEL_COLUMNS, SentenceObjective
from unmask.tokenization.vocabulary import Vocabulary

Row = Mapping[str, Any]

UNIGRAM_FLOOR = "mlm-unigram-floor"
NO_CONTEXT_FLOOR = "mlm-no-context-floor"


@dataclass(frozen=True)
class Floor:
    """One floor.

    Attributes:
        name: of the finding about it.
        what: what scores this, in words.
        value: nats for a loss, a share for an accuracy.
        margin: by how much it has to be passed, since less may be luck.
        training_key, held_out_key: the figure in the training and in the evaluation rows of `metrics.jsonl`; None if it
            is not to be looked for there.
        is_loss: True: figures have to fall below it; False: they have to exceed it.
        failed_level: the level of the finding if the run has not passed.
    """

    name: str
    what: str
    value: float
    margin: float
    training_key: str | None
    held_out_key: str | None
    is_loss: bool
    failed_level: Level

    def is_passed_by(self, value: float | None) -> bool:
        """Whether a figure is beyond the floor; one that is not finite (None) is not."""
        if value is None:
            return False
        return value < self.value - self.margin if self.is_loss else value > self.value + self.margin


FREQUENCIES = "knowing how frequent each entry is and nothing else"
SHOWN_ALONE = "knowing the frequencies and the token shown at each target, without any context"
GUESSED_ALONE = "saying the token shown where it is likely to be kept, else the most frequent entry"


def without_context(
    objective: ObjectiveSettings, token_counts: NDArray[np.integer[Any]], vocabulary: Vocabulary
) -> NoContext | None:
    """The best predictor of an objective's masked tokens that uses no context; None if nothing is masked."""
    if not isinstance(objective, MaskedLMSettings | ReplacedTokenSettings) or vocabulary.mask_id is None:
        return None
    random_token_prob = objective.random_token_prob if isinstance(objective, MaskedLMSettings) else 0.0
    shares = objective.mask_token_prob, random_token_prob
    return NoContext.of(token_counts, *shares, vocabulary.mask_id, vocabulary.special_ids)


def masked_lm_floors(
    batches: Sequence[Batch],
    token_counts: NDArray[np.integer[Any]],
    objective: MaskedLMSettings,
    vocabulary: Vocabulary,
) -> list[Floor]:
    """The floors of masked language modelling, for exactly the targets that a run is evaluated on.

    Args:
        batches: prepared ones.
        token_counts: (vocabulary,) how often each entry occurs in the store.

    Returns:
        Empty if the batches have no targets. The no-context loss is left out if targets are always shown as `[MASK]`.
    """
    labels, shown = targets_of(batches)
    counts = np.maximum(token_counts, 1)  # a target that the store lacks: the batches are another store's
    best = without_context(objective, counts, vocabulary)
    if not len(labels) or best is None:
        return []
    vocab_size = len(token_counts)
    losses = [
        ("mlm-uniform-floor", f"guessing evenly among the {vocab_size:,} entries (ln V)", math.log(vocab_size)),
        (
            UNIGRAM_FLOOR,
            f"{FREQUENCIES} (unigram entropy of the held-out targets)",
            float(-np.log(best.frequencies[labels]).mean()),
        ),
    ]
    if best.masked < 1:
        losses.append((NO_CONTEXT_FLOOR, SHOWN_ALONE, float(best.losses(labels, shown).mean())))
    hits = float((best.guesses(shown) == labels).mean())
    return [
        *(_loss_floor(name, what, value, "mlm") for name, what, value in losses),
        _accuracy_floor("mlm-no-context-accuracy-floor", GUESSED_ALONE, "mlm", hits, len(labels)),
    ]


def span_boundary_floors(batches: Sequence[Batch], token_counts: NDArray[np.integer[Any]]) -> list[Floor]:
    """The floor of the span boundary objective, for exactly the targets that a run is evaluated on.

    The tokens that it predicts from, beside the span, are context; without context there are only the frequencies of
    the entries.

    Args:
        batches: prepared ones.
        token_counts: (vocabulary,) how often each entry occurs in the store.

    Returns:
        Empty if the batches have no such targets.
    """
    labels = [
        batch.columns["labels"][batch.columns["boundary_targets"]].numpy()
        for batch in batches
        if "boundary_targets" in batch.columns
    ]
    if not sum(map(len, labels)):
        return []
    counts = np.maximum(token_counts, 1)
    value = float(-np.log(counts[np.concatenate(labels)] / counts.sum()).mean())
    return [_loss_floor("sbo-unigram-floor", f"{FREQUENCIES} (unigram entropy of the held-out targets)", value, "sbo")]


def targets_of(batches: Sequence[Batch]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The original tokens at the targets, and what is shown in their place; both (targets,)."""
    at = [batch.columns["target_positions"] for batch in batches]
    labels = [batch.columns["labels"][places].numpy() for batch, places in zip(batches, at, strict=True)]
    shown = [batch.input_ids[places].numpy() for batch, places in zip(batches, at, strict=True)]
    return np.concatenate(labels), np.concatenate(shown)


def _loss_floor(name: str, what: str, value: float, term: str) -> Floor:
    """A floor of a loss over the vocabulary."""
    return Floor(name, what, value, 0.02, f"loss/{term}", f"eval/{term}_loss", is_loss=True, failed_level="warning")


CHANCE = {"nsp": "next-sentence chance", "sop": "sentence-order chance"}


def sentence_floors(batches: Sequence[Batch], name: SentenceObjective) -> list[Floor]:
    """The floors of an objective on the two segments, by the labels of prepared batches; none for "none"."""
    if name == "none":
        return []
    labels = torch.cat([batch.columns[LABEL_COLUMNS[name]] for batch in batches]).double()
    share = float(labels.mean())
    entropy = share_entropy(share)
    return [
        Floor(
            name=f"{name}-chance-floor",
            what=f"always giving the share of the labels, {share:.2f} ({CHANCE[name]})",
            value=entropy,
            margin=0.01,
            training_key=f"loss/{name}",
            held_out_key=f"eval/{name}_loss",
            is_loss=True,
            failed_level="note",
        ),
        _accuracy_floor(
            f"{name}-majority-floor", "always saying the more frequent label", name, max(share, 1 - share), len(labels)
        ),
    ]


def recorded_floors(floors: Mapping[str, Mapping[str, float]]) -> list[Floor]:
    """The floors that an objective gives for its losses, as `results.json` has them: `{"loss/lm": {name: nats}}`.

    Floors of accuracies, and with other names, are left out.
    """
    told = {
        "unigram entropy": ("unigram", f"{FREQUENCIES} (unigram entropy)"),
        "no context": ("no-context", SHOWN_ALONE),
    }
    terms = {key.removeprefix("loss/"): named for key, named in floors.items() if key.startswith("loss/")}
    return [
        _loss_floor(f"{term}-{short}-floor", what, named[name], term)
        for term, named in terms.items()
        for name, (short, what) in told.items()
        if name in named
    ]


def discriminator_floors(evaluations: Sequence[Row]) -> list[Floor]:
    """The floors of ELECTRA's discriminator, from the share of tokens that its generator replaced at the last
    evaluation; empty if that is not known."""
    share = next((value for _, value in reversed(series(evaluations, "eval/replaced_share"))), None)
    if share is None:
        return []
    loss = Floor(
        name="discriminator-share-floor",
        what=f"knowing that {share:.1%} of the tokens are replaced and nothing else",
        value=share_entropy(share),
        margin=0.01,
        training_key=None,
        held_out_key="eval/discriminator_loss",
        is_loss=True,
        failed_level="note",
    )
    what = "always saying that a token is the original one"
    key = "eval/discriminator_accuracy"
    return [loss, Floor("discriminator-majority-floor", what, 1 - share, 0.001, None, key, False, "note")]


def share_entropy(share: float) -> float:
    """The loss, in nats, of knowing how often one of two labels occurs and nothing else."""
    return -sum(part * math.log(part) for part in (share, 1 - share) if part > 0)


def _accuracy_floor(name: str, what: str, term: str, share: float, num_labels: int) -> Floor:
    """A floor of an accuracy; the margin is two standard errors of a share."""
    margin = 2 * math.sqrt(share * (1 - share) / num_labels)
    return Floor(name, what, share, margin, None, f"eval/{term}_accuracy", is_loss=False, failed_level="note")


def check_floor(floor: Floor, rows: Sequence[Row], causes: Sequence[str]) -> Finding | None:
    """Whether a run passed a floor, and by which step.

    Held-out rows decide if there are any; the step is taken from whichever rows are closer together.

    Args:
        rows: of `metrics.jsonl`.
        causes: names of the faults that were found, for the advice to mention.

    Returns:
        None if no row has the figure.
    """
    held_out = series(rows, floor.held_out_key)
    training = series(rows, floor.training_key)
    deciding = held_out or last_part(training)
    if not deciding:
        return None
    value = deciding[-1][1] if held_out else mean_of(deciding)
    shown = "not finite" if value is None else _figure(value, floor.is_loss)
    told = f"the last {floor.held_out_key if held_out else floor.training_key} {shown}"
    compared = f"{_figure(floor.value, floor.is_loss)}, that of {floor.what}"
    if floor.is_passed_by(value):
        step = passed_step(training if len(training) > len(held_out) else held_out, floor)
        when = "" if step is None else f"; passed by step {step:,}"
        side = "below" if floor.is_loss else "above"
        return Finding(floor.name, "good", f"{told} is {side} {compared}{when}")
    once = next((step for step, value in held_out if floor.is_passed_by(value)), None)
    before = "" if once is None else f"; it was passed at step {once:,} and lost again"
    side = "not below" if floor.is_loss else "not above"
    return Finding(floor.name, floor.failed_level, f"{told} is {side} {compared}{before}", _advice(floor, causes))


def _figure(value: float, is_loss: bool) -> str:
    return f"{value:.3f}" if is_loss else f"{value:.1%}"


def _advice(floor: Floor, causes: Sequence[str]) -> str:
    if causes:
        return f"the likely cause is told under {', '.join(causes)}"
    return ADVICE.get(floor.name, "no cause was found: train on more tokens")


ADVICE = {
    NO_CONTEXT_FLOOR: "context is learnt after frequencies and copying are: train on more tokens",
    "mlm-no-context-accuracy-floor": "as for the loss of masked language modelling",
    "nsp-chance-floor": "next-sentence prediction is learnt after words are: train on more tokens before worrying",
    "nsp-majority-floor": "as for the loss of next-sentence prediction",
    "sop-chance-floor": "sentence-order prediction is learnt after words are: train on more tokens before worrying",
    "sop-majority-floor": "as for the loss of sentence-order prediction",
    "generator-unigram-floor": "no cause was found: train on more tokens, or start from a masked language model "
    "that has passed its floors (pretrain/continued_electra_short): small ELECTRAs from random weights may not learn",
    "discriminator-share-floor": "the discriminator learns from what a generator gets wrong: as for the generator",
    "discriminator-majority-floor": "as for the loss of the discriminator",
    "task-uniform-floor": "train longer, or with another optimizer.learning_rate or seed",
    "task-majority-floor": "train longer, on more examples, or start from a model with more pre-training",
}
"""What to do about a floor that was not passed without a known cause."""


def passed_step(values: Sequence[tuple[int, float | None]], floor: Floor) -> int | None:
    """The first step from which on every value is beyond the floor; None if the last one is not."""
    step = None
    for at, value in reversed(values):
        if not floor.is_passed_by(value):
            break
        step = at
    return step


def series(rows: Sequence[Row], key: str | None) -> list[tuple[int, float | None]]:
    """The steps and values of one figure, in order, from the rows that have it; a value of None was not finite."""
    return [(row["step"], row[key]) for row in rows if key is not None and key in row]


def mean_of(values: Sequence[tuple[int, float | None]]) -> float | None:
    """The mean of a part of a series; None if a value is not finite, or there is none."""
    numbers = [value for _, value in values if value is not None]
    return sum(numbers) / len(numbers) if numbers and len(numbers) == len(values) else None


def last_part(values: Sequence[tuple[int, float | None]]) -> Sequence[tuple[int, float | None]]:
    """The last quarter of a series, at least one value."""
    return values[-max(1, len(values) // 4) :]
