"""Text files to a tokenizer's directory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

from unmask.data.corpus import CorpusCounts, find_files, read_documents
from unmask.errors import InputError
from unmask.files import refuse_existing, refuse_foreign, write_json, writing_directory
from unmask.progress import Progress
from unmask.tokenization.settings import TokenizerSettings
from unmask.tokenization.tokenizer import TextTokenizer
from unmask.tokenization.train import train_tokenizer as train
from unmask.tokenization.wordpiece import TrainingReport

REPORT = "training.json"
_OWN_FILES = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "vocab.txt", REPORT)
"""All that `--overwrite` may remove, since the directory of a model holds a tokenizer too."""


def train_tokenizer(
    text: Sequence[str | Path],
    out: str | Path,
    settings: TokenizerSettings = TokenizerSettings(),  # noqa: B008  immutable
    *,
    seed: int = 0,
    overwrite: bool = False,
) -> tuple[TextTokenizer, TrainingReport]:
    """Trains a tokenizer and saves it as `transformers.AutoTokenizer` opens it, with what it was trained on.

    Args:
        text: files, folders and globs, as `unmask.data.corpus.find_files` takes them.
        out: the tokenizer's directory.
        settings: kind, size, casing.
        seed: of the sample that is taken where the text exceeds `settings.sample_bytes`.
        overwrite: True replaces a tokenizer at `out`.

    Raises:
        InputError: no text, or text that cannot be read.
        SettingsError: the vocabulary has no room for the characters of the text.
        OutputError: `out` exists, holds other things than a tokenizer, or the disk is full.
    """
    out = Path(out)
    files = find_files(text)
    refuse_existing(out, overwrite)
    refuse_foreign(out, _OWN_FILES, "a tokenizer")
    counts = CorpusCounts()
    total = max(1, sum(path.stat().st_size for path in files))
    with Progress("training the tokenizer", unit="bytes") as progress:

        def texts() -> Iterator[str]:
            for document in read_documents(files, counts):
                progress.update(0.9 * counts.file_bytes / total, counts.utf8_bytes)
                yield document.text
            if counts.documents == 0:
                others = f" and {len(files) - 1} more file(s)" if len(files) > 1 else ""
                raise InputError(f"{files[0]}{others}: no text in it: give text to train on")

        tokenizer, report = train(texts(), settings, seed)
    with writing_directory(out, overwrite) as directory:
        tokenizer.save(directory)
        sources = [{"file": str(path), "bytes": path.stat().st_size} for path in files]
        write_json(
            directory / REPORT,
            {
                "settings": settings.model_dump(),
                "seed": seed,
                **asdict(report),
                "text": asdict(counts),
                "sources": sources,
            },
        )
    return tokenizer, report
