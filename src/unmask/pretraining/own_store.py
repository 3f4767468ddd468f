"""The store that a pre-training run makes of its own corpus, and whether a tokenizer and the objective fit together."""

from __future__ import annotations

import logging
import shutil
from pathlib import Path

from unmask.corpus.documents import CorpusCounts
from unmask.corpus.files import find_files
from unmask.corpus.mixture import SUFFIXES as MIXTURE_SUFFIXES
from unmask.corpus.pipeline import read_documents
from unmask.corpus.statistics import describe_losses
from unmask.errors import InputError, SettingsError
from unmask.io.paths import MANIFEST, SKIPPED, model_directory
from unmask.objectives.base import Objective
from unmask.objectives.settings_base import AnnotationKind
from unmask.objectives.table import new_objective
from unmask.packing.annotation_columns import without_annotations
from unmask.packing.formats import check_documents, check_separator, documents_needed
from unmask.pretraining.start import Start
from unmask.pretraining.steps import template_of
from unmask.pretraining.vocabulary import check_vocabulary
from unmask.recipe.pairings import why_not_tokenized
from unmask.recipe.tree import PretrainRecipe
from unmask.store.encoding import held_out_hash
from unmask.store.preparation import describe_annotations, prepare
from unmask.store.store import TokenStore
from unmask.tokenization.learning.from_files import train_tokenizer
from unmask.tokenization.opening import Tokenizer, open_tokenizer
from unmask.tokenization.settings import TokenizerSettings

logger = logging.getLogger("unmask")

TRAINED_TOKENIZER = "tokenizer"
"""In a run's directory: the tokenizer that it has trained on its corpus."""


def open_store(start: Start, directory: Path, workers: int, begun: bool = False) -> TokenStore:
    """The recipe's store, or one made from its corpus inside the run directory: tokenizer first, then the tokens.

    Args:
        begun: True: the run has trained on its store, so that its corpus may be gone.

    Raises:
        UserError: an input is missing or damaged, or lacks what the objective learns from. A new store that turns out
            to lack it is removed again.
    """
    if start.recipe.store is not None:
        return TokenStore(Path(start.recipe.store))
    own = directory / "store"
    try:
        return _store_of_corpus(start, directory, own, workers)
    except InputError as error:
        if not begun or not (own / MANIFEST).is_file():
            raise
        logger.warning("continues with %s, which was made of the corpus that cannot be read any more (%s)", own, error)
        return TokenStore(own)


def _store_of_corpus(start: Start, directory: Path, own: Path, workers: int) -> TokenStore:
    settings = start.recipe
    assert settings.corpus is not None, "it has a corpus or a store"
    wanted = settings.objective.annotations
    tokenizer = find_tokenizer(start, directory)
    check_corpus(settings)
    if tokenizer is None:
        assert isinstance(settings.tokenizer, TokenizerSettings), "else it has been found"
        tokenizer = directory / TRAINED_TOKENIZER
        _, report = train_tokenizer(
            settings.corpus,
            tokenizer,
            settings.tokenizer,
            seed=settings.seed,
            reading=settings.reading,
            cleaning=settings.cleaning,
        )
        logger.info("tokenizer: %s", report.summary().replace("\n", "; "))
    opened = open_tokenizer(tokenizer)  # fails before the work begins
    check_tokenizer(settings, opened, tokenizer)
    open_objective(settings, opened, tokenizer)
    check_vocabulary(start, opened, f"the tokenizer of {tokenizer}")
    if not opened.reads_words:
        check_separator(settings.packing, template_of(start, opened))
    is_made = (own / MANIFEST).is_file()
    store = prepare(
        settings.corpus,
        tokenizer,
        own,
        workers=workers,
        resume=True,
        reading=settings.reading,
        cleaning=settings.cleaning,
    )
    if wanted is not None and not store.num_spans(wanted):  # a mixture, or cleaning removed them
        shutil.rmtree(store.directory)
        raise without_annotations(wanted, ", ".join(settings.corpus))
    if not is_made:
        _log_corpus(store, wanted)
    return store


