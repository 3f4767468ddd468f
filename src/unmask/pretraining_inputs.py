"""What a pre-training run reads, opened and found to fit together: text, tokenizer, objective, weights, batches."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path

import torch

from unmask.batch import Batch
from unmask.data.annotation_columns import annotation_column, check_annotations
from unmask.data.annotations import KINDS
from unmask.data.corpus import read_documents
from unmask.data.corpus_files import find_files
from unmask.data.documents import CorpusCounts
from unmask.data.encoding import text_hash
from unmask.data.formats import check_documents, check_separator, documents_needed, open_loader
from unmask.data.frame import SequenceFrame, bare_frame
from unmask.data.loader import LoadedStep, Position, SequenceLoader
from unmask.data.mixture import SUFFIXES as MIXTURE_SUFFIXES
from unmask.data.packing import Split
from unmask.data.phases import phased_steps
from unmask.data.settings import PhaseSettings, SentenceObjective
from unmask.data.store import TokenStore
from unmask.data.stream import StreamLoader
from unmask.errors import SettingsError
from unmask.objectives.base import Objective, ObjectiveModule
from unmask.objectives.table import OBJECTIVES
from unmask.pairings import BARE
from unmask.preparation import prepare
from unmask.pretraining_start import build_module, check_model, trained_architecture
from unmask.recipe import PretrainRecipe
from unmask.tokenization.opening import Tokenizer, open_tokenizer
from unmask.tokenization.settings import TokenizerSettings
from unmask.tokenization.tokenizer import TextTokenizer
from unmask.tokenization.word_characters import WordTokenizer
from unmask.tokenizer_training import train_tokenizer
from unmask.training.checkpoint import Checkpoint, find_checkpoint
from unmask.training.optimizer import share_done

logger = logging.getLogger("unmask")

STATIC_COPIES = 10
"""Masked copies of the text under `masking_mode: static` (RoBERTa, section 4.1)."""


@dataclass(frozen=True)
class Inputs:
    """What a run needs, opened and found to fit together.

    Attributes:
        store, tokenizer, objective: what is learnt, and how.
        module: with its first weights.
        checkpoint: what the run goes on from; None at its beginning.
        steps: the batches from there on, for `run_session`.
        held_out: masked batches to evaluate on; none where nothing is held out.
    """

    store: TokenStore
    tokenizer: Tokenizer
    objective: Objective
    module: ObjectiveModule
    checkpoint: Checkpoint | None
    steps: Callable[[Callable[[], float]], Iterator[LoadedStep]]
    held_out: list[Batch]


def open_inputs(settings: PretrainRecipe, directory: Path, workers: int) -> Inputs:
    """Opens whatever a run needs, made from its corpus where there is no store yet.

    The first step's batches are made too: damage to what they are read from is told before the run begins.

    Raises:
        UserError: an input is missing, damaged, or does not fit the others.
    """
    checkpoint = find_checkpoint(directory / "checkpoints")
    check_model(settings)
    store = open_store(settings, directory, workers)
    tokenizer = open_tokenizer(store.tokenizer_directory)
    check_tokenizer(settings, tokenizer, store.directory)
    objective = OBJECTIVES[settings.objective.name](settings.objective, tokenizer.vocabulary)
    torch.manual_seed(settings.seed)
    module = build_module(settings, objective, tokenizer)
    steps = open_steps(settings, store, tokenizer, checkpoint)
    held_out = prepare_held_out(settings, store, tokenizer, objective)
    return Inputs(store, tokenizer, objective, module, checkpoint, steps, held_out)


def open_steps(
    settings: PretrainRecipe, store: TokenStore, tokenizer: Tokenizer, checkpoint: Checkpoint | None
) -> Callable[[Callable[[], float]], Iterator[LoadedStep]]:
    """The training batches from a checkpoint on, as a function of what tells the share of the budget that is done.

    The first step is made here and now.
    """
    start = Position() if checkpoint is None else Position(**checkpoint.state["position"])
    share = 0.0 if checkpoint is None else share_done(checkpoint.done, settings.train)
    told: list[Callable[[], float]] = [lambda: share]
    if isinstance(tokenizer, WordTokenizer):
        steps = stream_loader(settings, store, tokenizer, held_out=False).steps(start)
    else:
        phases = settings.phases or (PhaseSettings(until=1),)
        steps = phased_steps(
            [sequence_loader(settings, store, tokenizer, held_out=False, phase=phase) for phase in phases],
            [phase.until for phase in phases],
            start,
            progress=lambda: told[0](),
            on_phase=lambda number: logger.info("phase %s of %s begins", number + 1, len(phases)),
        )
    first = next(steps)

    def take(progress: Callable[[], float]) -> Iterator[LoadedStep]:
        told[0] = progress
        return chain([first], steps)

    return take


def open_store(settings: PretrainRecipe, directory: Path, workers: int) -> TokenStore:
    """The recipe's store, or one made from its corpus inside the run directory: tokenizer first, then the tokens."""
    if settings.store is not None:
        return TokenStore(Path(settings.store))
    assert settings.corpus is not None, "the recipe has one or the other"
    check_corpus(settings)
    tokenizer = settings.tokenizer
    if isinstance(tokenizer, TokenizerSettings):
        trained = directory / "tokenizer"
        if not trained.exists():
            _, report = train_tokenizer(
                settings.corpus,
                trained,
                tokenizer,
                seed=settings.seed,
                reading=settings.reading,
                cleaning=settings.cleaning,
            )
            logger.info("tokenizer: %s", report.summary().replace("\n", "; "))
        tokenizer = str(trained)
    opened = open_tokenizer(Path(tokenizer))  # before the work begins
    check_tokenizer(settings, opened, tokenizer)
    OBJECTIVES[settings.objective.name](settings.objective, opened.vocabulary)
    if not isinstance(opened, WordTokenizer):
        check_separator(settings.packing, frame_of(settings, opened))
    return prepare(
        settings.corpus,
        tokenizer,
        directory / "store",
        workers=workers,
        resume=True,
        reading=settings.reading,
        cleaning=settings.cleaning,
    )


