"""Measuring a model by minimal pairs: how often it finds the grammatical sentence likelier."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import nn

from unmask.errors import ModelError, SettingsError
from unmask.inference.left_to_right.language_model import load_language_model
from unmask.inference.pairs.scorers import (
    DiscriminatorScorer,
    ElmoScorer,
    LeftToRightScorer,
    MaskedScorer,
    PllMode,
    SentenceScorer,
)
from unmask.inference.precision import freeze, inference_compute
from unmask.io.paths import model_directory
from unmask.io.progress import Progress
from unmask.models.heads.heads import DiscriminatorHead
from unmask.models.hub.directory import load_model
from unmask.objectives.settings import GENERATOR
from unmask.tasks.pairs.reading import Paradigm, read_paradigms
from unmask.tokenization.opening import open_tokenizer

_PAIRS_AT_ONCE = 500
"""Pairs whose sentences are sorted by length together."""

_RESAMPLES = 2000
_PERCENTILES = (2.5, 97.5)
"""Of the bootstrap, for 95 % intervals."""


@dataclass(frozen=True)
class Accuracy:
    """The percentage of pairs whose grammatical sentence is likelier, with a 95 % bootstrap interval."""

    percent: float
    low: float
    high: float


@dataclass(frozen=True)
class PairResults:
    """What minimal pairs say of a model.

    Attributes:
        mean: over paradigms, each counting the same; its interval is that of resampled pairs within paradigms.
        terms: the mean over the paradigms of each phenomenon, where they name one.
        paradigms: by name, in the order of the files.
        num_pairs: how many were compared.
    """

    mean: Accuracy
    terms: dict[str, Accuracy]
    paradigms: dict[str, Accuracy]
    num_pairs: int


def evaluate_pairs(
    model: str | Path,
    pairs: str | Path,
    *,
    pll: PllMode = "original",
    discriminator: bool = False,
    device: str = "auto",
    precision: str = "fp32",
) -> dict[str, Any]:
    """Which of two sentences a model finds likelier; see `unmask.inference.pairs.scorers` for how each kind is asked.

    Args:
        model: the directory of a masked, left-to-right or ELMo language model or of an ELECTRA, whose generator answers
            for it; or that of the run that made it.
        pairs: a file of minimal pairs, or a folder of such files; see `unmask.tasks.pairs.reading`.
        pll: of a masked language model: `original` masks one token at a time, `word-left-to-right` also the rest of its
            word to the right.
        discriminator: True: ELECTRA's discriminator answers.
        device: `auto`, `cpu` or `cuda`.
        precision: `fp32` or `bf16`.

    Returns:
        `{"task": "pairs", "n": pairs, "metrics": {"accuracy", "low", "high"}, "terms": {name: percent}, "paradigms":
        {name: {"accuracy", "low", "high"}}}`, in percent.

    Raises:
        ModelError: the model cannot say how likely a text is.
        InputError: the pairs cannot be read, or a sentence is too long.
    """
    paradigms = read_paradigms(pairs)
    scorer = open_scorer(model, pll=pll, discriminator=discriminator, device=device, precision=precision)
    with Progress("pairs", sum(len(each.pairs) for each in paradigms), unit="pairs") as progress:
        results = compare_pairs(scorer, paradigms, progress.advance)
    return as_figures(results)


def as_figures(results: PairResults) -> dict[str, Any]:
    """What `evaluate_pairs` returns."""

    def figures(accuracy: Accuracy) -> dict[str, float]:
        return {"accuracy": accuracy.percent, "low": accuracy.low, "high": accuracy.high}

    return {
        "task": "pairs",
        "n": results.num_pairs,
        "metrics": figures(results.mean),
        "terms": {name: accuracy.percent for name, accuracy in results.terms.items()},
        "paradigms": {name: figures(accuracy) for name, accuracy in results.paradigms.items()},
    }


def open_scorer(
    model: str | Path,
    *,
    pll: PllMode = "original",
    discriminator: bool = False,
    device: str = "auto",
    precision: str = "fp32",
) -> SentenceScorer:
    """Loads a model that says how likely a sentence is.

    Raises:
        ModelError: there is none, or it cannot.
        SettingsError: an option does not apply to it.
    """
    directory = model_directory(model)
    loaded = load_model(directory)
    if loaded.discriminator_head is not None and not discriminator:
        if not (directory / GENERATOR).is_dir():
            raise ModelError(
                f"{directory} is a discriminator without its generator, which says how likely a token is: give "
                "--discriminator to let it answer itself"
            )
        directory = directory / GENERATOR
        loaded = load_model(directory)
    if discriminator and loaded.discriminator_head is None:
        raise SettingsError(f"--discriminator is for ELECTRA: {directory} is a {loaded.architecture}: leave it out")
    if pll != "original" and (loaded.masked_lm_head is None or loaded.is_causal_lm):
        raise SettingsError(f"--pll {pll} is for masked language models: {directory} is a {loaded.architecture}")
    if loaded.is_causal_lm:
        return LeftToRightScorer(load_language_model(directory, device=device, precision=precision))
    compute = inference_compute(device, precision)
    encoder, tokenizer = loaded.encoder.to(compute.device).eval(), open_tokenizer(directory)
    if encoder.reads_words or tokenizer.reads_words:
        if loaded.softmax is None or not encoder.reads_words or not tokenizer.reads_words:
            raise _cannot(directory, loaded.architecture)
        encoder.set_words(tokenizer.table)
        return ElmoScorer(encoder, loaded.softmax.to(compute.device), tokenizer, compute)
    head = loaded.discriminator_head if discriminator else loaded.masked_lm_head
    if head is None:
        raise _cannot(directory, loaded.architecture)
    _, compute = freeze(nn.ModuleList([encoder, head]).to(compute.device).eval(), compute)
    if isinstance(head, DiscriminatorHead):
        return DiscriminatorScorer(encoder, head, tokenizer, compute)
    return MaskedScorer(encoder, head, tokenizer, compute, pll)


def _cannot(directory: Path, architecture: str) -> ModelError:
    return ModelError(
        f"{directory} is a {architecture}, which cannot say how likely a sentence is: expected a masked, left-to-right "
        "or ELMo language model, as `unmask pretrain` makes them, or an ELECTRA"
    )


def compare_pairs(
    scorer: SentenceScorer, paradigms: Sequence[Paradigm], advance: Callable[[int], None] = lambda _: None
) -> PairResults:
    """Which sentences of the pairs a model finds likelier. Two that are equally likely count as wrong.

    Args:
        advance: given the number of pairs whenever some are done.
    """
    pairs = [pair for paradigm in paradigms for pair in paradigm.pairs]
    right = np.zeros(len(pairs), dtype=bool)
    chance = np.random.default_rng(0)
    order = chance.permutation(len(pairs))  # long and short ones mixed, so that the time left is a fair estimate
    for start in range(0, len(pairs), _PAIRS_AT_ONCE):
        numbers = order[start : start + _PAIRS_AT_ONCE]
        scores = scorer.score([text for number in numbers for text in (pairs[number].good, pairs[number].bad)])
        right[numbers] = scores[0::2] > scores[1::2]
        advance(len(numbers))
    resampled: dict[str, tuple[float, NDArray[np.float64]]] = {}
    first = 0
    for paradigm in paradigms:
        size = len(paradigm.pairs)
        share = float(right[first : first + size].mean())
        # Pairs drawn with replacement, so many as there are: how many of them are right is binomial.
        resampled[paradigm.name] = share, chance.binomial(size, share, _RESAMPLES) / size
        first += size
    by_term: dict[str, list[str]] = {}
    for paradigm in paradigms:
        if paradigm.term:
            by_term.setdefault(paradigm.term, []).append(paradigm.name)
    return PairResults(
        _mean(resampled.values()),
        {term: _mean(resampled[name] for name in names) for term, names in by_term.items()},
        {name: _mean([each]) for name, each in resampled.items()},
        len(pairs),
    )


def _mean(parts: Iterable[tuple[float, NDArray[np.float64]]]) -> Accuracy:
    """Of paradigms, each with its share of right pairs and the resampled ones."""
    shares, resamples = zip(*parts, strict=True)
    low, high = np.percentile(np.mean(resamples, 0), _PERCENTILES)
    return Accuracy(100 * float(np.mean(shares)), 100 * float(low), 100 * float(high))