def _log_corpus(store: TokenStore, wanted: AnnotationKind | None) -> None:
    """Logs what a new store lacks of its corpus, and what the masking may choose from."""
    statistics = store.manifest["text"]
    if losses := describe_losses(statistics):
        where = f", listed in {store.directory / SKIPPED}" if statistics["skipped"] else ""
        logger.info("corpus: %s documents%s%s", f"{statistics['documents']:,}", losses, where)
    if wanted is not None:
        logger.info(describe_annotations(store))


def find_tokenizer(start: Start, directory: Path) -> Path | None:
    """The tokenizer for a recipe's corpus: the one that it names, or that the run has trained before, or that of
    `init_from`; None if it has to be trained. Raises SettingsError if the recipe says how to train one, beside an
    `init_from`, or that has none."""
    settings = start.recipe
    given = settings.tokenizer
    if isinstance(given, str):
        return Path(given)
    trained = directory / TRAINED_TOKENIZER
    if start.source is None:
        return trained if trained.exists() else None
    model = start.source.directory
    keys = [f"tokenizer.{name}" for name in type(given).model_fields if name in given.model_fields_set]
    if keys:
        they_are = "it is" if len(keys) == 1 else "they are"
        raise SettingsError(
            f"{', '.join(keys)}: {they_are} for a new tokenizer, whose entries would not be those of "
            f"init_from={settings.init_from}: give tokenizer={model}, the model's own, or one that `unmask tokenizer "
            f"extend {model} --words FILE --out DIR` has made of it"
        )
    if start.tokenizer is None:
        raise SettingsError(
            f"init_from={settings.init_from} has no tokenizer beside it: give tokenizer=DIR, the one that the model "
            "was trained with"
        )
    if not (directory / "store").exists():
        logger.info("tokenizer: that of init_from=%s", settings.init_from)
    return model


def check_tokenizer(settings: PretrainRecipe, tokenizer: Tokenizer, where: object) -> None:
    """Refuses a tokenizer that the objective cannot use, by a `SettingsError`; `where` is the tokenizer or its store,
    for the message."""
    wrong = why_not_tokenized(settings.objective, tokenizer.kind, tokenizer.segmenter, f" of {where}")
    if wrong is not None:
        raise SettingsError(f"{wrong}; {_another_store(settings)}")


def open_objective(settings: PretrainRecipe, tokenizer: Tokenizer, where: object) -> Objective:
    """The recipe's objective, or a `SettingsError` if the tokenizer lacks what it needs; see `check_tokenizer`."""
    try:
        return new_objective(settings.objective, tokenizer.vocabulary)
    except SettingsError as error:
        raise SettingsError(f"the tokenizer of {where}: {error}; {_another_store(settings)}") from error


def _another_store(settings: PretrainRecipe) -> str:
    """How to make a store that fits, for a message."""
    if settings.init_from is not None:
        model = model_directory(settings.init_from)
        return f"make a store with the model's own tokenizer, `unmask prepare TEXT --tokenizer {model} --out STORE`"
    kind = settings.model.family.tokenizer
    return (
        f"make another store, with `unmask tokenizer train TEXT --kind {kind} --out DIR` and then `unmask prepare TEXT "
        "--tokenizer DIR --out STORE`"
    )


def check_corpus(settings: PretrainRecipe) -> None:
    """Refuses a corpus with too few training documents (`InputError`), or without the annotations that the masking uses
    (`SettingsError`); reads no more of it than that takes."""
    assert settings.corpus is not None, "a store has been checked otherwise"
    if any(Path(path).suffix in MIXTURE_SUFFIXES for path in settings.corpus):
        return  # would have to be read whole, which making the store will do
    threshold = int(settings.held_out * 2**32)
    files = find_files(settings.corpus, settings.reading.format)
    documents = read_documents(files, CorpusCounts(), settings.reading, settings.cleaning)
    wanted, where = settings.objective.annotations, ", ".join(settings.corpus)
    needed = documents_needed(settings.packing, settings.objective.pair_objective)
    num_training, num_held_out, is_marked = 0, 0, wanted is None
    for document in documents:
        is_training = held_out_hash(document.text) >= threshold
        num_training += is_training
        num_held_out += not is_training
        is_marked = is_marked or any(annotation.kind == wanted for annotation in document.annotations)
        if num_training >= needed and is_marked:
            return
    check_documents(num_training, "training", where, settings.packing, settings.objective.pair_objective, num_held_out)
    assert wanted is not None, "else nothing is missing"
    raise without_annotations(wanted, where)