def check_tokenizer(settings: PretrainRecipe, tokenizer: Tokenizer, where: object) -> None:
    """Refuses a tokenizer of words for all but `bilm`, and any other for it.

    Args:
        where: the tokenizer or its store, for the message.

    Raises:
        SettingsError: it is of the wrong kind.
    """
    if isinstance(tokenizer, WordTokenizer) != (settings.objective.name == "bilm"):
        raise SettingsError(
            f"objective.name={settings.objective.name} and the tokenizer of {where}, which is of the kind "
            f"{tokenizer.kind}, do not go together: `word` (`unmask tokenizer train --kind word`) is for bilm, and "
            "bilm reads the characters of words"
        )


def check_corpus(settings: PretrainRecipe) -> None:
    """Refuses a corpus of too few training documents, without reading further than it takes.

    Raises:
        InputError: there are fewer, or the corpus cannot be read.
    """
    assert settings.corpus is not None, "a store has been checked otherwise"
    if any(Path(path).suffix in MIXTURE_SUFFIXES for path in settings.corpus):
        return  # reading it means reading all of it, which making the store will do
    threshold = int(settings.held_out * 2**32)
    files = find_files(settings.corpus, settings.reading.format)
    documents = read_documents(files, CorpusCounts(), settings.reading, settings.cleaning)
    needed = documents_needed(settings.packing, sentence_objective(settings))
    training = islice((document for document in documents if text_hash(document.text) >= threshold), needed)
    check_documents(
        len(list(training)), "training", ", ".join(settings.corpus), settings.packing, sentence_objective(settings)
    )


