"""Measuring a model by minimal pairs: how often it finds the grammatical sentence likelier."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args

from unmask.errors import CheckpointError, InputError, ModelError, SettingsError
from unmask.inference.opening import Opened, open_model
from unmask.io.input_files import DataPath
from unmask.io.paths import CHECKPOINTS, GENERATOR, is_onnx, model_directory
from unmask.io.progress import Progress
from unmask.io.writing import temporary_directory
from unmask.pretraining.checkpoint_model import save_checkpoint_model
from unmask.tasks.minimal_pairs.comparing import PairScores, encode_pairs, score_pairs, warn_of_alike
from unmask.tasks.minimal_pairs.reading import Paradigm, read_paradigms
from unmask.tasks.minimal_pairs.scorers import PllMode, Sentence, SentenceScorer, new_scorer
from unmask.training.run.checkpoint import list_steps

logger = logging.getLogger("unmask")


def evaluate_pairs(
    model: str | Path,
    pairs: str | DataPath,
    *,
    pll: PllMode = "original",
    discriminator: bool = False,
    device: str = "auto",
    precision: str = "fp32",
) -> dict[str, Any]:
    """Which of two sentences a model finds likelier; `unmask.tasks.minimal_pairs.scorers` says how each kind is asked.

    Args:
        model: the directory of a masked, left-to-right or ELMo language model or of an ELECTRA, whose generator answers
            for it; or that of the run that made it.
        pairs: a file of minimal pairs, or a folder of such files; see `unmask.tasks.minimal_pairs.reading`.
        pll: of a masked language model: `original` masks one token at a time, `word-left-to-right` also the rest of its
            word to the right.
        discriminator: True: ELECTRA's discriminator answers.
        device: `auto`, `cpu` or `cuda`.
        precision: `fp32` or `bf16`.

    Returns:
        `{"task": "pairs", "n": pairs, "alike": how many are two equal sentences to it, "metrics": {"accuracy", "low",
        "high"}, "terms": {name: {"accuracy", "low", "high"}}, "paradigms": {name: {"term", "accuracy", "low",
        "high"}}}`, in percent; `low` and `high` are the ends of 95 % intervals.

    Raises:
        ModelError: the model cannot say how likely a text is.
        InputError: the pairs cannot be read, or a sentence is too long or too short.
        SettingsError: `pll`, `discriminator`, `device` or `precision` does not exist, or not for this model.
    """
    paradigms = read_paradigms(pairs)
    scorer = open_scorer(model, pll=pll, discriminator=discriminator, device=device, precision=precision)
    return score_paradigms(scorer, paradigms).figures()


def score_paradigms(scorer: SentenceScorer, paradigms: Sequence[Paradigm]) -> PairScores:
    """What `evaluate_pairs` measures, pair by pair, with progress and its warnings."""
    pairs = [pair for each in paradigms for pair in each.pairs]
    with Progress("encoding pairs", len(pairs), unit="pairs") as progress:
        encoded = encode_pairs(scorer, pairs, progress.advance)
    with Progress("pairs", len(pairs), unit="pairs") as progress:
        scored = score_pairs(scorer, paradigms, encoded, progress.advance)
        warn_of_alike(encoded, paradigms, scorer)
    return scored


def evaluate_checkpoints(
    run: str | Path, pairs: str | DataPath, *, pll: PllMode, discriminator: bool, device: str, precision: str
) -> list[dict[str, Any]]:
    """`evaluate_pairs` of the model that each checkpoint of a pre-training run holds, in their order, with its `step`.

    A checkpoint that cannot be read, or that a run under way has removed meanwhile, is left out with a warning.

    Raises:
        InputError, ModelError: as `evaluate_pairs`, and if the run has no checkpoints.
        CheckpointError: none can be read.
    """
    paradigms = read_paradigms(pairs)
    steps = list_steps(Path(run) / CHECKPOINTS)
    if not steps:
        raise InputError(
            f"{run}: no checkpoints: expected a pre-training run; train.keep_last and train.keep_every say which it "
            "keeps"
        )
    results: list[dict[str, Any]] = []
    every = [pair for each in paradigms for pair in each.pairs]
    encoded: list[tuple[Sentence, Sentence]] | None = None
    with Progress("pairs", len(steps) * len(every), unit="pairs") as progress:
        for step in steps:
            with temporary_directory("unmask-checkpoint") as place:
                try:
                    model = save_checkpoint_model(run, place / "model", step)
                except (CheckpointError, InputError) as error:
                    if step == steps[-1] and not results:
                        raise
                    logger.warning("the checkpoint of step %s is left out: %s", f"{step:,}", error)
                    progress.advance(len(every))
                    continue
                scorer = open_scorer(model, pll=pll, discriminator=discriminator, device=device, precision=precision)
                if encoded is None:  # all have the same vocabulary
                    with progress.aside("encoding pairs", len(every), "pairs") as aside:
                        encoded = encode_pairs(scorer, every, aside.advance)
                scored = score_pairs(scorer, paradigms, encoded, progress.advance)
                results.append({"step": step, **scored.figures()})
            if len(results) == 1:
                warn_of_alike(encoded, paradigms, scorer)
    return results


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
        SettingsError: an option does not exist, or does not apply to it.
    """
    if pll not in get_args(PllMode):
        raise SettingsError(f"pll={pll}: expected {' or '.join(get_args(PllMode))}")
    directory = model_directory(model)
    if is_onnx(directory):
        raise ModelError(
            f"{directory} holds an ONNX file, which scores no sentences: give the directory that it was exported from"
        )
    opened = open_model(directory, device=device, precision=precision)
    if opened.loaded.discriminator_head is not None and not discriminator:
        if not (directory / GENERATOR).is_dir():
            raise ModelError(
                f"{directory} is a discriminator without its generator, which says how likely a token is: give "
                "discriminator=True (--discriminator) to let it answer itself"
            )
        opened = open_model(directory / GENERATOR, device=device, precision=precision)
    loaded, directory = opened.loaded, opened.directory
    if discriminator and loaded.discriminator_head is None:
        raise SettingsError(f"discriminator is for ELECTRA: {directory} is a {loaded.architecture}: leave it out")
    if pll != "original" and (loaded.masked_lm_head is None or loaded.is_causal_lm):
        raise SettingsError(f"pll={pll} is for masked language models: {directory} is a {loaded.architecture}")
    return scorer_of(opened, pll)


def scorer_of(opened: Opened, pll: PllMode = "original") -> SentenceScorer:
    """The same of a model that is open, by its own head; raises ModelError if it has none that says it."""
    loaded = opened.loaded
    scorer = new_scorer(
        loaded.encoder, loaded.heads, loaded.is_causal_lm, opened.tokenizer, opened.compute, opened.max_length, pll
    )
    if scorer is None:
        raise ModelError(
            f"{opened.directory} is a {loaded.architecture}, which cannot say how likely a sentence is: expected a "
            "masked, left-to-right or ELMo language model, as `unmask pretrain` makes them, or an ELECTRA"
        )
    return scorer
