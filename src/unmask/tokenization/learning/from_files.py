"""Text files to a tokenizer's directory."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Generator, Iterable, Mapping
from contextlib import closing
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

from unmask.config import as_settings
from unmask.corpus.documents import CorpusCounts, Document
from unmask.corpus.pipeline import find_corpora, read_corpora
from unmask.corpus.segmenters import SEGMENTERS
from unmask.corpus.settings import CleaningSettings, ReadingSettings
from unmask.corpus.source import names_of
from unmask.corpus.statistics import describe_losses
from unmask.errors import InputError, TooLittleTextError
from unmask.io import progress
from unmask.io.input_files import STANDARD_INPUT
from unmask.io.paths import TRAINING_REPORT, check_writable
from unmask.io.writing import refuse_foreign, refuse_inputs_inside, write_json, writing_directory
from unmask.tokenization.learning.train import TrainingReport, learn_tokenizer
from unmask.tokenization.learning.word_training import train_word_tokenizer
from unmask.tokenization.opening import TOKENIZER_FILES, Tokenizer
from unmask.tokenization.settings import TokenizerSettings

logger = logging.getLogger("unmask")


def train_tokenizer(
    text: str | Path | Iterable[str | Path],
    out: str | Path,
    settings: TokenizerSettings | Mapping[str, Any] = TokenizerSettings(),  # noqa: B008  immutable
    *,
    seed: int = 0,
    overwrite: bool = False,
    reading: ReadingSettings | Mapping[str, Any] = ReadingSettings(),  # noqa: B008  immutable
    cleaning: CleaningSettings | Mapping[str, Any] = CleaningSettings(),  # noqa: B008  immutable
) -> tuple[Tokenizer, TrainingReport]:
    """Trains a tokenizer and saves it, with a record of what it was trained on, in the form that
    `transformers.AutoTokenizer` opens (it does not know tokenizers of words).

    Args:
        text: one or more files, folders and globs, or a mixture, as `unmask.corpus.pipeline.find_corpora` takes them.
        out: the tokenizer's directory.
        settings: kind, size, casing ..., as `unmask.TokenizerSettings` or a dictionary of them.
        seed: of the sample that is taken if the text exceeds `settings.sample_bytes`.
        overwrite: True replaces a tokenizer at `out`.
        reading: how files become documents, as settings or a dictionary of them.
        cleaning: what is repaired in documents, and which are left out; likewise.

    Returns:
        The tokenizer, and an `unmask.tokenization.learning.train.TrainingReport`.

    Raises:
        InputError: no text, or text that cannot be read.
        SettingsError: a setting is unknown or out of its range, the vocabulary has no room for the characters of the
            text, or a package is missing.
        OutputError: `out` exists, holds other things than a tokenizer, or the disk is full.
    """
    settings = as_settings(TokenizerSettings, settings, "settings")
    reading = as_settings(ReadingSettings, reading, "reading")
    cleaning = as_settings(CleaningSettings, cleaning, "cleaning")
    out = Path(out)
    refuse_foreign(out, TOKENIZER_FILES, "a tokenizer")
    check_writable(out, overwrite, is_folder=True)
    if settings.segmenter != "none":
        SEGMENTERS[settings.segmenter]()  # before text is read: its package may be missing
    corpora = find_corpora(text, reading, cleaning)
    files = [file for corpus in corpora for file in corpus.files]
    refuse_inputs_inside(out, files)
    counts = CorpusCounts()
    sizes = {path: path.stat().st_size for path in files if path != STANDARD_INPUT}
    total = sum(sizes.values()) if all(path.is_file() for path in files) else None
    with closing(_texts(read_corpora(corpora, counts, reading, cleaning), counts, total)) as texts:
        try:
            tokenizer, report = _learn(texts, settings, seed)
        except TooLittleTextError as error:
            raise InputError(f"{names_of(files)}: {error}") from error
    own = ["tokenizers"] if settings.kind != "word" else []
    libraries = [*own, *(["kiwipiepy", "kiwipiepy_model"] if settings.segmenter == "kiwi" else [])]
    with writing_directory(out, overwrite) as directory:
        tokenizer.save(directory)
        sources = [{"file": str(path), "bytes": sizes.get(path)} for path in files]
        write_json(
            directory / TRAINING_REPORT,
            {
                "settings": settings.model_dump(mode="json"),
                "reading": reading.model_dump(mode="json"),
                "cleaning": cleaning.model_dump(mode="json"),
                "libraries": {name: version(name) for name in libraries},
                "seed": seed,
                **asdict(report),
                "text": counts.as_dict(),
                "sources": sources,
            },
        )
    if report.vocab_size < report.asked_vocab_size:
        logger.warning(
            "%s: %s entries, fewer than the %s asked for: the text gives no more",
            *(out, f"{report.vocab_size:,}", f"{report.asked_vocab_size:,}"),
        )
    return tokenizer, report


def _texts(documents: Iterable[Document], counts: CorpusCounts, total: int | None) -> Generator[str, None, None]:
    """The texts of documents that are read meanwhile, with their progress, `total` being the bytes of their files.
    Raises TooLittleTextError if there are none."""
    with progress.Progress("reading text", unit="bytes") as shown:
        for document in documents:
            shown.update(total and min(1.0, counts.file_bytes / total), counts.utf8_bytes)
            yield document.text
    if counts.documents == 0:
        raise TooLittleTextError(f"no text in it{describe_losses(counts)}: give text to train on")


def _learn(texts: Iterable[str], settings: TokenizerSettings, seed: int) -> tuple[Tokenizer, TrainingReport]:
    if settings.kind == "word":
        return train_word_tokenizer(texts, settings, seed)
    began = time.monotonic()

    def announce(num_entries: int, num_words: int) -> None:
        if time.monotonic() - began >= progress.FIRST_SHOWN_S:
            print(f"learning {num_entries:,} entries from {num_words:,} distinct words", file=sys.stderr, flush=True)

    return learn_tokenizer(texts, settings, seed, announce)