def build_loader(
    settings: PretrainRecipe,
    store: TokenStore,
    tokenizer: Tokenizer,
    held_out: bool,
    phase: PhaseSettings | None = None,
) -> SequenceLoader | StreamLoader:
    """The loader of the training documents, or of the held-out ones, in a phase of the run or as the recipe says.

    Raises:
        InputError: there are too few documents.
        SettingsError: special tokens leave no room for text, the tokenizer has not those that the format needs, or the
            masking goes by annotations that the store has not.
        StoreError: the format is `stream`, and the store is not one of words.
    """
    if isinstance(tokenizer, WordTokenizer):
        return stream_loader(settings, store, tokenizer, held_out)
    return sequence_loader(settings, store, tokenizer, held_out, phase)


def stream_loader(
    settings: PretrainRecipe, store: TokenStore, tokenizer: WordTokenizer, held_out: bool
) -> StreamLoader:
    """The loader of ELMo's lanes. Held-out text has as many as a step, so that figures are those of any micro-batch."""
    train = settings.train
    return StreamLoader(
        Split(store, settings.held_out, held_out),
        tokenizer,
        settings.packing.max_length,
        train.batch_size,
        train.batch_size if held_out else train.micro_batch_size or train.batch_size,
        settings.seed,
    )


def sequence_loader(
    settings: PretrainRecipe,
    store: TokenStore,
    tokenizer: TextTokenizer,
    held_out: bool,
    phase: PhaseSettings | None = None,
) -> SequenceLoader:
    """The loader of formats whose sequences stand by themselves; see `build_loader`."""
    masking = getattr(settings.objective, "masking", "token")
    if masking in KINDS:
        check_annotations(store, masking)
    phase = phase or PhaseSettings(until=1)
    is_static = getattr(settings.objective, "masking_mode", "dynamic") == "static"
    batch_size = phase.batch_size or settings.train.batch_size
    return open_loader(
        Split(store, settings.held_out, held_out),
        phase.packing(settings.packing),
        sentence_objective(settings),
        frame_of(settings, tokenizer),
        seed=settings.seed,
        batch_size=batch_size,
        micro_batch_size=phase.micro_batch_size or min(settings.train.micro_batch_size or batch_size, batch_size),
        plan_copies=STATIC_COPIES if is_static else settings.packing.copies,
        mask_copies=STATIC_COPIES if is_static else None,
        token_columns={masking: annotation_column(masking)} if masking in KINDS else {},
    )


def sentence_objective(settings: PretrainRecipe) -> SentenceObjective:
    """What pairs of segments are for, "none" where the objective asks nothing about them."""
    return getattr(settings.objective, "sentence_objective", "none")


def frame_of(settings: PretrainRecipe, tokenizer: TextTokenizer) -> SequenceFrame:
    """The special tokens around sequences: the tokenizer's, or none for families that read text as it runs.

    Raises:
        ModelError: the tokenizer has not the special tokens that are needed.
    """
    if trained_architecture(settings) in BARE:
        return bare_frame(document_separator_id=tokenizer.find_role("eos_token"))
    _ = tokenizer.cls_id  # a model of this family stands on it
    return SequenceFrame(tokenizer.framing, tokenizer.sep_id)


def prepare_held_out(
    settings: PretrainRecipe, store: TokenStore, tokenizer: Tokenizer, objective: Objective
) -> list[Batch]:
    """At most `train.eval_sequences` held-out sequences, as long as those of the last phase, masked once and for all;
    none of too few documents."""
    split = Split(store, settings.held_out, is_held_out=True)
    phase = settings.phases[-1] if settings.phases else None
    needed = documents_needed(settings.packing, sentence_objective(settings))
    if split.num_documents < needed:
        if settings.held_out > 0:
            logger.warning(
                "held_out=%s of %s documents is %s, and %s: nothing is evaluated; set held_out higher",
                settings.held_out,
                f"{store.num_documents:,}",
                split.num_documents,
                "pairs need two" if needed == 2 else "one is needed",
            )
        return []
    loader = build_loader(settings, store, tokenizer, held_out=True, phase=phase)
    return [objective.prepare(batch) for batch in loader.epoch(settings.train.eval_sequences)]
